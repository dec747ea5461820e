"""A plan as a value: tasks within tasks, the states they are in, and the rules that keep these states true.

- A closed task (completed, verified, abandoned) has no task in it that is not closed: closing one closes those in it, and a task
  that is added to a closed one, or opened again within it, opens it again.
- Who works on a task works on those around it: in_progress goes up to the top.
- Nothing is undone in passing: closing a task leaves in it what is verified or abandoned as it is, and only verifying it moves
  what is completed.
- Nothing is closed in passing, either: a task whose tasks are all closed waits to be verified and closed.

Ids are places: "0" is the first task, "0.2" the third task in it, "" the plan itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sandbox.errors import ErrorCode, SandboxError

MAX_TASKS, MAX_DEPTH, MAX_GOAL_CHARS = 200, 8, 1000
_ID = re.compile(r"(?:0|[1-9][0-9]{0,3})(?:\.(?:0|[1-9][0-9]{0,3}))*")


class TaskState(StrEnum):
    """What is known of a task. ``verified`` is completed, and shown to be."""

    open = "open"
    in_progress = "in_progress"
    completed = "completed"
    verified = "verified"
    abandoned = "abandoned"

    @property
    def closed(self) -> bool:
        """Whether nothing is left to be done."""
        return self in (TaskState.completed, TaskState.verified, TaskState.abandoned)


@dataclass(frozen=True, slots=True)
class Task:
    """One task with the tasks in it."""

    goal: str
    state: TaskState = TaskState.open
    subtasks: tuple[Task, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON-ready data, for ``Plan.from_dict``."""
        return {"goal": self.goal, "state": self.state.value, "subtasks": [t.to_dict() for t in self.subtasks]}


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks at the top. Changing it makes another one; what cannot be done raises SandboxError ``invalid_arguments``."""

    tasks: tuple[Task, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether there are tasks, and all of them are closed."""
        return bool(self.tasks) and all(task.state.closed for task in self.tasks)

    def walk(self) -> Iterator[tuple[str, Task]]:
        """Every task with its id, parents first, in order."""
        yield from _walk(self.tasks, "")

    def ids(self) -> list[str]:
        """The ids of all tasks, in order."""
        return [ident for ident, _ in self.walk()]

    def task(self, ident: str) -> Task:
        """The task of that id. Raises SandboxError that names the ids there are."""
        found = dict(self.walk()).get(ident)
        if found is None:
            raise _unknown(self, ident)
        return found

    def current(self) -> tuple[str, Task] | None:
        """The task that is worked on: the first one in progress, and in it the first one in progress, and so on."""
        found, level, prefix = None, self.tasks, ""
        while True:
            here = next(((n, t) for n, t in enumerate(level) if t.state is TaskState.in_progress), None)
            if here is None:
                return found
            prefix = f"{prefix}{here[0]}"
            found, level, prefix = (prefix, here[1]), here[1].subtasks, f"{prefix}."

    def unfinished(self) -> list[str]:
        """The ids of the tasks that are not closed."""
        return [ident for ident, task in self.walk() if not task.state.closed]

    def add(self, parent: str, task: Task) -> tuple[Plan, str]:
        """The plan with a further task in ``parent`` ("" is the top), and its id. What a closed task gets opens it again."""
        level = self.tasks if parent == "" else self.task(parent).subtasks
        for number, there in enumerate(level):
            if not there.state.closed and _same(there.goal, task.goal):
                ident = f"{parent}.{number}" if parent else str(number)
                raise _refusal(
                    f"The task {task.goal[:80]!r} is there already, as {ident}.",
                    f"Change its state with modify_task(task_id={ident!r}), or give the new task a goal of its own.",
                )
        _check(task, 1 + (parent.count(".") + 1 if parent else 0), new=True)
        if len(self.ids()) + sum(1 for _ in _walk((task,), "")) > MAX_TASKS:
            raise _refusal(f"A plan has at most {MAX_TASKS} tasks.", "Work on those there are.")
        ident = f"{parent}.{len(level)}" if parent else str(len(level))
        if parent == "":
            return Plan((*self.tasks, _consistent(task))), ident
        made = _changed(self.tasks, parent, lambda t: replace(t, subtasks=(*t.subtasks, _consistent(task))))
        return Plan(made), ident

    def modify(self, ident: str, state: TaskState) -> Plan:
        """The plan with that task in another state, and what follows from it for the tasks around it and in it."""
        self.task(ident)
        return Plan(_changed(self.tasks, ident, lambda task: _in_state(task, state)))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        return {"tasks": [task.to_dict() for task in self.tasks]}

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """The plan that ``to_dict`` wrote. Raises ValueError for what is no plan."""
        try:
            plan = cls(tuple(_consistent(task_of(t)) for t in data["tasks"]))
            for task in plan.tasks:
                _check(task, 1, new=False)
        except (KeyError, TypeError, SandboxError) as error:
            raise ValueError(f"This is no plan: {error}") from error
        return plan

    def to_text(self) -> str:
        """One line a task: its id, its state, its goal, further in for tasks in tasks."""
        return "\n".join(f"{'  ' * i.count('.')}{i} [{t.state.value}] {t.goal}" for i, t in self.walk())


