"""A run as a person follows it: its steps, what happened between them, and its subruns at the steps that began them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from agent.record import events as ev
from agent.record.events import Event
from agent.record.store import CallRecord, EventLog, RunRecord, StepRecord, record_of
from agent.record.store.log import Logged
from agent.record.store.run_record import MAX_DEPTH
from agent.record.subruns import subruns_by_step
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass

# Shown beside the steps. A message is one only if it is not a step's own.
_BESIDE_STEPS = (
    ev.UserSpoke,
    ev.RunResumed,
    ev.ApprovalRequested,
    ev.ApprovalAnswered,
    ev.MemoryCondensed,
    ev.RunEnded,
)


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event beside the steps, with its id and time. ``step`` is the last step that had begun before it, 0 before the first."""

    id: int
    at: str
    step: int
    event: Event

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-ready data."""
        return {"id": self.id, "at": self.at, "step": self.step, "kind": self.event.kind, "data": self.event.to_data()}


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """A run with the ``events`` beside its steps, by step, and its ``subruns`` by the step that began them.

    ``status`` is "running" or "cut off" if the run has not ended. ``unread`` are the errors of subruns that could not be read.
    """

    record: RunRecord
    status: str
    events: Mapping[int, list[TimelineEvent]]
    subruns: Mapping[int | None, list[RunTimeline]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON-ready data."""
        record = self.record
        return {
            **summary(record, self.status),
            "options": record.options,
            "budget": record.budget,
            "steps": [_step(step, self) for step in record.steps],
            "moments": [event.to_dict() for each in self.events.values() for event in each],
            "connections": record.connections,
            "parts": [subrun.to_dict() for each in self.subruns.values() for subrun in each],
            "unread": list(self.unread),
        }


def timeline_of(log: EventLog, run: str, depth: int = 0) -> RunTimeline:
    """Return the timeline of a run with its subruns. Raises SandboxError ``run_not_found``, ``log_unusable``."""
    record = record_of(log, run)
    subruns: dict[str, RunTimeline] = {}
    unread = []
    for child in record.children if depth < MAX_DEPTH else ():
        try:
            subruns[child] = timeline_of(log, child, depth + 1)
        except SandboxError as error:
            unread.append(error.message)
    record.subruns = [each.record for each in subruns.values()]
    by_step = {step: [subruns[each.run] for each in runs] for step, runs in subruns_by_step(record).items()}
    return RunTimeline(record, status_of(log, record), _events_beside_steps(log, record.run), by_step, tuple(unread))


def status_of(log: EventLog, record: RunRecord) -> str:
    """Return how the run ended, "running", or "cut off" if no process writes it any more."""
    return record.status or ("running" if log.is_written(record.run) else "cut off")


def summary(record: RunRecord, status: str) -> dict[str, Any]:
    """Return what ``gamebox runs ls`` shows of a run, as JSON-ready data."""
    return {
        "run": record.run,
        "parent": record.parent,
        "children": record.children,
        "task": record.task,
        "agent": record.agent,
        "model": record.model,
        "status": status,
        "reason": record.reason,
        "began": record.began,
        "last": record.last,
        "steps": len(record.steps),
        "resumed": record.resumed,
        "seconds": round(record.seconds, 3),
        "usage": asdict(record.usage),
        "result": record.result,
        "connections": len(record.connections),
        "events": record.events,
    }


def _step(step: StepRecord, timeline: RunTimeline) -> dict[str, Any]:
    data = {
        "number": step.number,
        "at": step.at,
        "thought": step.thought,
        **_call(step),
        "ended": step.ended,
        **({"model": step.model} if step.model else {}),
        "usage": asdict(step.usage),
        "seconds": step.seconds,
        "parts": [subrun.record.run for subrun in timeline.subruns.get(step.number, ())],
    }
    return {**data, "more_calls": [_call(call) for call in step.others]} if step.others else data


def _call(call: CallRecord) -> dict[str, Any]:
    return {
        "tool": call.tool,
        "args": call.args,
        "approval_requested": None if call.requested is None else call.requested.to_data(),
        "approval_answered": None if call.answered is None else call.answered.to_data(),
        "started": call.started is not None,
        "request_id": None if call.started is None else call.started.request_id,
        "handed_over": call.executed is not None and call.executed.handed_over,
        "envelope": call.envelope,
        "changes": None if call.changed is None else call.changed.to_data(),
    }


def _events_beside_steps(log: EventLog, run: str) -> dict[int, list[TimelineEvent]]:
    found: list[TimelineEvent] = []
    held: list[TimelineEvent] = []  # messages within a step: they may be its own
    number, within = 0, False
    for logged, event in log.events(run):
        if isinstance(event, ev.StepBegan):
            number, within = event.step, True
        elif isinstance(event, ev.StepEnded):
            found += held if event.implied else []
            held, within = [], False
        elif isinstance(event, ev.MessageAdded) and number:
            (held if within else found).append(_timeline_event(logged, number, event))
        elif isinstance(event, _BESIDE_STEPS):
            found.append(_timeline_event(logged, number, event))
    if found and isinstance(found[-1].event, ev.RunEnded):
        found.pop()  # the end of the run is shown by itself
    by_step: dict[int, list[TimelineEvent]] = {}
    for each in sorted([*found, *held], key=lambda event: event.id):
        by_step.setdefault(each.step, []).append(each)
    return by_step


def _timeline_event(logged: Logged, step: int, event: Event) -> TimelineEvent:
    return TimelineEvent(logged.id, logged.at, step, event)
