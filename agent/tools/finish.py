"""Two tools that need no sandbox: ``think`` changes nothing, ``finish`` ends the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.core.actions import Action


def think_action() -> Action:
    """Return the action ``think``, a place to reason between actions."""
    return Action(
        name="think",
        function=_think,
        description="Write down a thought: a plan, a conclusion, what to look at next. Changes nothing.",
        parameters={
            "type": "object",
            "properties": {"thought": {"type": "string", "description": "The thought."}},
            "required": ["thought"],
            "additionalProperties": False,
        },
        metadata={"idempotent": True, "risk": "low"},
    )


SUMMARY: Mapping[str, Any] = {
    "type": "object",
    "properties": {"summary": {"type": "string", "description": "What was done and checked, what is left."}},
    "required": ["summary"],
    "additionalProperties": False,
}


def finish_action(outputs: Mapping[str, Any] | None = None) -> Action:
    """Return the action ``finish``, which ends the run. Its arguments are the run's result and match the JSON schema
    ``outputs``; without one, or without properties in it, the result is a summary.
    """
    return Action(
        name="finish",
        function=_finish,
        description="End the run: when the task is done and checked, or cannot be done; the arguments say which.",
        parameters=outputs if outputs and outputs.get("properties") else SUMMARY,
        terminal=True,
        metadata={"idempotent": True, "risk": "low"},
    )


def _think(thought: str) -> str:
    return f"Noted ({len(thought.split())} words)."


def _finish(**outputs: Any) -> dict[str, Any]:
    return outputs
