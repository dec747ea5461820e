"""The step under way as a recorder sees it, and what of it becomes events."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.store.chain import canonical
from agent.store.reading import StepRecord
from sandbox.envelope import jsonable

from . import events as ev
from .budget import Meter, Usage
from .prompt import Prompt
from .registry import ActionRegistry
from .show import main_argument

UNUSED = Usage()


@dataclass(slots=True)
class Turn:
    """The step under way. ``replayed`` is what the log has of it, where it is gone through again; ``open`` until it ended."""

    number: int
    replayed: StepRecord | None = None
    open: bool = True
    answered: bool = False
    used: Usage = UNUSED
    seconds: float = 0.0
    parts: int = 0


def set_back(meter: Meter, seconds: float) -> None:
    """Have the run, and those above, last longer by what they lasted before they were resumed."""
    above: Meter | None = meter
    while above is not None:
        above.started -= seconds
        above = above.above


def message_event(message: Mapping[str, Any]) -> ev.Event:
    """The event of a message that was added."""
    if message.get("source") == "user" and message.get("role") == "user":
        return ev.UserSpoke(text=str(message["content"]), said=str(message.get("said", "")))
    return ev.MessageAdded(message=dict(message))


def call_of(actions: ActionRegistry | None, tool: str | None, args: Any) -> str | None:
    """The arguments as a person reads them; None where there is no such action."""
    action = None if actions is None else actions.get_action(tool)
    return None if action is None else main_argument(args, action.parameters)


def digest_of_prompt(prompt: Any) -> str:
    """What tells whether two prompts were the same; the prompt itself can be made again from the events."""
    told = prompt.to_dict() if isinstance(prompt, Prompt) else prompt
    return hashlib.sha256(canonical(jsonable(told)).encode()).hexdigest()
