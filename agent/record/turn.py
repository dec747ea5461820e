"""The step under way as a recorder sees it, and the events that it becomes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.core.budget import Meter, Usage
from agent.core.prompt import Prompt
from agent.core.registry import ActionRegistry
from agent.record.store.chain import canonical
from agent.record.store.run_record import StepRecord
from sandbox.envelope import jsonable

from . import events as ev
from .call_summary import summarize_args

UNUSED = Usage()


@dataclass(slots=True)
class Turn:
    """The step under way. ``replayed`` is its record if the run continues in the middle of it; ``open`` until it ended."""

    number: int
    replayed: StepRecord | None = None
    open: bool = True
    entered: set[int] = field(default_factory=set)  # calls that the driver began to carry out
    answered: set[int] = field(default_factory=set)
    used: Usage = UNUSED
    seconds: float = 0.0
    parts: dict[int, int] = field(default_factory=dict)


def set_back(meter: Meter, seconds: float) -> None:
    """Add to the time of the run, and of those above, the ``seconds`` from before it was resumed."""
    above: Meter | None = meter
    while above is not None:
        above.started -= seconds
        above = above.above


def message_event(message: Mapping[str, Any]) -> ev.Event:
    """Return the event for a message that was added."""
    if message.get("source") == "user" and message.get("role") == "user":
        return ev.UserSpoke(text=str(message["content"]), said=str(message.get("said", "")))
    return ev.MessageAdded(message=dict(message))


def call_of(actions: ActionRegistry | None, tool: str | None, args: Any) -> str | None:
    """Return a summary of the arguments for people; None if there is no such action."""
    action = None if actions is None else actions.get_action(tool)
    return None if action is None else summarize_args(args, action.parameters)


def digest_of_prompt(prompt: Any) -> str:
    """Return a digest that tells whether two prompts are equal; the prompt itself can be made again from the events."""
    told = prompt.to_dict() if isinstance(prompt, Prompt) else prompt
    return hashlib.sha256(canonical(jsonable(told)).encode()).hexdigest()
