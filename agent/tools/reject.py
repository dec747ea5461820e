"""The kit ``reject``: end a run because its task cannot be done, with the status ``rejected``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.kits import Kit
from agent.core.loop.hooks import Hooks, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory

NAME = "reject"


class RejectKit(Kit):
    """``reject(reason)`` ends the run as ``rejected``, with {"reason"} as its result.

    The loop ends a run as ``finished`` after any terminal action; the hook of this kit sees the answer first.
    """

    name = NAME

    def __init__(self, setting: object) -> None:  # noqa: ARG002 - kits are made with a setting
        self._action = Action(
            NAME,
            _reject,
            "End the run without having done the task: it cannot be done here, or makes no sense. Say why.",
            {
                "type": "object",
                "properties": {
                    "reason": {"type": "string", "minLength": 1, "description": "Why, and what is missing."}
                },
                "required": ["reason"],
                "additionalProperties": False,
            },
            terminal=True,
            metadata={"idempotent": True},
        )

    def actions(self) -> Sequence[Action]:
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
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
