"""``gamebox runs show --follow``: a run that goes on in another process, as its events come into the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.store.log import Logged
from agent.store.reading import thought_in
from agent.trajectory.wording import answer_of, readable_diff
from sandbox.cli.run import print_json
from sandbox.text.invisible import visible, visible_output

from . import events as ev
from .answers import with_mark
from .show import RESULT_LINES, Screen, call_text, shortened
from .store import EventLog

LOOK_SECONDS = 0.2
Tell = Callable[[Logged, ev.Event], None]


def follow(log: EventLog, run: str, screen: Screen, *, as_json: bool = False) -> None:
    """Show the events of ``run`` and of its parts that there are, and those that come, until it ends, or its process does. With
    ``as_json`` each is a line of JSON on standard output.

    Raises SandboxError ``run_not_found``, and ``log_unusable`` for what cannot be read.
    """
    run = log.found(run)
    seen: dict[str, int] = {}
    ended = False
    view = View(screen, run)
    tell: Tell = print_event if as_json else view.tell
    while True:
        alive = log.is_written(run)  # before the look: what was written until then is seen by it
        for logged, event in _new(log, run, seen):
            if logged.run == run:
                ended = isinstance(event, ev.RunEnded) or (ended and not isinstance(event, ev.RunResumed))
            tell(logged, event)
        if ended or not alive:
            break
        time.sleep(LOOK_SECONDS)
    if not ended and not as_json:
        screen.line("\ncut off: no process is at it any more", "yellow")


def print_event(logged: Logged, event: ev.Event) -> None:
    """One event as a line of JSON."""
    print_json({"run": logged.run, "id": logged.id, "at": logged.at, "kind": logged.kind, "data": event.to_data()})
    sys.stdout.flush()


class View:
    """Shows events as a person reads them; those of the parts of ``run`` with the names of their agents."""

    def __init__(self, screen: Screen, run: str) -> None:
        self._screen, self._run = screen, run
        self._names: dict[str, str] = {}
        self._tools: dict[str, str | None] = {}
        self._kinds: Mapping[type[ev.Event], Callable[[Logged, Any], None]] = {
            ev.RunBegan: self._began, ev.RunResumed: self._resumed, ev.UserSpoke: self._spoke, ev.ActionDecided: self._decided,
            ev.ApprovalRequested: self._requested, ev.ApprovalAnswered: self._answered, ev.ActionExecuted: self._executed,
            ev.FilesChanged: self._changed, ev.MemoryCondensed: self._condensed, ev.RunEnded: self._ended,
        }  # fmt: skip

    def tell(self, logged: Logged, event: ev.Event) -> None:
        """Show an event, if it is one of a kind that a person follows."""
        show = self._kinds.get(type(event))
        if show is not None:
            show(logged, event)

    def _began(self, logged: Logged, event: ev.RunBegan) -> None:
        name = visible(event.agent, one_line=True)
        self._names[logged.run] = "" if logged.run == self._run else name
        self._screen.line(f"{logged.run}  {name}  {shortened(event.task, 6)}", "bold")

    def _resumed(self, logged: Logged, event: ev.RunResumed) -> None:
        where = "in a new sandbox" if event.fresh else "where it was"
        self._screen.line(f"\nresumed at {logged.at[:19].replace('T', ' ')}, {where}", "yellow")

    def _spoke(self, logged: Logged, event: ev.UserSpoke) -> None:  # noqa: ARG002
        self._screen.line(f"\nthe user says: {shortened(event.text, RESULT_LINES)}", "yellow")

    def _decided(self, logged: Logged, event: ev.ActionDecided) -> None:
        self._tools[logged.run] = event.tool
        mark = f"{self._names.get(logged.run, '')} {event.step}".strip()
        self._screen.line(f"\n[{mark}] {shortened(thought_in(event), 6)}".rstrip(), "bold")
        if event.tool is not None:
            name, call = visible(event.tool, one_line=True), call_text(event.tool, event.args, event.call)
            self._screen.line(f"  → {name} {call}".rstrip(), "cyan")

    def _requested(self, logged: Logged, event: ev.ApprovalRequested) -> None:  # noqa: ARG002
        words = f"{event.tool} waits for an approval: risk {event.risk}"
        self._screen.line(f"    {visible(words, one_line=True)}", "yellow")

    def _answered(self, logged: Logged, event: ev.ApprovalAnswered) -> None:  # noqa: ARG002
        self._screen.line(f"    approval: {visible(f'{event.verdict} {event.reason}'.rstrip(), one_line=True)}", "yellow")

    def _executed(self, logged: Logged, event: ev.ActionExecuted) -> None:
        text = with_mark(answer_of(self._tools.get(logged.run), event.envelope, event.shown), event.envelope)
        failed = event.envelope.get("tool_executed") is not True
        shown = "\n".join(f"    {line}" for line in shortened(visible_output(text), RESULT_LINES).split("\n"))
        self._screen.line(shown, "red" if failed else "dim")

    def _changed(self, logged: Logged, event: ev.FilesChanged) -> None:  # noqa: ARG002
        for line in [*shortened(readable_diff(event.patch.rstrip("\n")), RESULT_LINES).split("\n"), *event.left_out]:
            if line:
                self._screen.line(f"    {line}", "dim")

    def _condensed(self, logged: Logged, event: ev.MemoryCondensed) -> None:  # noqa: ARG002
        self._screen.line("    what is long ago was summed up", "dim")

    def _ended(self, logged: Logged, event: ev.RunEnded) -> None:
        name = self._names.get(logged.run, "")
        words = f"{event.status}: {event.reason}".rstrip(": ")
        self._screen.line(f"\n{name} {words}".replace("\n ", "\n"), "bold")


def _new(log: EventLog, run: str, seen: dict[str, int]) -> list[tuple[Logged, ev.Event]]:
    """What was added since the last look, to the run and to those that are parts of it, in its order."""
    found: list[tuple[Logged, ev.Event]] = []
    waiting = [run]
    while waiting:
        each = waiting.pop()
        found += log.events(each, seen.get(each, 0))
        waiting += log.children(each)
    for logged, _ in found:
        seen[logged.run] = max(logged.id, seen.get(logged.run, 0))
    return sorted(found, key=lambda told: told[0].at)  # stable: the order within a run is that of its ids
