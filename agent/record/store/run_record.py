"""A run and its steps as values, folded from the events of the log: for views and exports, and to resume the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, field
from typing import Any

from agent.core.budget import Usage
from agent.core.run import step_text
from agent.errors import AgentErrorCode
from agent.memory.exchange import Message, exchange
from agent.model.replay import restored
from agent.model.response import text_of_reply
from agent.record import events as ev
from agent.record.answers import with_further
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass

from .folders import checked_run
from .log import EventLog, Logged

MAX_DEPTH = 20
"""Runs within runs that are loaded; deeper ones exist only in a log that somebody made up."""


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One call of a tool, as far as it got: the events about it. ``notices`` are those of its answer, if the loop added some."""

    decided: ev.ActionDecided | None = None
    requested: ev.ApprovalRequested | None = None
    answered: ev.ApprovalAnswered | None = None
    started: ev.ActionStarted | None = None
    executed: ev.ActionExecuted | None = None
    changed: ev.FilesChanged | None = None
    notices: list[Any] | None = None

    @property
    def tool(self) -> str | None:
        """The name of the tool; None if there was no decision, or the reply could not be parsed."""
        return None if self.decided is None else self.decided.tool

    @property
    def args(self) -> Any:
        """The arguments of the decision."""
        return None if self.decided is None else self.decided.args

    @property
    def call(self) -> str | None:
        """A summary of the arguments in a few lines; None if the log does not have one."""
        return None if self.decided is None else self.decided.call

    @property
    def approved_args(self) -> Any:
        """The arguments that were carried out, if somebody changed them before the approval; else None."""
        return None if self.started is None or self.started.args == self.args else self.started.args

    @property
    def envelope(self) -> dict[str, Any] | None:
        """The answer that is in the memory; None if there was none."""
        if self.executed is None:
            return None
        own = dict(self.executed.envelope)
        return own if self.notices is None else {**own, "notices": self.notices}

    @property
    def shown(self) -> str | None:
        """The answer in the action's own words, with all notices; None if the action has no words of its own."""
        if self.executed is None or not isinstance(self.executed.shown, str):
            return None
        before = self.executed.envelope.get("notices")
        return with_further(self.executed.shown, self.envelope or {}, before if isinstance(before, list) else [])

    @property
    def succeeded(self) -> bool:
        """Whether the action was carried out."""
        return self.executed is not None and self.executed.envelope.get("tool_executed") is True

    @property
    def result(self) -> Mapping[str, Any]:
        """The result if it has fields, else {}."""
        result = None if self.executed is None else self.executed.envelope.get("result")
        return result if isinstance(result, Mapping) else {}

    @property
    def changes(self) -> str:
        """The change of the files as a diff in git's form, if that was recorded; else ""."""
        if self.changed is None:
            return ""
        missing = (f"[not in this diff: {each}]" for each in self.changed.left_out)
        return "\n".join([self.changed.patch.rstrip("\n"), *missing]).strip("\n")

    def argument(self, name: str) -> str:
        """Return the argument if it is text, else ""."""
        value = self.args.get(name) if isinstance(self.args, Mapping) else None
        return value if isinstance(value, str) else ""


@dataclass(slots=True, kw_only=True)
class StepRecord(CallRecord):
    """A step as far as it got. It is its own first call; ``others`` are the further calls of the same reply.

    ``at`` is ISO 8601 or "". ``ended`` is False for the last step of a run that was cut off, or paused, in the middle of it.
    ``usage_known`` is False if the usage is known only for the whole run.
    """

    number: int
    at: str = ""
    others: list[CallRecord] = field(default_factory=list)
    ended: bool = False
    usage: Usage = field(default_factory=Usage)
    usage_known: bool = True
    seconds: float = 0.0

    @property
    def model(self) -> str:
        """The model that answered; "" if the brain did not say."""
        reply = None if self.decided is None else self.decided.reply
        response = reply.get("response") if isinstance(reply, Mapping) else None
        model = response.get("model") if isinstance(response, Mapping) else None
        return model if isinstance(model, str) else ""

    def __repr__(self) -> str:
        return step_text("StepRecord", self.number, self.tool, self.envelope, self.seconds)

    @classmethod
    def of(
        cls,
        number: int,
        *,
        at: str = "",
        thought: str = "",
        tool: str | None = None,
        args: Any = None,
        envelope: Any = None,
        usage: Usage | None = None,
        seconds: float = 0.0,
        approved_args: Any = None,
        changes: str = "",
        shown: str | None = None,
        others: Iterable[CallRecord] = (),
    ) -> StepRecord:
        """Make a step from what is known of it elsewhere than in a log."""
        call = call_of(number, 0, thought, tool, args, envelope, approved_args, changes, shown)
        events = {name: getattr(call, name) for name in ("decided", "started", "executed", "changed")}
        return cls(
            number=number,
            at=at,
            ended=envelope is not None,
            usage=usage or Usage(),
            usage_known=usage is not None,
            seconds=seconds,
            others=list(others),
            **events,
        )

    @property
    def calls(self) -> list[CallRecord]:
        """All calls of the reply, in order; there is always one."""
        return [self, *self.others]

    @property
    def reply(self) -> Any:
        """The brain's reply, as the loop got it."""
        return None if self.decided is None else restored(self.decided.reply)

    @property
    def thought(self) -> str:
        """The text of the reply beside its actions."""
        return "" if self.decided is None else thought_in(self.decided)

    def call_at(self, index: int) -> CallRecord:
        """Return the call with this index, which is added if it is the next one. Raises ValueError if it is neither."""
        if not 0 <= index <= len(self.calls):
            raise ValueError(f"a step with {len(self.calls)} calls has no call {index}")
        if index == len(self.calls):
            self.others.append(CallRecord())
        return self.calls[index]