def task_of(data: Any, depth: int = 1) -> Task:
    """The task in ``data``: a text that is its goal, or a mapping with goal, state and subtasks. Raises SandboxError."""
    if isinstance(data, str):
        data = {"goal": data}
    if not isinstance(data, Mapping) or not isinstance(data.get("goal"), str):
        raise _refusal(
            f"{str(data)[:80]!r} is no task.", 'A task is {"goal": "...", "subtasks": [...]}, or its goal alone.'
        )
    subtasks = data.get("subtasks") or ()
    if not isinstance(subtasks, Sequence) or isinstance(subtasks, str) or set(data) - {"goal", "state", "subtasks"}:
        raise _refusal(
            f"{str(data)[:80]!r} is no task.", "A task has a goal, and may have a state and a list of subtasks."
        )
    if depth > MAX_DEPTH:
        raise _refusal(f"Tasks are nested at most {MAX_DEPTH} deep.", "Make several tasks of it, side by side.")
    return Task(
        data["goal"].strip(), state_of(data.get("state", "open")), tuple(task_of(t, depth + 1) for t in subtasks)
    )


def state_of(text: Any) -> TaskState:
    """The state of that name. Raises SandboxError."""
    try:
        return TaskState(text)
    except ValueError:
        raise _refusal(f"There is no state {str(text)[:40]!r}.", f"Use one of: {', '.join(TaskState)}.") from None


def _walk(tasks: Sequence[Task], prefix: str) -> Iterator[tuple[str, Task]]:
    for number, task in enumerate(tasks):
        yield f"{prefix}{number}", task
        yield from _walk(task.subtasks, f"{prefix}{number}.")


def _changed(tasks: tuple[Task, ...], ident: str, change: Callable[[Task], Task]) -> tuple[Task, ...]:
    """The tasks with the one of that id changed, and those around it in the state that follows."""
    head, _, rest = ident.partition(".")
    number = int(head)
    task = tasks[number]
    done = change(task) if not rest else replace(task, subtasks=_changed(task.subtasks, rest, change))
    return (*tasks[:number], _settled(done), *tasks[number + 1 :])


def _in_state(task: Task, state: TaskState) -> Task:
    """The task in that state, and those in it as far as they must follow."""
    if state is TaskState.in_progress:
        return replace(task, state=state)
    return replace(task, state=state, subtasks=tuple(_following(t, state) for t in task.subtasks))


def _following(task: Task, above: TaskState) -> Task:
    """A task in one that was put into the state ``above``."""
    subtasks = tuple(_following(t, above) for t in task.subtasks)
    stays = task.state in (TaskState.verified, TaskState.abandoned)
    if above is TaskState.open:
        stays = task.state is not TaskState.in_progress
    elif task.state is TaskState.completed:
        stays = above is not TaskState.verified
    return replace(task, state=task.state if stays else above, subtasks=subtasks)


def _settled(task: Task) -> Task:
    """The task in the state that follows from the tasks in it."""
    if any(t.state is TaskState.in_progress for t in task.subtasks):
        return replace(task, state=TaskState.in_progress)
    if task.state.closed and not all(t.state.closed for t in task.subtasks):
        return replace(task, state=TaskState.open)
    return task


def _consistent(task: Task) -> Task:
    """The same for a task with all that is in it."""
    return _settled(replace(task, subtasks=tuple(_consistent(t) for t in task.subtasks)))


def _same(one: str, other: str) -> bool:
    return one.casefold().split() == other.casefold().split()


def _check(task: Task, depth: int, *, new: bool) -> None:
    """Raises SandboxError for what no plan can hold, and for ``new`` tasks that are twice the same."""
    if not task.goal or len(task.goal) > MAX_GOAL_CHARS or "\n" in task.goal:
        raise _refusal(
            f"{task.goal[:80]!r} is no goal of a task.", f"A goal is one line of at most {MAX_GOAL_CHARS} characters."
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
    hint = f"The tasks are {known}." if known else "The plan has no tasks yet: add one with add_task(parent='', goal=...)."
    return _refusal(f"There is no task with the id {ident[:40]!r}.", hint)


def _refusal(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_arguments, message, hint)
