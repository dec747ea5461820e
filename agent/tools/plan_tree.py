"""A plan as a value: tasks with subtasks, their states, and the rules that keep the states consistent.

- A closed task (completed, verified, abandoned) has only closed subtasks: closing it closes them, and adding or reopening a
  subtask reopens it.
- in_progress spreads upwards: a task with a subtask in progress is in progress.
- Closing a task does not change its verified and abandoned subtasks, and only verifying it changes the completed ones.
- A task whose subtasks are all closed stays open until the model closes it.

Ids are positions: "0" is the first task, "0.2" its third subtask, "" the plan itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

MAX_TASKS, MAX_DEPTH, MAX_GOAL_CHARS = 200, 8, 1000
_ID = re.compile(r"(?:0|[1-9][0-9]{0,3})(?:\.(?:0|[1-9][0-9]{0,3}))*")


class TaskState(StrEnum):
    """The state of a task. ``verified`` is completed and checked."""

    open = "open"
    in_progress = "in_progress"
    completed = "completed"
    verified = "verified"
    abandoned = "abandoned"

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do."""
        return self in (TaskState.completed, TaskState.verified, TaskState.abandoned)


@dataclass(frozen=True, slots=True)
class Task:
    """One task with the tasks in it."""

    goal: str
    state: TaskState = TaskState.open
    subtasks: tuple[Task, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON-ready data, for ``Plan.from_dict``."""
        return {"goal": self.goal, "state": self.state.value, "subtasks": [t.to_dict() for t in self.subtasks]}


@dataclass(frozen=True, slots=True)
class Plan:
    """The top-level tasks. Changes return a new plan; an invalid one raises SandboxError ``invalid_arguments``."""

    tasks: tuple[Task, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether there are tasks, and all of them are closed."""
        return bool(self.tasks) and all(task.state.closed for task in self.tasks)

    def walk(self) -> Iterator[tuple[str, Task]]:
        """Yield every task with its id, parents first, in order."""
        yield from _walk(self.tasks, "")

    def ids(self) -> list[str]:
        """Return the ids of all tasks, in order."""
        return [ident for ident, _ in self.walk()]

    def task(self, ident: str) -> Task:
        """Return the task of that id. Raises SandboxError, with the known ids, if there is none."""
        found = dict(self.walk()).get(ident)
        if found is None:
            raise _unknown(self, ident)
        return found

    def current(self) -> tuple[str, Task] | None:
        """Return the innermost task in progress with its id: the first in progress, in it the first in progress, and so on."""
        found, level, prefix = None, self.tasks, ""
        while True:
            here = next(((n, t) for n, t in enumerate(level) if t.state is TaskState.in_progress), None)
            if here is None:
                return found
            prefix = f"{prefix}{here[0]}"
            found, level, prefix = (prefix, here[1]), here[1].subtasks, f"{prefix}."

    def unfinished(self) -> list[str]:
        """Return the ids of the tasks that are not closed."""
        return [ident for ident, task in self.walk() if not task.state.closed]

    def add(self, parent: str, task: Task) -> tuple[Plan, str]:
        """Return the plan with a new task in ``parent`` ("" is the top), and its id. A new task reopens a closed parent."""
        level = self.tasks if parent == "" else self.task(parent).subtasks
        for number, there in enumerate(level):
            if not there.state.closed and _same(there.goal, task.goal):
                ident = f"{parent}.{number}" if parent else str(number)
                raise _refusal(
                    f"The task {task.goal[:80]!r} already exists, as {ident}.",
                    f"Change its state with modify_task(task_id={ident!r}), or give the new task a goal of its own.",
                )
        _check(task, 1 + (parent.count(".") + 1 if parent else 0), new=True)
        if len(self.ids()) + sum(1 for _ in _walk((task,), "")) > MAX_TASKS:
            raise _refusal(f"A plan has at most {MAX_TASKS} tasks.", "Work on the existing ones.")
        ident = f"{parent}.{len(level)}" if parent else str(len(level))
        if parent == "":
            return Plan((*self.tasks, _consistent(task))), ident
        made = _changed(self.tasks, parent, lambda t: replace(t, subtasks=(*t.subtasks, _consistent(task))))
        return Plan(made), ident

    def modify(self, ident: str, state: TaskState) -> Plan:
        """Return the plan with that task in another state; the tasks around it and in it follow."""
        self.task(ident)
        return Plan(_changed(self.tasks, ident, lambda task: _in_state(task, state)))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data."""
        return {"tasks": [task.to_dict() for task in self.tasks]}

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Return the plan that ``to_dict`` wrote. Raises ValueError for invalid data."""
        try:
            plan = cls(tuple(_consistent(task_of(t)) for t in data["tasks"]))
            for task in plan.tasks:
                _check(task, 1, new=False)
        except (KeyError, TypeError, SandboxError) as error:
            raise ValueError(f"This is not a plan: {error}") from error
        return plan

    def to_text(self) -> str:
        """Return one line for each task, indented by depth: id, state, goal."""
        return "\n".join(f"{'  ' * i.count('.')}{i} [{t.state.value}] {t.goal}" for i, t in self.walk())


def task_of(data: Any, depth: int = 1) -> Task:
    """Return the task in ``data``: its goal as text, or a mapping with goal, state and subtasks. Raises SandboxError."""
    if isinstance(data, str):
        data = {"goal": data}
    if not isinstance(data, Mapping) or not isinstance(data.get("goal"), str):
        raise _refusal(
            f"{str(data)[:80]!r} is not a task.", 'A task is {"goal": "...", "subtasks": [...]}, or its goal alone.'
        )
    subtasks = data.get("subtasks") or ()
    if not isinstance(subtasks, Sequence) or isinstance(subtasks, str) or set(data) - {"goal", "state", "subtasks"}:
        raise _refusal(
            f"{str(data)[:80]!r} is not a task.", "A task has a goal, and may have a state and a list of subtasks."
        )
    if depth > MAX_DEPTH:
        raise _refusal(f"Tasks are nested at most {MAX_DEPTH} deep.", "Make several tasks of it, side by side.")
    return Task(
        data["goal"].strip(), state_of(data.get("state", "open")), tuple(task_of(t, depth + 1) for t in subtasks)
    )


def state_of(text: Any) -> TaskState:
    """Return the state of that name. Raises SandboxError."""
    try:
        return TaskState(text)
    except ValueError:
        raise _refusal(f"There is no state {str(text)[:40]!r}.", f"Use one of: {', '.join(TaskState)}.") from None


def _walk(tasks: Sequence[Task], prefix: str) -> Iterator[tuple[str, Task]]:
    for number, task in enumerate(tasks):
        yield f"{prefix}{number}", task
        yield from _walk(task.subtasks, f"{prefix}{number}.")


def _changed(tasks: tuple[Task, ...], ident: str, change: Callable[[Task], Task]) -> tuple[Task, ...]:
    """Return the tasks with the one of that id changed, and the states of those around it updated."""
    head, _, rest = ident.partition(".")
    number = int(head)
    task = tasks[number]
    done = change(task) if not rest else replace(task, subtasks=_changed(task.subtasks, rest, change))
    return (*tasks[:number], _settled(done), *tasks[number + 1 :])


def _in_state(task: Task, state: TaskState) -> Task:
    """Return the task in that state, with the tasks in it updated."""
    if state is TaskState.in_progress:
        return replace(task, state=state)
    return replace(task, state=state, subtasks=tuple(_following(t, state) for t in task.subtasks))


def _following(task: Task, above: TaskState) -> Task:
    """Return a task as it is after the one around it was put into the state ``above``."""
    subtasks = tuple(_following(t, above) for t in task.subtasks)
    stays = task.state in (TaskState.verified, TaskState.abandoned)
    if above is TaskState.open:
        stays = task.state is not TaskState.in_progress
    elif task.state is TaskState.completed:
        stays = above is not TaskState.verified
    return replace(task, state=task.state if stays else above, subtasks=subtasks)


def _settled(task: Task) -> Task:
    """Return the task in the state that follows from its subtasks."""
    if any(t.state is TaskState.in_progress for t in task.subtasks):
        return replace(task, state=TaskState.in_progress)
    if task.state.closed and not all(t.state.closed for t in task.subtasks):
        return replace(task, state=TaskState.open)
    return task


def _consistent(task: Task) -> Task:
    """Return the task with the states of all its subtasks updated, and its own."""
    return _settled(replace(task, subtasks=tuple(_consistent(t) for t in task.subtasks)))


def _same(one: str, other: str) -> bool:
    return one.casefold().split() == other.casefold().split()


def _check(task: Task, depth: int, *, new: bool) -> None:
    """Raise SandboxError for an invalid task, and for two equal tasks among ``new`` ones."""
    if not task.goal or len(task.goal) > MAX_GOAL_CHARS or "\n" in task.goal:
        raise _refusal(
            f"{task.goal[:80]!r} is not a valid goal.", f"A goal is one line of at most {MAX_GOAL_CHARS} characters."
        )
    if depth > MAX_DEPTH:
        raise _refusal(f"Tasks are nested at most {MAX_DEPTH} deep.", "Add it further up, beside the tasks there are.")
    goals: list[str] = []
    for inner in task.subtasks:
        if new and any(_same(inner.goal, goal) for goal in goals):
            raise _refusal(f"The task {inner.goal[:80]!r} is given twice.", "Give each task a goal of its own.")
        goals.append(inner.goal)
        _check(inner, depth + 1, new=new)


def _unknown(plan: Plan, ident: str) -> SandboxError:
    known = ", ".join(plan.ids()[:50])
    hint = (
        f"The tasks are {known}." if known else "The plan has no tasks yet: add one with add_task(parent='', goal=...)."
    )
    return _refusal(f"There is no task with the id {ident[:40]!r}.", hint)


def _refusal(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_arguments, message, hint)
