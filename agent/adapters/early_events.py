"""Events of the early contract: a name and a dict, for what is done as for what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.envelope import jsonable

from . import actions as act
from . import observations as obs
from .reading import MalformedActionError, action_from_dict

RUNNABLE = frozenset({"run", "kill", "browse", "read", "write", "recall"})


@dataclass
class Event:
    """``action`` is read, write, run, kill, browse, recall, think or finish; of what comes of them ``output`` or ``error``; and
    ``message`` for what the user said.
    """

    action: str
    args: dict[str, Any] = field(default_factory=dict)
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-ready data."""
        return {"action": self.action, "args": jsonable(self.args)}

    def is_runnable(self) -> bool:
        """Whether an event with its output follows."""
        return self.action in RUNNABLE

    @classmethod
    def from_dict(cls, data: Any) -> Event:
        """The event. Raises MalformedActionError."""
        args = data.get("args") if isinstance(data, Mapping) else None
        if (
            not isinstance(data, Mapping)
            or not isinstance(data.get("action"), str)
            or not isinstance(args, Mapping | None)
        ):
            raise MalformedActionError(f"This is no event: {data!r:.200}.")
        return cls(data["action"], dict(args or {}))


def action_of(event: Any) -> act.Action:
    """The action of the late contract that an event of ``step`` asks for. Raises MalformedActionError."""
    name, args = _parts(event)
    if name == "finish":
        return act.AgentFinishAction(outputs={str(k): v for k, v in jsonable(args).items()})
    return action_from_dict({"action": name, "args": args})


def _parts(event: Any) -> tuple[Any, Any]:
    if isinstance(event, Mapping):
        if "action" not in event:
            raise MalformedActionError(f"'action' is missing in {event!r:.200}.")
        return event["action"], event.get("args") or {}
    if not hasattr(event, "action"):
        raise MalformedActionError(f"step answered {event!r:.200}, which is no event.")
    return event.action, getattr(event, "args", None) or {}


def event_of(observation: obs.Observation) -> Event | None:
    """The event that tells an observation; None for one that tells nothing."""
    match observation:
        case obs.ErrorObservation() | obs.BrowserOutputObservation(status_code=0):
            return Event("error", {"error": observation.content})
        case obs.NullObservation():
            return None
        case obs.CmdOutputObservation():
            fields = {"exit_code": observation.exit_code, "command": observation.command}
            if observation.command_id >= 0:
                fields["command_id"] = observation.command_id
            return Event("output", {"output": observation.content, **fields})
        case obs.AgentRecallObservation():
            return Event("output", {"output": "\n".join(observation.memories), "memories": observation.memories})
    return Event("output", {"output": observation.content, **observation.body(observation.fields())["extras"]})
