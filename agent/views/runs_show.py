"""``gamebox runs show``: a run as a person reads it, on a terminal of any width or in a pipe."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from agent.record import events as ev
from agent.record.events import Event
from agent.record.store import StepRecord, existing
from sandbox.cli.run import print_json
from sandbox.envelope import jsonable
from sandbox.text.excerpt import few_lines

from .screen import Screen
from .step_printer import LATER, StepPrinter
from .step_view import StepView, view_of_step
from .timeline import RunTimeline, TimelineEvent, timeline_of
from .usage_text import spent


def show_run(run: str, log: Path | None, *, as_json: bool) -> int:
    """Carry out ``gamebox runs show``."""
    with existing(log, read_only=True) as events:
        timeline = timeline_of(events, run)
    if as_json:
        print_json(jsonable(timeline.to_dict()))
    else:
        RunPrinter(Screen(sys.stdout), shutil.get_terminal_size((80, 24)).columns).run(timeline)
    return 0


class RunPrinter:
    """Prints runs on ``screen`` in lines of ``width`` columns; ``margin`` stands before each line of a subrun."""

    def __init__(self, screen: Screen, width: int, margin: str = "") -> None:
        self.screen, self.width, self.margin = screen, width, margin
        self._printer = StepPrinter(screen, LATER, width, margin)

    def run(self, timeline: RunTimeline) -> None:
        """Print all of a run."""
        record, line = timeline.record, self._printer.line
        line(
            f"{record.run}  {timeline.status}  {few_lines(record.task, LATER.thought, LATER.line_chars)}", style="bold"
        )
        agent, model = record.agent and f"agent {record.agent}", record.model and f"model {record.model}"
        line(", ".join(fact for fact in (agent, model, f"began {_time(record.began)}") if fact), style="dim")
        self._events(timeline.events.get(0, []))
        for step in record.steps:
            self._step(step, timeline)
        for subrun in timeline.subruns.get(None, ()):
            self._subrun(subrun)
        for fault in timeline.unread:
            line(f"a part of it cannot be read: {fault}", style="red")
        line("")
        line(f"{timeline.status}{f': {record.reason}' if record.reason else ''}", style="bold")
        steps = f"{len(record.steps)} step{'' if len(record.steps) == 1 else 's'}"
        resumed = f", resumed {record.resumed} time{'' if record.resumed == 1 else 's'}" if record.resumed else ""
        line(f"{steps}, {spent(record.usage, record.seconds)}{resumed}")

    def _step(self, step: StepRecord, timeline: RunTimeline) -> None:
        """Print a step, its approvals and subruns before the answers, and then what happened before the next step."""
        view = view_of_step(step)
        events = timeline.events.get(step.number, [])
        self._printer.heading(StepView(view.mark, view.thought, view.spent or " "))
        for index, (record, call) in enumerate(zip(step.calls, view.calls, strict=True)):
            if record.decided is not None:
                self._printer.call(call)
            self._events([each for each in events if _approval_index(each.event) == index])
            if record.requested is not None and record.answered is None:
                self._printer.note("it waits for an approval")
            if index == 0:
                for subrun in timeline.subruns.get(step.number, ()):
                    self._subrun(subrun)
            self._printer.answer(call)
        self._events([each for each in events if _approval_index(each.event) is None])

    def _subrun(self, subrun: RunTimeline) -> None:
        RunPrinter(self.screen, self.width, f"{self.margin}    │ ").run(subrun)

    def _events(self, events: list[TimelineEvent]) -> None:
        for each in events:
            self._printer.note(_event_text(each.event))


def _approval_index(event: Event) -> int | None:
    """Return which call an approval is about; None for any other event."""
    return event.index if isinstance(event, ev.ApprovalRequested | ev.ApprovalAnswered) else None


def _event_text(event: Event) -> str:
    match event:
        case ev.UserSpoke():
            return f"the user said: {event.text}"
        case ev.MessageAdded():
            content, role = event.message.get("content"), event.message.get("role")
            text = content if isinstance(content, str) else json.dumps(jsonable(content), ensure_ascii=False)
            return f"message to the agent: {text}" if role == "user" else f"in its memory as {role}: {text}"
        case ev.RunResumed():
            return _resumed(event)
        case ev.ApprovalRequested():
            return f"approval asked for: risk {event.risk or 'not known'}{''.join(f', {why}' for why in event.reasons)}"
        case ev.ApprovalAnswered():
            return _approval(event)
        case ev.RunEnded():
            return f"the run stopped here ({event.status}): {event.reason}"
        case _:
            return "the memory was condensed: the agent sees less than all of what is above"


def _resumed(event: ev.RunResumed) -> str:
    where = "resumed in a new sandbox" if event.fresh else "resumed"
    said = [str(note.get("content")) for note in event.notes if note.get("source") == "user"]
    return "; ".join([where, *(f"the user said: {text}" for text in said)])


def _approval(event: ev.ApprovalAnswered) -> str:
    if event.verdict == "reject":
        return f"rejected: {event.reason or 'no reason was given'}"
    how = f", for the session up to risk {event.risk}" if event.for_session else ""
    if event.verdict == "edit":
        return f"approved with other arguments{how}: {json.dumps(jsonable(event.args), ensure_ascii=False)}"
    return f"approved{how}{f': {event.reason}' if event.reason else ''}"


def _time(text: str) -> str:
    return text[:19].replace("T", " ")
