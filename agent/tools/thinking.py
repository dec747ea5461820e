"""Two tools that need no sandbox: think changes nothing, finish ends the run."""

from __future__ import annotations

from typing import Any

from agent.actions import Action


def think_action() -> Action:
    """A place to reason between actions."""
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
    )


def finish_action() -> Action:
    """The action that ends the run."""
    return Action(
        name="finish",
        function=_finish,
        description="End the run: when the task is done and checked, or cannot be done; the summary says which.",
        parameters={
            "type": "object",
            "properties": {"summary": {"type": "string", "description": "What was done and checked, what is left."}},
            "required": ["summary"],
            "additionalProperties": False,
        },
        terminal=True,
    )


def _think(thought: str) -> str:
    return f"Noted ({len(thought.split())} words)."


def _finish(summary: str) -> dict[str, Any]:
    return {"summary": summary}
