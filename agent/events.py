"""Events: what happened in a run, as values. Pure: where they are kept is ``agent.store``'s business.

In the order of a step: StepBegan, ActionDecided (with the reply, before anything is carried out), the approvals, ActionStarted
(just before it is handed to the environment), ActionExecuted, StateChanged, StepEnded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

JSON: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all kinds. ``durable`` ones are on the disk, not only with the kernel, when ``append`` returns."""

    durable: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return type(self).__name__

    def to_data(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan(Event):
    """The first event of a run. ``options`` are what is needed to make its agent and sandbox again, ``budget`` its limits, ``step``
    that of the run above in which it began; 0 for one that is no part of another.
    """

    durable = True
    task: str
    agent: str = ""
    options: JSON = field(default_factory=dict)
    budget: JSON = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAdded(Event):
    """A message was added to the memory that is not a step's own decision or answer."""

    message: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpoke(Event):
    """The user said something in the middle of the run; it is in the memory from here on. ``said`` is the id of the message where
    it came from another process.
    """

    durable = True
    text: str
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegan(Event):
    """A turn of the loop began; ``step`` counts from 1 over all parts of a run that was resumed."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDecided(Event):
    """The brain replied and the reply was read; ``tool`` is None where no action could be. ``usage`` is that of the calls.
    ``thought`` is what the reply says beside its action, ``call`` the arguments in a few lines, by the order in which the action
    declares them; both are None in logs from before they were kept, ``call`` where there is no such action, too.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(Event):
    """Somebody has to approve the action before it is carried out."""

    durable = True
    step: int
    tool: str
    args: Any
    risk: str = ""
    reasons: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStarted(Event):
    """The action is about to be handed to the environment; ``request_id`` is that of a request that can be asked again."""

    durable = True
    step: int
    tool: str
    args: Any
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionExecuted(Event):
    """The answer to the decision. ``handed_over`` is False where the environment was never asked: refused, unknown, rejected.
    ``shown`` is the answer in the action's own words, where it has any beside those of an operation.
    """

    durable = True
    step: int
    envelope: JSON
    seconds: float = 0.0
    handed_over: bool = True
    shown: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesChanged(Event):
    """What the action has made of the workspace, as a diff in git's form; "" with words in ``left_out`` where it is not known."""

    step: int
    patch: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(Event):
    """The state of a kit, as its ``snapshot`` gave it, is no longer what it was."""

    kit: str
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCondensed(Event):
    """What a memory shows is no longer all it was told; ``state`` is its own ``snapshot``. Nothing is deleted."""

    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(Event):
    """Decision and answer are in the memory. ``notices`` are the answer's, where the loop added some; ``usage`` is what was
    used since the decision; ``implied`` is False where the memory keeps a step in another form, which MessageAdded then tell.
    """

    step: int
    notices: list[Any] | None = None
    usage: JSON = field(default_factory=dict)
    seconds: float = 0.0
    implied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed(Event):
    """A connection of the sandbox ended or was refused; ``connection`` has the fields of ``sandbox.Connection``."""

    connection: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """A run that had stopped goes on. ``fresh`` says that its sandbox is a new one, ``options`` what else is different now.

    ``notes`` are messages that are added to the memory: at once, or after the step that it goes on in the middle of. ``usage`` and
    ``seconds`` are what was used until then, without what the parts that are still open have used: they tell that themselves.
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
    """How it ended, with what it and all its parts used. A paused run has this event, too: RunResumed may follow."""

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
    """The event of that kind; fields that this version does not know are left out. Raises ValueError for what is none."""
    made = KINDS.get(kind)
    if made is None:
        raise ValueError(f"there is no kind of event {kind[:80]!r}")
    known = {f.name: isinstance(f.default, tuple) for f in fields(made)}
    try:
        given = {name: value for name, value in data.items() if name in known}
        # JSON has no tuples
        return made(**{n: tuple(v) if known[n] and isinstance(v, list) else v for n, v in given.items()})
    except TypeError as error:
        raise ValueError(f"an event {kind} lacks a field: {error}") from error
