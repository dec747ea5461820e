"""The kit ``monologue``: thinking aloud between actions, and a hint at each turn whether to think or to act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agent.actions import Action
from agent.hooks import Hooks, Step
from agent.kits import Kit
from agent.memory import Memory
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered

HINTS = {
    "beginning": "You are just getting started: state the task in a message, in your own words, and ask yourself where to begin.",
    "thought": "You have thought. Now act: one action that brings you on or tells you more.",
    "thought long": "You have thought several times in a row. It is time to act.",
    "acted": "Look at what came of it. Write a message on what it means and what to do next, before you act again.",
    "failed": "That failed. Write a message on why it failed, before you try anything else.",
}
MANY_THOUGHTS = 2
SHOWN_COMMANDS = 20


class InEnvironment(Protocol):
    """What the kit needs of its setting."""

    @property
    def environment(self) -> Environment:
        """Where commands run."""


class MonologueKit(Kit, Hooks):
    """The action ``message``, which waits for nobody, a hint that follows from the last step, and the commands that run."""

    name = "monologue"

    def __init__(self, setting: InEnvironment) -> None:
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
        """See the base class."""
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        """See the base class."""
        return (self,)

    def on_step_start(self, step: Step, memory: Memory) -> None:
        """A new run is a new beginning."""
        if step.number == 1 and len(memory.items) <= 1:
            self._last, self._thoughts = "beginning", 0

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Take note of what kind of step it was."""
        if step.tool == self._action.name:
            self._thoughts += 1
            self._last = "thought long" if self._thoughts >= MANY_THOUGHTS else "thought"
            return
        self._thoughts = 0
        self._last = "failed" if failed(step.envelope or {}) else "acted"

    def describe(self) -> Mapping[str, str]:
        """The commands in the background, where there are any, and the hint."""
        return {**self._running(), "hint": HINTS[self._last]}

    def _running(self) -> dict[str, str]:
        answer = answered(self._environment.processes)
        commands = [c for c in answer.result.commands if c.running] if answer.ok else []
        lines = [f"{c.id}: {' '.join(c.command.split())[:200]}" for c in commands[:SHOWN_COMMANDS]]
        if not lines:
            return {}
        return {"background commands": "\n".join([*lines, "kill ends one by its id, as in kill(id)."])}

    def snapshot(self) -> Any:
        """See the base class."""
        return {"last": self._last, "thoughts": self._thoughts}

    def restore(self, state: Any) -> None:
        """See the base class."""
        last = state.get("last") if isinstance(state, Mapping) else None
        thoughts = state.get("thoughts") if isinstance(state, Mapping) else None
        if last not in HINTS or not isinstance(thoughts, int):
            raise ValueError("This is no state of the kit monologue.")
        self._last, self._thoughts = str(last), thoughts


def failed(envelope: Mapping[str, Any]) -> bool:
    """Whether an action failed, or was a command that did."""
    result = envelope.get("result")
    status = result.get("exit_code") if isinstance(result, Mapping) else None
    return envelope.get("tool_executed") is not True or status not in (None, 0)
