"""The action that ends a run with the words that the task cannot be done: another outcome than ``finished``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.actions import Action
from agent.hooks import Hooks, Step
from agent.kits import Kit
from agent.memory import Memory
from agent.status import RunStatus, StopRun

NAME = "reject"


class RejectKit(Kit):
    """``reject(reason)``: the run ends as ``rejected``, with {"reason"} as its result.

    The loop would end it as ``finished``, as after every terminal action. A hook is told of the answer before that, and ends the
    run with the status of its own.
    """

    name = NAME

    def __init__(self, setting: object) -> None:  # noqa: ARG002  kits are made of a setting
        self._action = Action(
            NAME,
            _reject,
            "End the run without having done the task: it cannot be done here, or makes no sense. Say why.",
            {
                "type": "object",
                "properties": {"reason": {"type": "string", "minLength": 1, "description": "Why, and what is missing."}},
                "required": ["reason"],
                "additionalProperties": False,
            },
            terminal=True,
            metadata={"idempotent": True},
        )

    def actions(self) -> Sequence[Action]:
        """See the base class."""
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        """See the base class."""
        return (_Rejected(),)


def _reject(reason: str) -> dict[str, Any]:
    return {"reason": reason}


class _Rejected(Hooks):
    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        envelope = step.envelope or {}
        if step.tool == NAME and envelope.get("tool_executed") is True:
            result = envelope.get("result")
            reason = result.get("reason") if isinstance(result, dict) else None
            raise StopRun(f"The agent rejected the task: {reason}", RunStatus.rejected, result)
