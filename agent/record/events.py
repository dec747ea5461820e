"""Events: what happened in a run, as values. ``agent.record.store`` stores them.

The order within a step: StepBegan, ActionDecided (with the reply, before anything is carried out), the approvals, ActionStarted
(just before the environment gets the action), ActionExecuted, FilesChanged, StateChanged, StepEnded. The events about an action
have its ``index`` among the calls of the reply, from 0; logs from before a reply could have several calls lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cache
from typing import Any, ClassVar, TypeAlias

from pydantic import TypeAdapter, ValidationError

from sandbox.frozen import dataclass

JSON: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all kinds. ``append`` returns once ``durable`` ones are on the disk, not only with the kernel."""

    durable: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return type(self).__name__

    def to_data(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan(Event):
    """The first event of a run. Its agent and sandbox can be made again from ``options``; ``budget`` has its limits. It began in
    ``step`` of the parent run, which is 0 if there is none.
    """

    durable = True
    task: str
    agent: str = ""
    options: JSON = field(default_factory=dict)
    budget: JSON = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAdded(Event):
    """The memory got a message that is not a step's own decision or answer."""

    message: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpoke(Event):
    """A message of the user in the middle of the run, in the memory from here on. ``said`` is its id if another process sent it."""

    durable = True
    text: str
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegan(Event):
    """A step began. ``step`` counts from 1, and goes on counting when the run is resumed."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDecided(Event):
    """The brain replied, and the reply was parsed; ``tool`` is None if that was not possible. ``usage`` is that of the model calls.
    ``thought`` is the text of the reply beside its actions, ``call`` a summary of the arguments, in the order in which the action
    declares them. Both are None in logs from before they were recorded; ``call`` also if there is no such action.
    Of several calls, the first one's event has the reply, the thought, the prompt and the usage.

    ActionStarted, which is durable, brings it to the disk before anything is carried out.
    """

    step: int
    reply: Any
    tool: str | None = None
    args: Any = None
    prompt_sha256: str = ""
    usage: JSON = field(default_factory=dict)
    thought: str | None = None
    call: str | None = None
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(Event):
    """The action waits for an approval."""

    durable = True
    step: int
    tool: str
    args: Any
    risk: str = ""
    reasons: tuple[str, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(Event):
    """``verdict`` is approve, edit (``args`` are those to carry out) or reject; ``for_session`` holds for later calls, too."""

    durable = True
    step: int
    tool: str
    verdict: str
    risk: str = ""
    args: Any = None
    reason: str = ""
    for_session: bool = False
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStarted(Event):
    """The environment is about to get the action. A request with a ``request_id`` can be repeated safely."""

    durable = True
    step: int
    tool: str
    args: Any
    request_id: str | None = None
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionExecuted(Event):
    """The answer to the decision. ``handed_over`` is False if the environment never got it: it was refused, unknown or rejected.
    ``shown`` is the answer in the action's own words, if it does not use those of an operation.
    """

    durable = True
    step: int
    envelope: JSON
    seconds: float = 0.0
    handed_over: bool = True
    shown: str | None = None
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesChanged(Event):
    """The change of the workspace, as a diff in git's form. If it is not known, ``patch`` is "" and ``left_out`` says why."""

    step: int
    patch: str
    left_out: tuple[str, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(Event):
    """The state of a kit changed; ``state`` is its ``snapshot``."""

    kit: str
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCondensed(Event):
    """The memory no longer shows all of its messages; ``state`` is its ``snapshot``. Nothing is deleted."""

    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(Event):
    """Decision and answers are in the memory. ``notices`` are those of the first answer, if the loop added some; ``other_notices``
    those of the others. ``usage`` is what was used since the decision. ``implied`` is False if the memory has the step in another
    form, which is then in events MessageAdded.
    """

    step: int
    notices: list[Any] | None = None
    usage: JSON = field(default_factory=dict)
    seconds: float = 0.0
    implied: bool = True
    other_notices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed(Event):
    """A connection of the sandbox ended or was refused; ``connection`` has the fields of ``sandbox.Connection``."""

    connection: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """The run goes on after it stopped. ``fresh`` says that its sandbox is new; ``options`` are those that changed.

    ``notes`` are messages for the memory: added at once, or behind the step that the run goes on in. ``usage`` and ``seconds`` are
    what was used until then, without the subruns that are still open, whose own events have theirs.
    """

    durable = True
    fresh: bool = False
    notes: tuple[JSON, ...] = ()
    options: JSON = field(default_factory=dict)
    budget: JSON = field(default_factory=dict)
    usage: JSON = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run ended; ``usage`` and ``seconds`` include its subruns. A paused run has this event, too, and RunResumed may follow."""

    durable = True
    status: str
    reason: str = ""
    result: Any = None
    usage: JSON = field(default_factory=dict)
    seconds: float = 0.0


KINDS: Mapping[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        RunBegan, MessageAdded, UserSpoke, StepBegan, ActionDecided, ApprovalRequested, ApprovalAnswered, ActionStarted,
        ActionExecuted, FilesChanged, StateChanged, MemoryCondensed, StepEnded, ConnectionClosed, RunResumed, RunEnded,
    )
}  # fmt: skip


def event_of(kind: str, data: Mapping[str, Any]) -> Event:
    """Return the event of that kind, without fields that this version does not know.

    Raises ValueError if there is no such kind, or if a field is missing or has another type: a log may come from anyone.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind[:80]!r} is not a kind of event")
    try:
        event: Event = _adapter(kind).validate_python(dict(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"an event {kind} is invalid in {place!r:.200}: {first['msg']}") from error
    return event


@cache
def _adapter(kind: str) -> TypeAdapter[Event]:
    return TypeAdapter(KINDS[kind])
