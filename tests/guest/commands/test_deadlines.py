"""The deadline of a command: what keeps it from ending is found out before it, and nothing puts it off."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.guest.commands.run import RunRequest, run
from sandbox.guest.loop.reactor import Timer
from tests.guest.calls import place_at, running_processes

STALL = {"wait": {"kind": "sleep", "pid": 1, "program": "sleep", "detail": "nanosleep"}, "ports": [], "reads_end": False}


@pytest.mark.parametrize(("seconds", "ahead"), [(0.2, 0.1), (0.5, 0.2)])
@pytest.mark.parametrize("found", [None, STALL])
def test_a_command_ends_at_its_deadline_whether_the_look_before_it_is_done_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Any, seconds: float, ahead: float
) -> None:
    replies: queue.Queue[dict[str, Any]] = queue.Queue()
    args = {"command": "exec sleep 100", "session": "default", "timeout_seconds": seconds, "keep_output_bytes": 1000}
    looked: list[float] = []
    timers: list[float] = []

    def look(_: Any, report: Callable[[Any], None]) -> None:
        looked.append(time.monotonic())
        if found is not None:
            report(found)

    with running_processes(place_at(tmp_path, sessions=1, concurrent_actions=1)) as running:
        after = running._reactor.after

        def noted_after(seconds: float, call: Callable[[], None]) -> Timer:
            timers.append(seconds)
            return after(seconds, call)

        monkeypatch.setattr(running._reactor, "after", noted_after)
        running.processes.find_stall = look

        def start() -> None:
            run(running.processes, args, lambda fields, _: replies.put(fields), lambda _: None)

        running._reactor.hand_over(start)
        fault = replies.get(timeout=60)["fault"]
        (command,) = running.processes.commands.values()
        assert fault.code == "timeout"
        assert len(looked) == 1
        assert timers[0] == pytest.approx(seconds - ahead)
        assert looked[0] < command.ended
        assert command.ended - command.started >= seconds - 0.001
        assert fault.fields.get("wait") == (found and found["wait"])


def looking(late: float) -> tuple[RunRequest, Any, list[Any]]:
    """Return a request, its command and what it asked the reactor to call later; its look is due since ``late`` seconds."""
    later: list[Any] = []
    processes: Any = SimpleNamespace(
        reactor=SimpleNamespace(after=lambda seconds, call: later.append((seconds, call))),
        find_stall=lambda _, report: report(STALL),
    )
    command = SimpleNamespace(timer=SimpleNamespace(due=time.monotonic() - late), running=True, stopping=False, stall={})
    session: Any = SimpleNamespace()
    return RunRequest(processes, session, {}, lambda *_: None, False), command, later


def test_a_look_that_begins_late_leaves_the_deadline_where_it_is() -> None:
    request, command, later = looking(late=0.15)
    request._look_for_stall(command, 0.2)
    ((seconds, _),) = later
    assert seconds <= 0.05


def test_what_was_found_is_forgotten_if_the_command_ends_by_itself() -> None:
    request, command, later = looking(late=0)
    request._look_for_stall(command, 0.2)
    command.running = False
    later[0][1]()
    assert command.stall == {}
