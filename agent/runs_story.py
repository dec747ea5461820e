"""A recorded run as it is told to a person: its steps, what happened between them, and its parts where they were begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agent.store.log import Logged
from sandbox.errors import SandboxError

from . import events as ev
from .events import Event
from .placing import placed
from .store import EventLog, RunRecord, StepRecord, record_of

# Told beside the steps. A message is one only if no step has it as its own.
_TOLD = (ev.UserSpoke, ev.RunResumed, ev.ApprovalRequested, ev.ApprovalAnswered, ev.MemoryCondensed, ev.RunEnded)
MOST_DEEP = 20


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened beside the steps: an event with its id, when it did, and the step that had begun before it (0: none)."""

    id: int
    at: str
    step: int
    event: Event

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {"id": self.id, "at": self.at, "step": self.step, "kind": self.event.kind, "data": self.event.to_data()}


@dataclass(frozen=True, slots=True)
class Story:
    """A run. ``moments`` are by the step that had begun before them, ``parts`` by the step that began them; ``unread`` are
    the faults of parts that could not be read.
    """

    record: RunRecord
    status: str
    moments: Mapping[int, list[Moment]]
    parts: Mapping[int | None, list[Story]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """Its id."""
        return self.record.run

    @property
    def began(self) -> str:
        """When it began."""
        return self.record.began

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-ready data."""
        record = self.record
        return {
            **summary(record, self.status), "options": record.options, "budget": record.budget,
            "steps": [_step(step, self) for step in record.steps],
            "moments": [moment.to_dict() for each in self.moments.values() for moment in each],
            "connections": record.connections, "parts": [part.to_dict() for each in self.parts.values() for part in each],
            "unread": list(self.unread),
        }  # fmt: skip


def story_of(log: EventLog, run: str, depth: int = 0) -> Story:
    """The story of a run with its parts. Raises SandboxError ``run_not_found``, ``log_unusable``."""
    record = record_of(log, run)
    stories, unread = [], []
    for part in record.children if depth < MOST_DEEP else ():
        try:
            stories.append(story_of(log, part, depth + 1))
        except SandboxError as error:
            unread.append(error.message)
    moments = _moments(log, record.run)
    return Story(record, status_of(log, record), moments, placed(record.steps, stories), tuple(unread))


def status_of(log: EventLog, record: RunRecord) -> str:
    """How it ended; of one that has not: running, or cut off where no process is at it any more."""
    return record.status or ("running" if log.is_written(record.run) else "cut off")


def summary(record: RunRecord, status: str) -> dict[str, Any]:
    """A run in short, as JSON-ready data."""
    return {
        "run": record.run, "parent": record.parent, "children": record.children, "task": record.task, "agent": record.agent,
        "model": record.options.get("model") or "", "status": status, "reason": record.reason, "began": record.began,
        "last": record.last, "steps": len(record.steps), "resumed": record.resumed, "seconds": round(record.seconds, 3),
        "usage": asdict(record.usage), "result": record.result, "connections": len(record.connections),
        "events": record.events,
    }  # fmt: skip


def _step(step: StepRecord, story: Story) -> dict[str, Any]:
    return {
        "number": step.number, "at": step.at, "thought": step.thought, "tool": step.tool, "args": step.args,
        "approval_requested": None if step.requested is None else step.requested.to_data(),
        "approval_answered": None if step.answered is None else step.answered.to_data(),
        "started": step.started is not None, "request_id": None if step.started is None else step.started.request_id,
        "handed_over": step.executed is not None and step.executed.handed_over, "envelope": step.envelope,
        "changes": None if step.changed is None else step.changed.to_data(),
        "ended": step.ended, "usage": asdict(step.usage), "seconds": step.seconds,
        "parts": [part.run for part in story.parts.get(step.number, ())],
    }  # fmt: skip


def _moments(log: EventLog, run: str) -> dict[int, list[Moment]]:
    found: list[Moment] = []
    held: list[Moment] = []  # messages within a step: they may be its own
    number, within = 0, False
    for logged, event in log.events(run):
        if isinstance(event, ev.StepBegan):
            number, within = event.step, True
        elif isinstance(event, ev.StepEnded):
            found += held if event.implied else []
            held, within = [], False
        elif isinstance(event, ev.MessageAdded) and number:
            (held if within else found).append(_moment(logged, number, event))
        elif isinstance(event, _TOLD):
            found.append(_moment(logged, number, event))
    if found and isinstance(found[-1].event, ev.RunEnded):
        found.pop()  # how it ended is told at the end
    by_step: dict[int, list[Moment]] = {}
    for moment in sorted([*found, *held], key=lambda moment: moment.id):
        by_step.setdefault(moment.step, []).append(moment)
    return by_step


def _moment(logged: Logged, step: int, event: Event) -> Moment:
    return Moment(logged.id, logged.at, step, event)
