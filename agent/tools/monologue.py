"""The kit ``monologue``: thinking aloud between actions, and a hint at each step whether to think or to act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.kits import Kit, KitContext
from agent.core.loop.hooks import Hooks, Step
from agent.memory import Memory
from sandbox.environment.call_errors import answered

HINTS = {
    "beginning": "You are just getting started: state the task in a message, in your own words, and ask yourself where to begin.",
    "thought": "You have thought. Now act: one action that moves you forward or tells you more.",
    "thought long": "You have thought several times in a row. It is time to act.",
    "acted": "Look at what came of it. Write a message on what it means and what to do next, before you act again.",
    "failed": "That failed. Write a message on why it failed, before you try anything else.",
}
MANY_THOUGHTS = 2
SHOWN_COMMANDS = 20


class MonologueKit(Kit, Hooks):
    """The action ``message``, which does not wait for an answer, a hint after each step, and a list of running commands."""

    name = "monologue"

    def __init__(self, setting: KitContext) -> None:
        self._environment = setting.environment
        self._last = "beginning"
        self._thoughts = 0
        self._action = Action(
            name="message",
            function=lambda content: f"Noted ({len(content.split())} words).",
            description="Write down a thought: what something means, why it failed, what to do next. Changes nothing.",
            parameters={
                "type": "object",
                "properties": {"content": {"type": "string", "minLength": 1, "description": "The thought."}},
                "required": ["content"],
                "additionalProperties": False,
            },
        )

    def actions(self) -> Sequence[Action]:
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        return (self,)

    def on_step_start(self, step: Step, memory: Memory) -> None:
        """Start again with each run."""
        if step.number == 1 and len(memory.items) <= 1:
            self._last, self._thoughts = "beginning", 0

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Note the kind of step, for the next hint."""
        if step.tool == self._action.name:
            self._thoughts += 1
            self._last = "thought long" if self._thoughts >= MANY_THOUGHTS else "thought"
            return
        self._thoughts = 0
        self._last = "failed" if failed(step.envelope or {}) else "acted"

    def describe(self) -> Mapping[str, str]:
        """Return the commands in the background, if any, and the hint."""
        return {**self._running(), "hint": HINTS[self._last]}

    def _running(self) -> dict[str, str]:
        answer = answered(self._environment.processes)
        commands = [c for c in answer.result.commands if c.running] if answer.ok else []
        lines = [f"{c.id}: {' '.join(c.command.split())[:200]}" for c in commands[:SHOWN_COMMANDS]]
        if not lines:
            return {}
        return {"background commands": "\n".join([*lines, "kill ends one by its id, as in kill(id)."])}

    def snapshot(self) -> Any:
        return {"last": self._last, "thoughts": self._thoughts}

    def restore(self, state: Any) -> None:
        last = state.get("last") if isinstance(state, Mapping) else None
        thoughts = state.get("thoughts") if isinstance(state, Mapping) else None
        if last not in HINTS or not isinstance(thoughts, int):
            raise ValueError("This is not a state of the kit monologue.")
        self._last, self._thoughts = str(last), thoughts


def failed(envelope: Mapping[str, Any]) -> bool:
    """Return whether an action failed, or was a command that failed."""
    result = envelope.get("result")
    status = result.get("exit_code") if isinstance(result, Mapping) else None
    return envelope.get("tool_executed") is not True or status not in (None, 0)