def call_of(
    number: int,
    index: int,
    thought: str,
    tool: str | None,
    args: Any,
    envelope: Any,
    approved_args: Any,
    changes: str,
    shown: str | None,
) -> CallRecord:
    """Make a call from what is known of it elsewhere than in a log."""
    name = tool or ""
    decided = ev.ActionDecided(
        step=number, reply={"reply": thought}, tool=tool, args=args, thought=thought, index=index
    )
    approved = (
        None if approved_args is None else ev.ActionStarted(step=number, tool=name, args=approved_args, index=index)
    )
    executed = None
    if envelope is not None:
        executed = ev.ActionExecuted(step=number, envelope=envelope, shown=shown, index=index)
    changed = ev.FilesChanged(step=number, patch=changes, index=index) if changes else None
    return CallRecord(decided=decided, started=approved, executed=executed, changed=changed)


@dataclass(frozen=True, slots=True)
class Used:
    """What a run used."""

    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    def __sub__(self, other: Used) -> Used:
        """Return the rest, in which nothing is below 0: the numbers in a log need not add up."""
        mine, theirs = asdict(self.usage), asdict(other.usage)
        rest = {name: max(round(mine[name] - theirs[name], 9), 0) for name in mine}
        return Used(Usage(**rest), max(self.seconds - other.seconds, 0.0))


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """A run with its steps. ``status`` is None until it ended; ``messages`` are those of its memory, in order, ``notes`` those to
    add behind the step that it goes on in; ``kits`` and ``condensed`` are the states to restore.

    ``children`` are the ids of the runs that are parts of it, and ``subruns`` their records, if they were loaded (``tree_of``).
    ``usage`` and ``seconds`` count them, too. ``parts`` are the children that began in the step which has not ended, with
    what they used: only their own events count that. ``counts_parts`` says that ``usage`` has it, from RunEnded.
    """

    run: str
    parent: str | None = None
    began: str = ""
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
    subruns: list[RunRecord] = field(default_factory=list)
    parts: dict[str, Used] = field(default_factory=dict)
    counts_parts: bool = False

    def __repr__(self) -> str:
        return f"RunRecord({self.run}, {self.status or 'not ended'}, {len(self.steps)} steps, {self.seconds:.1f} s)"

    @property
    def model(self) -> str:
        """The name of the model; "" if it is not known."""
        return str(self.options.get("model") or "")

    @property
    def cost_usd(self) -> float | None:
        """What the run cost, in US dollars; None if a call had no price."""
        return None if self.usage.unpriced_calls else self.usage.cost_usd

    @property
    def pending(self) -> StepRecord | None:
        """The step that has a decision and has not ended: where the run goes on."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.decided is not None and not last.ended else None

    @property
    def ended_steps(self) -> int:
        """The number of steps that ended."""
        return sum(step.ended for step in self.steps)

    @property
    def own(self) -> Used:
        """Its usage without its open parts."""
        used = Used(self.usage, self.seconds)
        for part in self.parts.values():
            used -= part
        return used


def record_of(log: EventLog, run: str) -> RunRecord:
    """Return the run with that id. Raises SandboxError ``run_not_found``, ``log_unusable``."""
    return _record(log, log.found(run), ())


def tree_of(log: EventLog, run: str, depth: int = 0) -> RunRecord:
    """Return the run with the records of its parts, and of theirs. Raises SandboxError ``run_not_found``, ``log_unusable``."""
    record = record_of(log, run)
    record.subruns = [tree_of(log, child, depth + 1) for child in record.children] if depth < MAX_DEPTH else []
    return record


def _record(log: EventLog, run: str, above: tuple[str, ...]) -> RunRecord:
    try:
        record = folded(log.events(run))
        for step in record.steps[-1:]:  # the fold reads the replies of those that have ended
            _ = step.reply, step.thought
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
        if child in above:  # a run that contains itself is not followed
            continue
        part = _record(log, child, above)
        record.parts[child] = Used(part.usage, part.seconds)
        if not record.counts_parts:
            record.usage, record.seconds = record.usage + part.usage, record.seconds + part.seconds


def folded(events: Iterable[tuple[Logged, ev.Event]]) -> RunRecord:
    """Return the run that these events describe, in their order. Raises ValueError if there are none."""
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


def all_steps(run: RunRecord) -> Iterator[StepRecord]:
    """Yield the steps of a run and of all its parts that were loaded."""
    yield from run.steps
    for each in run.subruns:
        yield from all_steps(each)


def thought_in(event: ev.ActionDecided) -> str:
    """Return the text of the reply beside its actions; all of its text if the log is from before that was recorded."""
    return event.thought if isinstance(event.thought, str) else text_of_reply(restored(event.reply))


def usage_of(data: Mapping[str, Any]) -> Usage:
    """Return the usage in an event; fields that are not numbers count nothing."""
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
        _add_notes(record)


def _message(record: RunRecord, event: ev.MessageAdded, _: Logged) -> None:
    record.messages.append(dict(event.message))


def _spoke(record: RunRecord, event: ev.UserSpoke, _: Logged) -> None:
    record.messages.append(spoken(event.text, event.said))


def spoken(text: str, said: str = "") -> Message:
    """Return what the user says in the middle of a run, as a message; ``said`` is its id if another process sent it."""
    return {"role": "user", "content": text, "source": "user", **({"said": said} if said else {})}


def _step_began(record: RunRecord, event: ev.StepBegan, logged: Logged) -> None:
    if record.steps and record.steps[-1].number == event.step and not record.steps[-1].ended:
        return  # the run was resumed in the middle of this step
    record.steps.append(StepRecord(number=event.step, at=logged.at))


def _decided(record: RunRecord, event: ev.ActionDecided, _: Logged) -> None:
    step = record.steps[-1]
    step.call_at(event.index).decided = event
    _use(record, step, event.usage)


def _requested(record: RunRecord, event: ev.ApprovalRequested, _: Logged) -> None:
    record.steps[-1].call_at(event.index).requested = event


def _answered(record: RunRecord, event: ev.ApprovalAnswered, _: Logged) -> None:
    record.steps[-1].call_at(event.index).answered = event
    if event.for_session and event.verdict != "reject":
        record.approved.append(event)


def _started(record: RunRecord, event: ev.ActionStarted, _: Logged) -> None:
    record.steps[-1].call_at(event.index).started = event


def _executed(record: RunRecord, event: ev.ActionExecuted, _: Logged) -> None:
    record.steps[-1].call_at(event.index).executed = event


def _files(record: RunRecord, event: ev.FilesChanged, _: Logged) -> None:
    record.steps[-1].call_at(event.index).changed = event


def _changed(record: RunRecord, event: ev.StateChanged, _: Logged) -> None:
    record.kits[event.kit] = event.state


def _condensed(record: RunRecord, event: ev.MemoryCondensed, _: Logged) -> None:
    record.condensed = event.state


def _step_ended(record: RunRecord, event: ev.StepEnded, _: Logged) -> None:
    step = record.steps[-1]
    step.ended, step.notices, step.seconds = True, event.notices, event.seconds
    record.seconds += event.seconds
    _use(record, step, event.usage)
    for call, notices in zip(step.others, event.other_notices, strict=False):
        call.notices = notices if isinstance(notices, list) else None
    if event.implied and step.envelope is not None:
        record.messages += exchange(step.reply, [call.envelope for call in step.calls if call.envelope is not None])
    _add_notes(record)


def _add_notes(record: RunRecord) -> None:
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
    ev.RunBegan: _began,
    ev.RunResumed: _resumed,
    ev.MessageAdded: _message,
    ev.UserSpoke: _spoke,
    ev.StepBegan: _step_began,
    ev.ActionDecided: _decided,
    ev.ApprovalRequested: _requested,
    ev.ApprovalAnswered: _answered,
    ev.ActionStarted: _started,
    ev.FilesChanged: _files,
    ev.ActionExecuted: _executed,
    ev.StateChanged: _changed,
    ev.MemoryCondensed: _condensed,
    ev.StepEnded: _step_ended,
    ev.ConnectionClosed: _connection,
    ev.RunEnded: _ended,
}
