"""The plan of the late contract: a tree of tasks with dotted 0-based ids, which agents read and change with their
actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.errors import ToolError

STATES = ("open", "in_progress", "completed", "verified", "abandoned")
CLOSED = ("completed", "verified", "abandoned")
_SIGNS = {"open": "🔵", "in_progress": "💪", "completed": "✅", "verified": "✅", "abandoned": "❌"}
MOST_DEEP, MOST_TASKS = 20, 1000


@dataclass
class Task:
    """One task. The root has the id "" and the user's goal."""

    id: str
    goal: str
    state: str = "open"
    subtasks: list[Task] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the task and all below it as data."""
        return {"id": self.id, "goal": self.goal, "state": self.state, "subtasks": [t.to_dict() for t in self.subtasks]}

    def to_string(self, indent: str = "") -> str:
        """Return the task and all below it as text, one per line."""
        lines = [f"{indent}{_SIGNS[self.state]} {self.id} {self.goal}".rstrip()]
        return "\n".join([*lines, *(t.to_string(indent + "    ") for t in self.subtasks)])

    def walk(self) -> Iterator[Task]:
        """Yield the task, then all below it."""
        yield self
        for task in self.subtasks:
            yield from task.walk()

    def get_current_task(self) -> Task | None:
        """Return the deepest task in progress, or None. Of several at the same depth it is the first."""
        inner = next((t for t in self.subtasks if t.state == "in_progress"), None)
        if inner is None:
            return self if self.state == "in_progress" and self.id else None
        return inner.get_current_task() or inner


class RootTask(Task):
    """The whole plan.

    Closing a task closes the open tasks below it. A task in progress has its ancestors in progress. An open task below
    a closed one opens that again. The root is completed when all tasks of the first level are closed.
    """

    def __init__(self, goal: str = "") -> None:
        super().__init__("", goal)

    def get_task_by_id(self, task_id: str) -> Task:
        """Return the task. Raises ToolError that names the known ids."""
        return self._path(task_id)[-1]

    def add_subtask(self, parent: str, goal: str, subtasks: list[Any] | None = None) -> Task:
        """Add a task and those below it. Raises ToolError."""
        path = self._path(parent)
        task = _task(
            f"{parent}.{len(path[-1].subtasks)}" if parent else str(len(path[-1].subtasks)),
            goal,
            subtasks or [],
            len(path),
        )
        if sum(1 for _ in self.walk()) + sum(1 for _ in task.walk()) > MOST_TASKS:
            raise ToolError(f"The plan would have more than {MOST_TASKS} tasks.", "Work on the existing ones.")
        path[-1].subtasks.append(task)
        if task.state not in CLOSED:
            for above in path:
                above.state = "open" if above.state in CLOSED else above.state
        return task

    def set_subtask_state(self, task_id: str, state: str) -> None:
        """Set the state of a task. Raises ToolError."""
        if state not in STATES:
            raise ToolError(f"{state!r} is not a state of a task.", f"Use one of: {', '.join(STATES)}.")
        *above, task = self._path(task_id)
        task.state = state
        if state in CLOSED:
            for below in task.walk():
                below.state = state if below is task or below.state not in CLOSED else below.state
        else:
            for ancestor in above:
                reopened = "open" if ancestor.state in CLOSED else ancestor.state
                ancestor.state = "in_progress" if state == "in_progress" else reopened
        if self.subtasks and all(t.state in CLOSED for t in self.subtasks):
            self.state = "completed"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RootTask:
        """Read a plan from ``to_dict``'s data. Raises ToolError, KeyError or TypeError for other data."""
        root = cls(str(data["goal"]))
        root.subtasks = [_task(str(n), t["goal"], t["subtasks"], 1, t["state"]) for n, t in enumerate(data["subtasks"])]
        root.state = data["state"]
        return root

    def _path(self, task_id: str) -> list[Task]:
        """Return the tasks from the root down to this one."""
        path: list[Task] = [self]
        for part in task_id.split(".") if task_id else ():
            below = path[-1].subtasks
            if not (part.isascii() and part.isdigit() and len(part) < 6 and int(part) < len(below)):
                known = ", ".join(t.id for t in self.walk() if t.id)[:500] or "none"
                raise ToolError(f"There is no task {task_id[:100]!r}.", f'The ids are: {known}; "" is the root.')
            path.append(below[int(part)])
        return path


def _task(ident: str, goal: Any, subtasks: Any, depth: int, state: str = "open") -> Task:
    if not isinstance(goal, str) or not isinstance(subtasks, list) or state not in STATES:
        raise ToolError(
            f"A task needs a goal that is text, subtasks that are a list, and a state: {goal!r:.100}, {state!r:.50}.",
            'Give subtasks as [{"goal": "...", "state": "open", "subtasks": []}].',
        )
    if depth > MOST_DEEP:
        raise ToolError(f"Tasks can be {MOST_DEEP} levels deep at most.", "Put it under a task further up.")
    inner = []
    for number, each in enumerate(subtasks):
        data = each if isinstance(each, Mapping) else {"goal": each}
        inner.append(
            _task(
                f"{ident}.{number}", data.get("goal"), data.get("subtasks") or [], depth + 1, data.get("state", "open")
            )
        )
    return Task(ident, goal, state, inner)
