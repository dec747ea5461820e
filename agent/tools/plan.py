"""The kit ``plan``: a tree of tasks that the model keeps and sees in every prompt, and a run that ends when it is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.actions import Action
from agent.errors import AgentErrorCode
from agent.hooks import Hooks, Step
from agent.kits import Kit
from agent.memory import Memory
from agent.model.brain import Brain
from agent.plan import Plan, TaskState, state_of, task_of
from sandbox.errors import ErrorCode, SandboxError

from .placed import Place

ID = {"type": "string", "maxLength": 80, "description": "Id of the task, as the plan shows it."}
SUBTASK = {
    "anyOf": [
        {"type": "string", "description": "Goal of the task."},
        {
            "type": "object",
            "properties": {
                "goal": {"type": "string"},
                "state": {"type": "string", "enum": list(TaskState)},
                "subtasks": {"type": "array"},
            },
            "required": ["goal"],
            "additionalProperties": False,
        },
    ]
}
ADD = {
    "type": "object",
    "properties": {
        "parent": {**ID, "description": "Id of the task it belongs to; empty for a task of the plan itself."},
        "goal": {"type": "string", "description": "What is to be reached, in one line."},
        "subtasks": {"type": "array", "items": SUBTASK, "description": "Tasks in it: goals, or goals with subtasks."},
    },
    "required": ["parent", "goal"],
    "additionalProperties": False,
}
MODIFY = {
    "type": "object",
    "properties": {
        "task_id": ID,
        "state": {"type": "string", "enum": list(TaskState), "description": "Its new state."},
    },
    "required": ["task_id", "state"],
    "additionalProperties": False,
}
LOOKED = "Think about what you have learned, and what it means for the plan."
CHANGED = "Think about how this change affects the plan, and check it."
RAN = "Think about what the output says, and what it means for the plan."
TALKED = "You have thought enough: act on it now."
HINTS: Mapping[str | None, str] = {
    None: "Begin by looking around: list the files.",
    **dict.fromkeys(("run", "logs", "send", "screen", "wait_for", "ipython"), RAN),
    **dict.fromkeys(
        ("read", "list", "search", "browse", "recall", "open", "search_dir", "search_file", "find_file"), LOOKED
    ),
    **dict.fromkeys(("write", "edit", "create", "move", "delete"), CHANGED),
    **dict.fromkeys(("message", "think"), TALKED),
    **dict.fromkeys(("add_task", "modify_task"), "Now take the next action on the task that is in progress."),
}


class PlanKit(Kit):
    """``add_task`` and ``modify_task``. The run cannot be finished while tasks are open."""

    name = "plan"

    def __init__(self, setting: Place) -> None:  # noqa: ARG002 - a plan needs nothing of where it is made
        self.plan = Plan()
        self._last: str | None = None
        self._actions = (
            Action(
                "add_task",
                self._add,
                "Add a task to the plan, with the tasks it consists of. Tasks that follow each other stand side by side, in order.",
                ADD,
            ),
            Action(
                "modify_task",
                self._modify,
                "Put a task into another state. Closing one (completed, verified, abandoned) closes the tasks in it.",
                MODIFY,
            ),
        )

    def actions(self) -> Sequence[Action]:
        """See ``Kit``."""
        return self._actions

    def describe(self) -> Mapping[str, str]:
        """The plan, where the model stands in it, and what to do after the last action."""
        lines = [self.plan.to_text(), status(self.plan), "" if self.plan.closed else HINTS.get(self._last, "")]
        return {"plan": "\n".join(line for line in lines if line)}

    def hooks(self) -> Sequence[Hooks]:
        """See ``Kit``."""
        return (_LastAction(self),)

    def objection(self, action: str) -> SandboxError | None:
        """Tasks that are not closed, if the run is to be finished."""
        left = self.plan.unfinished()
        if action not in ("finish", "submit") or not left:
            return None
        goals = [f"{ident} ({self.plan.task(ident).goal[:60]})" for ident in left[:5]]
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return SandboxError(
            AgentErrorCode.tasks_open,
            f"{'This task of the plan is' if len(left) == 1 else 'These tasks of the plan are'} open: {', '.join(goals)}{more}.",
            f"Do what is left to do. Close what is done with modify_task(task_id={left[-1]!r}, state='completed'), "
            "and what you give up with state='abandoned'.",
            next_tool="modify_task",
        )

    def snapshot(self) -> Any:
        """The plan, and the last action."""
        return {**self.plan.to_dict(), "last": self._last}

    def restore(self, state: Any) -> None:
        """See ``Kit``."""
        self.plan = Plan.from_dict(state)
        last = state.get("last")
        self._last = last if isinstance(last, str) else None

    def begin(self, memory: Memory) -> None:
        """A plan that is closed belongs to an earlier task: a new one begins with an empty plan."""
        if self.plan.closed and memory.items and memory.items[-1]["role"] == "user":
            self.plan, self._last = Plan(), None

    def did(self, tool: str | None) -> None:
        """What the last action was."""
        self._last = tool

    def _add(self, parent: str, goal: str, subtasks: Sequence[Any] = ()) -> str:
        task = task_of({"goal": goal, "subtasks": subtasks})
        self.plan, ident = self.plan.add(parent, task)
        return f"Added the task {ident}. The plan now:\n{self.plan.to_text()}"

    def _modify(self, task_id: str, state: str) -> str:
        self.plan = self.plan.modify(task_id, state_of(state))
        return f"The task {task_id} is {state}. The plan now:\n{self.plan.to_text()}"


class _LastAction(Hooks):
    def __init__(self, kit: PlanKit) -> None:
        self._kit = kit

    def on_step_start(self, step: Step, memory: Memory) -> None:
        if step.number == 1:
            self._kit.begin(memory)

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self._kit.did(step.tool)


def status(plan: Plan) -> str:
    """Where the model stands in its plan, and what that asks of it, in a sentence or two."""
    if not plan.tasks:
        return "There is no plan yet: add its first tasks with add_task."
    if plan.closed:
        return "All tasks are closed: finish."
    current = plan.current()
    if current is None:
        return f"No task is in progress: mark the one you take on next, say {plan.unfinished()[0]}, with modify_task."
    ident, task = current
    working = f"You are working on {ident}: {task.goal}."
    if not task.subtasks:
        return f"{working} If it cannot be reached and checked in one action, break it down now with add_task."
    left = [f"{ident}.{number}" for number, inner in enumerate(task.subtasks) if not inner.state.closed]
    if left:
        return f"{working} Mark the task in it that you take on next, say {left[0]}, as in_progress."
    return f"{working} All tasks in it are closed: check that it is reached, then close it."


def finish_when_plan_closed(brain: Brain, setting: Place) -> Brain:
    """``brain``, which is not asked any more once the plan is closed: the run is then finished with a summary of the plan.

    An agent whose results are more than a summary is asked for them all the same, and so is one whose run goes on after that: a
    check refused its end. Raises SandboxError ``invalid_configuration`` for an agent without a plan.
    """
    kit = next((kit for kit in setting.kits if isinstance(kit, PlanKit)), None)
    if kit is None:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            "finish_when_plan_closed needs a plan.",
            'Add "plan" to the actions of the agent.',
        )
    wanted = set(getattr(setting.spec, "outputs", {}).get("properties", ()))
    tried = False

    def asked(prompt: Any, /) -> Any:
        nonlocal tried
        if not kit.plan.closed or wanted - {"summary"} or tried:
            tried = tried and kit.plan.closed
            return brain(prompt)
        tried = True
        return {
            "thought": "The plan is closed.",
            "tool": "finish",
            "args": {"summary": f"The plan is closed.\n{kit.plan.to_text()}"},
        }

    return asked
