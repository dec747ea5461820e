"""The kit ``plan``: a tree of tasks that the model edits and sees in every prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.kits import Kit, KitContext
from agent.core.loop.hooks import Hooks, Step
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Ask
from agent.errors import AgentErrorCode
from agent.memory import Memory
from sandbox.errors import SandboxError, configuration_error

from .plan_tree import Plan, TaskState, state_of, task_of

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
        "parent": {**ID, "description": "Id of the task above it; empty for a task at the top of the plan."},
        "goal": {"type": "string", "description": "What the task must achieve, in one line."},
        "subtasks": {"type": "array", "items": SUBTASK, "description": "Its subtasks: goals, or goals with subtasks."},
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

    def __init__(self, setting: KitContext) -> None:  # noqa: ARG002 - kits are made with a setting
        self.plan = Plan()
        self._last: str | None = None
        self._actions = (
            Action(
                "add_task",
                self._add,
                "Add a task to the plan, with its subtasks. Tasks that follow each other are siblings, in order.",
                ADD,
            ),
            Action(
                "modify_task",
                self._modify,
                "Change the state of a task. Closing it (completed, verified, abandoned) also closes its subtasks.",
                MODIFY,
            ),
        )

    def actions(self) -> Sequence[Action]:
        return self._actions

    def describe(self) -> Mapping[str, str]:
        """Return the plan, what the model is working on, and a hint that depends on the last action."""
        lines = [self.plan.to_text(), status(self.plan), "" if self.plan.closed else HINTS.get(self._last, "")]
        return {"plan": "\n".join(line for line in lines if line)}

    def hooks(self) -> Sequence[Hooks]:
        return (_LastAction(self),)

    def objection(self, action: str) -> SandboxError | None:
        """Return the tasks that are not closed, as the reason why the run cannot finish."""
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
        """Return the plan and the last action."""
        return {**self.plan.to_dict(), "last": self._last}

    def restore(self, state: Any) -> None:
        self.plan = Plan.from_dict(state)
        last = state.get("last")
        self._last = last if isinstance(last, str) else None

    def begin(self, memory: Memory) -> None:
        """Begin with an empty plan if the present one is closed: it belongs to an earlier task."""
        if self.plan.closed and memory.items and memory.items[-1]["role"] == "user":
            self.plan, self._last = Plan(), None

    def did(self, tool: str | None) -> None:
        """Note the last action."""
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
    """Return in one or two sentences what the model is working on and what to do next."""
    if not plan.tasks:
        return "There is no plan yet: add its first tasks with add_task."
    if plan.closed:
        return "All tasks are closed: finish."
    current = plan.current()
    if current is None:
        return f"No task is in progress: mark the one you work on next, say {plan.unfinished()[0]}, with modify_task."
    ident, task = current
    working = f"You are working on {ident}: {task.goal}."
    if not task.subtasks:
        return f"{working} If one action cannot reach and check this goal, split it into subtasks now with add_task."
    left = [f"{ident}.{number}" for number, inner in enumerate(task.subtasks) if not inner.state.closed]
    if left:
        return f"{working} Mark the subtask that you work on next, say {left[0]}, as in_progress."
    return f"{working} All its subtasks are closed: check that its goal is reached, then close it."


class FinishWhenPlanClosed(Layer):
    """A layer that finishes the run with a summary of the plan, without asking the brain, once the plan is closed.

    The brain is asked all the same if the agent must return more than a summary, or if a check refused the end. A run of an agent
    without the kit ``plan`` raises SandboxError ``invalid_configuration``.
    """

    def __init__(self) -> None:
        self._kit: PlanKit | None = None
        self._is_tried = self._is_enough = False

    def for_run(self, agent: Any) -> FinishWhenPlanClosed:
        """Return the layer for the plan of ``agent``."""
        layer = FinishWhenPlanClosed()
        layer._kit = next((kit for kit in agent.kits if isinstance(kit, PlanKit)), None)
        if layer._kit is None:
            raise configuration_error(
                "finish_when_plan_closed needs a plan.", 'Add "plan" to the actions of the agent.'
            )
        finish = agent.actions.get_action("finish")
        layer._is_enough = finish is not None and set(finish.parameters.get("properties", ())) <= {"summary"}
        return layer

    def around_ask(self, ask: Ask) -> Flow:
        kit = self._kit
        if kit is None or not kit.plan.closed or not self._is_enough or self._is_tried:
            self._is_tried = self._is_tried and kit is not None and kit.plan.closed
            return (yield ask)
        self._is_tried = True
        return {
            "thought": "The plan is closed.",
            "tool": "finish",
            "args": {"summary": f"The plan is closed.\n{kit.plan.to_text()}"},
        }
