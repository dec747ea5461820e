"""A run as its events tell it: what to show of it, and all that is needed to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agent import events as ev
from agent.answers import with_further
from agent.budget import Usage
from agent.errors import AgentErrorCode
from agent.hooks import step_text
from agent.messages import Message, exchange
from agent.model.replay import restored
from agent.model.response import text_of_reply
from sandbox.errors import SandboxError

from .folders import checked_run
from .log import EventLog, Logged


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """A step as far as it got. ``decided`` is its decision, ``envelope`` the answer; ``ended`` is False for the last step of a
    run that was cut off or paused in the middle of it. ``request_id`` belongs to ``started``.
    """

    number: int
    at: str
    decided: ev.ActionDecided | None = None
    requested: ev.ApprovalRequested | None = None
    answered: ev.ApprovalAnswered | None = None
    started: ev.ActionStarted | None = None
    executed: ev.ActionExecuted | None = None
    changed: ev.FilesChanged | None = None
    ended: bool = False
    notices: list[Any] | None = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    def __repr__(self) -> str:
        return step_text("StepRecord", self.number, self.tool, self.envelope, self.seconds)

    @property
    def tool(self) -> str | None:
        """The name of the tool; None where there was no decision, or none that could be read."""
        return None if self.decided is None else self.decided.tool

    @property
    def args(self) -> Any:
        """The arguments of the decision."""
        return None if self.decided is None else self.decided.args

    @property
    def reply(self) -> Any:
        """The brain's reply, as the loop got it."""
        return None if self.decided is None else restored(self.decided.reply)

    @property
    def thought(self) -> str:
        """What the reply says beside its action."""
        return "" if self.decided is None else thought_in(self.decided)

    @property
    def call(self) -> str | None:
        """The arguments of the decision in a few lines; None where the log does not have that."""
        return None if self.decided is None else self.decided.call

    @property
    def shown(self) -> str | None:
        """The answer in the action's own words, with all notices; None where it has none beside those of an operation."""
        if self.executed is None or not isinstance(self.executed.shown, str):
            return None
        before = self.executed.envelope.get("notices")
        return with_further(self.executed.shown, self.envelope or {}, before if isinstance(before, list) else [])

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The answer that is in the memory."""
        if self.executed is None:
            return None
        own = dict(self.executed.envelope)
        return own if self.notices is None else {**own, "notices": self.notices}


@dataclass(frozen=True, slots=True)
class Used:
    """What a run used."""

    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    def __sub__(self, other: Used) -> Used:
        """The rest, in which nothing is below 0: what a log says need not add up."""
        mine, theirs = asdict(self.usage), asdict(other.usage)
        rest = {name: max(round(mine[name] - theirs[name], 9), 0) for name in mine}
        return Used(Usage(**rest), max(self.seconds - other.seconds, 0.0))


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """A run with its steps. ``status`` is None until it has ended. ``messages`` are those of its memory, in order; ``notes``
    follow the step in which it continues. ``kits`` and ``condensed`` are the states to restore, ``children`` the runs that are
    parts of it. ``usage`` and ``seconds`` include all of these. ``parts`` are the children that began in the step that has not
    ended, with their usage, which is counted only in their own events.
    """

    run: str
    parent: str | None
    began: str
    task: str = ""
    agent: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=dict)
    last: str = ""
    status: str | None = None
    reason: str = ""
    result: Any = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)
    kits: dict[str, Any] = field(default_factory=dict)
    condensed: Any = None
    approved: list[ev.ApprovalAnswered] = field(default_factory=list)
    connections: list[Mapping[str, Any]] = field(default_factory=list)
    resumed: int = 0
    events: int = 0
    children: list[str] = field(default_factory=list)
    parts: dict[str, Used] = field(default_factory=dict)
    counts_parts: bool = False  # whether ``usage`` has what the parts used, as RunEnded tells it

    def __repr__(self) -> str:
        return f"RunRecord({self.run}, {self.status or 'not ended'}, {len(self.steps)} steps, {self.seconds:.1f} s)"

    @property
    def pending(self) -> StepRecord | None:
        """The step that has a decision and has not ended: the run continues there."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.decided is not None and not last.ended else None

    @property
    def ended_steps(self) -> int:
        """How many steps are behind it."""
        return sum(step.ended for step in self.steps)

    @property
    def own(self) -> Used:
        """Its usage without its open parts."""
        used = Used(self.usage, self.seconds)
        for part in self.parts.values():
            used -= part
        return used


def record_of(log: EventLog, run: str) -> RunRecord:
    """The run of that id. Raises SandboxError ``run_not_found``, ``log_unusable``."""
    return _record(log, log.found(run), ())


def _record(log: EventLog, run: str, above: tuple[str, ...]) -> RunRecord:
    try:
        record = folded(log.events(run))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise SandboxError(
            AgentErrorCode.log_unusable,
            f"The events of the run {run} make no sense: {type(error).__name__}: {error}.",
            f"See what was changed: gamebox runs verify {run}.",
        ) from error
    if record.parent is not None:
        checked_run(record.parent, log.path)
    begun = log.parts(record.run)
    record.children = [child for child, _ in begun]
    last = record.steps[-1] if record.steps else None
    if last is not None and not last.ended:
        _count_parts(log, record, [child for child, step in begun if step == last.number], (*above, record.run))
    return record


def _count_parts(log: EventLog, record: RunRecord, open_parts: list[str], above: tuple[str, ...]) -> None:
    """Count what the parts used that began in the step which has not ended."""
    for child in open_parts:
        if child in above:  # a run that is above itself is nonsense that is not followed
            continue
        part = _record(log, child, above)
        record.parts[child] = Used(part.usage, part.seconds)
        if not record.counts_parts:
            record.usage, record.seconds = record.usage + part.usage, record.seconds + part.seconds


