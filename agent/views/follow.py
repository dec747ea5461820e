"""``gamebox runs show --follow``: a run of another process, as its events come into the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.record import events as ev
from agent.record.store import EventLog, StepRecord
from agent.record.store.log import Logged
from agent.record.store.run_record import thought_in
from sandbox.cli.run import print_json
from sandbox.text.excerpt import few_lines
from sandbox.text.invisible import visible

from .screen import Screen
from .step_printer import LIVE, StepPrinter
from .step_view import StepView, view_of_call

LOOK_SECONDS = 0.2
PrintEvent = Callable[[Logged, ev.Event], None]


def follow(log: EventLog, run: str, screen: Screen, *, as_json: bool = False) -> None:
    """Print the events of ``run`` and of its subruns, also those to come, until the run or its process ends.

    With ``as_json``, each event is a line of JSON on standard output.

    Raises SandboxError ``run_not_found``, ``log_unusable``.
    """
    run = log.found(run)
    seen: dict[str, int] = {}
    ended = False
    show: PrintEvent = print_event if as_json else EventPrinter(screen, run).print
    while True:
        alive = log.is_written(run)  # asked first: what its process wrote before it ended is then seen
        for logged, event in _new(log, run, seen):
            if logged.run == run:
                ended = isinstance(event, ev.RunEnded) or (ended and not isinstance(event, ev.RunResumed))
            show(logged, event)
        if ended or not alive:
            break
        time.sleep(LOOK_SECONDS)
    if not ended and not as_json:
        screen.line("\ncut off: no process writes it any more", "yellow")


def print_event(logged: Logged, event: ev.Event) -> None:
    """Print an event as a line of JSON."""
    print_json({"run": logged.run, "id": logged.id, "at": logged.at, "kind": logged.kind, "data": event.to_data()})
    sys.stdout.flush()


class EventPrinter:
    """Prints events as a person reads them; those of subruns of ``run`` with the names of their agents."""

    def __init__(self, screen: Screen, run: str) -> None:
        self._screen, self._run = screen, run
        self._printer = StepPrinter(screen, LIVE)
        self._names: dict[str, str] = {}
        self._steps: dict[str, StepRecord] = {}
        self._kinds: Mapping[type[ev.Event], Callable[[Logged, Any], None]] = {
            ev.RunBegan: self._began,
            ev.RunResumed: self._resumed,
            ev.UserSpoke: self._spoke,
            ev.StepBegan: self._step_began,
            ev.ActionDecided: self._decided,
            ev.ApprovalRequested: self._requested,
            ev.ApprovalAnswered: self._answered,
            ev.ActionExecuted: self._executed,
            ev.FilesChanged: self._changed,
            ev.MemoryCondensed: self._condensed,
            ev.RunEnded: self._ended,
        }

    def print(self, logged: Logged, event: ev.Event) -> None:
        """Print an event, if it is of a kind that a person follows."""
        show = self._kinds.get(type(event))
        if show is not None:
            show(logged, event)

    def _began(self, logged: Logged, event: ev.RunBegan) -> None:
        name = visible(event.agent, one_line=True)
        self._names[logged.run] = "" if logged.run == self._run else name
        self._screen.line(f"{logged.run}  {name}  {few_lines(event.task, LIVE.thought, LIVE.line_chars)}", "bold")

    def _resumed(self, logged: Logged, event: ev.RunResumed) -> None:
        where = "in a new sandbox" if event.fresh else "where it was"
        self._screen.line(f"\nresumed at {logged.at[:19].replace('T', ' ')}, {where}", "yellow")

    def _spoke(self, logged: Logged, event: ev.UserSpoke) -> None:  # noqa: ARG002
        self._screen.line(f"\nthe user says: {few_lines(event.text, LIVE.answer, LIVE.line_chars)}", "yellow")

    def _step(self, logged: Logged, number: int) -> StepRecord:
        return self._steps.setdefault(logged.run, StepRecord(number=number))

    def _step_began(self, logged: Logged, event: ev.StepBegan) -> None:
        self._steps[logged.run] = StepRecord(number=event.step, at=logged.at)

    def _decided(self, logged: Logged, event: ev.ActionDecided) -> None:
        call = self._step(logged, event.step).call_at(event.index)
        call.decided = event
        if event.index == 0:
            mark = f"{self._names.get(logged.run, '')} {event.step}".strip()
            self._printer.heading(StepView(mark, thought_in(event)))
        if event.tool is not None:
            self._printer.call(view_of_call(call))

    def _requested(self, logged: Logged, event: ev.ApprovalRequested) -> None:  # noqa: ARG002
        self._printer.note(visible(f"{event.tool} waits for an approval: risk {event.risk}", one_line=True))

    def _answered(self, logged: Logged, event: ev.ApprovalAnswered) -> None:  # noqa: ARG002
        self._printer.note(f"approval: {visible(f'{event.verdict} {event.reason}'.rstrip(), one_line=True)}")

    def _executed(self, logged: Logged, event: ev.ActionExecuted) -> None:
        call = self._step(logged, event.step).call_at(event.index)
        call.executed = event
        self._printer.answer(view_of_call(call))

    def _changed(self, logged: Logged, event: ev.FilesChanged) -> None:
        self._step(logged, event.step).call_at(event.index).changed = event  # the answer comes next, and has the diff

    def _condensed(self, logged: Logged, event: ev.MemoryCondensed) -> None:  # noqa: ARG002
        self._printer.note("older messages were condensed", "dim")

    def _ended(self, logged: Logged, event: ev.RunEnded) -> None:
        name = self._names.get(logged.run, "")
        ending = f"{event.status}: {event.reason}".rstrip(": ")
        self._screen.line(f"\n{name} {ending}".replace("\n ", "\n"), "bold")


def _new(log: EventLog, run: str, seen: dict[str, int]) -> list[tuple[Logged, ev.Event]]:
    """Return what was added to the run and its subruns since the last look, in order."""
    found: list[tuple[Logged, ev.Event]] = []
    waiting = [run]
    while waiting:
        each = waiting.pop()
        found += log.events(each, seen.get(each, 0))
        waiting += log.children(each)
    for logged, _ in found:
        seen[logged.run] = max(logged.id, seen.get(logged.run, 0))
    return sorted(found, key=lambda pair: pair[0].at)  # stable: the order within a run is that of its ids