def folded(events: Iterable[tuple[Logged, ev.Event]]) -> RunRecord:
    """The run that these events tell of, in their order; there must be one at least."""
    record: RunRecord | None = None
    for logged, event in events:
        if record is None:
            record = RunRecord(run=logged.run, parent=logged.parent, began=logged.at)
        record.last, record.events = logged.at, logged.id
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(record, event, logged)
    if record is None:
        raise ValueError("a run has one event at least")
    return record


def thought_in(event: ev.ActionDecided) -> str:
    """What the reply says beside its action; all of its text where the log is from before that was kept."""
    return event.thought if isinstance(event.thought, str) else text_of_reply(restored(event.reply))


def usage_of(data: Mapping[str, Any]) -> Usage:
    """The usage in an event; fields that are no numbers count nothing."""
    known = Usage.__dataclass_fields__
    numbers: dict[str, Any] = {k: v for k, v in data.items() if k in known and isinstance(v, int | float)}
    return Usage(**numbers)


def _began(record: RunRecord, event: ev.RunBegan, _: Logged) -> None:
    record.task, record.agent = event.task, event.agent
    record.options, record.budget = dict(event.options), dict(event.budget)


def _resumed(record: RunRecord, event: ev.RunResumed, _: Logged) -> None:
    record.status, record.reason, record.result = None, "", None
    record.resumed += 1
    record.options.update(event.options)
    record.budget.update(event.budget)
    record.notes += [dict(note) for note in event.notes]
    record.counts_parts = False
    if event.usage:
        record.usage, record.seconds = usage_of(event.usage), event.seconds
    if record.pending is None:
        _tell_notes(record)


def _message(record: RunRecord, event: ev.MessageAdded, _: Logged) -> None:
    record.messages.append(dict(event.message))


def _spoke(record: RunRecord, event: ev.UserSpoke, _: Logged) -> None:
    record.messages.append(spoken(event.text, event.said))


def spoken(text: str, said: str = "") -> Message:
    """What the user says in the middle of a run, as the memory has it; ``said`` is the id of a message from another process."""
    return {"role": "user", "content": text, "source": "user", **({"said": said} if said else {})}


def _step_began(record: RunRecord, event: ev.StepBegan, logged: Logged) -> None:
    if record.steps and record.steps[-1].number == event.step and not record.steps[-1].ended:
        return  # it is gone through again after the run was resumed
    record.steps.append(StepRecord(number=event.step, at=logged.at))


def _decided(record: RunRecord, event: ev.ActionDecided, _: Logged) -> None:
    step = record.steps[-1]
    step.decided = event
    _use(record, step, event.usage)


def _requested(record: RunRecord, event: ev.ApprovalRequested, _: Logged) -> None:
    record.steps[-1].requested = event


def _answered(record: RunRecord, event: ev.ApprovalAnswered, _: Logged) -> None:
    record.steps[-1].answered = event
    if event.for_session and event.verdict != "reject":
        record.approved.append(event)


def _started(record: RunRecord, event: ev.ActionStarted, _: Logged) -> None:
    record.steps[-1].started = event


def _executed(record: RunRecord, event: ev.ActionExecuted, _: Logged) -> None:
    record.steps[-1].executed = event


def _files(record: RunRecord, event: ev.FilesChanged, _: Logged) -> None:
    record.steps[-1].changed = event


def _changed(record: RunRecord, event: ev.StateChanged, _: Logged) -> None:
    record.kits[event.kit] = event.state


def _condensed(record: RunRecord, event: ev.MemoryCondensed, _: Logged) -> None:
    record.condensed = event.state


def _step_ended(record: RunRecord, event: ev.StepEnded, _: Logged) -> None:
    step = record.steps[-1]
    step.ended, step.notices, step.seconds = True, event.notices, event.seconds
    record.seconds += event.seconds
    _use(record, step, event.usage)
    if event.implied and step.envelope is not None:
        record.messages += exchange(step.reply, step.envelope)
    _tell_notes(record)


def _tell_notes(record: RunRecord) -> None:
    record.messages += record.notes
    record.notes = []


def _connection(record: RunRecord, event: ev.ConnectionClosed, _: Logged) -> None:
    record.connections.append(event.connection)


def _ended(record: RunRecord, event: ev.RunEnded, _: Logged) -> None:
    record.status, record.reason, record.result = event.status, event.reason, event.result
    if event.usage:
        record.usage, record.seconds, record.counts_parts = usage_of(event.usage), event.seconds, True


def _use(record: RunRecord, step: StepRecord, usage: Mapping[str, Any]) -> None:
    used = usage_of(usage)
    step.usage += used
    record.usage += used


_FOLDS: Mapping[type[ev.Event], Callable[[RunRecord, Any, Logged], None]] = {
    ev.RunBegan: _began, ev.RunResumed: _resumed, ev.MessageAdded: _message, ev.UserSpoke: _spoke, ev.StepBegan: _step_began,
    ev.ActionDecided: _decided, ev.ApprovalRequested: _requested, ev.ApprovalAnswered: _answered, ev.ActionStarted: _started,
    ev.FilesChanged: _files, ev.ActionExecuted: _executed, ev.StateChanged: _changed, ev.MemoryCondensed: _condensed,
    ev.StepEnded: _step_ended, ev.ConnectionClosed: _connection, ev.RunEnded: _ended,
}  # fmt: skip
