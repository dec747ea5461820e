"""When a sandbox ends by itself: what counts as work, what is told before, what a pause does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from sandbox.guest.commands.command import Command
from sandbox.guest.commands.processes import Processes
from sandbox.guest.interaction.wait_for import WaitFor
from sandbox.guest.loop import reactor as reactor_module
from sandbox.guest.loop.operations import operation_named
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.protocol.constants import IDLE, LIFETIME_OVER
from sandbox.guest.watch import lifetime
from sandbox.guest.watch.lifetime import Lifetime


class Clock:
    """In place of the module ``time``: it goes on from timer to timer, however late the machine is."""

    now = 0.0

    def monotonic(self) -> float:
        """The time of the timer that was waited for last."""
        return self.now


CLOCK = Clock()


class TimedReactor(Reactor):
    """Does not wait for a timer, but moves the clock to it."""

    def _wait(self) -> float:
        seconds = super()._wait()
        if seconds > 0:
            CLOCK.now = self._timers[0].due
        return min(seconds, 0.0)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now", 0.0)
    for module in (lifetime, reactor_module):
        monkeypatch.setattr(module, "time", CLOCK)


class _Command:
    def __init__(self, running: bool) -> None:
        self.running = running
        self.tree_empty = not running
        self.runner = None
        self.ended = 0.0


class _Place:
    workspace, roots, read_roots, root_names = "/", ("/",), (), ()

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits = limits


class _Sandbox:
    """As much of Processes as its lifetime looks at."""

    def __init__(self, **limits: float | None) -> None:
        self.place = _Place({"lifetime_seconds": None, "idle_seconds": None, **limits})
        self.commands: dict[str, _Command] = {}


def made(under_way: Callable[[], bool] = lambda: False, **limits: float | None) -> tuple[Reactor, Lifetime, _Sandbox]:
    reactor, sandbox = TimedReactor(), _Sandbox(**limits)
    commands = cast("dict[str, Command]", sandbox.commands)
    return reactor, Lifetime(reactor, sandbox.place.limits, commands, under_way), sandbox


def ended(reactor: Reactor) -> tuple[int, float]:
    """Run the loop. Returns its code, and the time when it ended."""
    given_up = threading.Timer(60.0, lambda: reactor.hand_over(reactor.stop))
    given_up.start()
    try:
        return reactor.run(), CLOCK.now
    finally:
        given_up.cancel()


class _Workers:
    """Notes of every job whether it counts as work; carries none out."""

    def __init__(self) -> None:
        self.watching: list[bool] = []

    def submit(self, _job: Callable[[], None], *, watching: bool = False) -> None:
        self.watching.append(watching)


@pytest.mark.parametrize("condition", [{"port": 80}, {"file": "x"}])
def test_looking_for_what_is_waited_for_is_no_work(condition: dict[str, Any]) -> None:
    reactor, workers = TimedReactor(), _Workers()
    nothing = dict.fromkeys(("id", "log", "exit", "port", "host", "file", "contains"))
    conditions = WaitFor(reactor, cast("Processes", _Sandbox()), cast("Any", workers))
    conditions.wait_for({**nothing, **condition, "timeout_seconds": 10}, lambda _fields, _blob: None)
    reactor.after(0.05, reactor.stop)
    reactor.run()
    assert workers.watching == [True]


def test_the_lifetime_ends_whatever_is_done() -> None:
    reactor, _, sandbox = made(lambda: True, lifetime_seconds=0.3, idle_seconds=0.2)
    sandbox.commands["c1"] = _Command(running=True)
    code, took = ended(reactor)
    assert (code, took >= 0.3) == (LIFETIME_OVER, True)


@pytest.mark.parametrize("before", [None, 0.1, 60.0])
def test_a_life_is_made_longer_or_shorter(before: float | None) -> None:
    reactor, life, _ = made(lifetime_seconds=before)
    life.live_for(0.4)
    assert (left := life.left()["lifetime_left_seconds"]) is not None
    assert left <= 0.4
    code, took = ended(reactor)
    assert (code, took >= 0.4) == (LIFETIME_OVER, True)


def test_idle_ends_when_nothing_is_done() -> None:
    reactor, life, _ = made(idle_seconds=0.3)
    reactor.after(0.2, lambda: life.touch(operation_named("write")))
    code, took = ended(reactor)
    assert (code, took >= 0.5) == (IDLE, True)


@pytest.mark.parametrize("operation", ["logs", "screen", "usage"])
def test_watching_is_no_work(operation: str) -> None:
    reactor, life, _ = made(idle_seconds=0.4)

    def watch() -> None:
        life.touch(operation_named(operation))
        reactor.after(0.05, watch)

    watch()
    code, _ = ended(reactor)
    assert code == IDLE


def test_a_command_that_runs_is_work() -> None:
    reactor, _, sandbox = made(idle_seconds=0.2)
    sandbox.commands["c1"] = _Command(running=True)

    def finish() -> None:
        sandbox.commands["c1"].running, sandbox.commands["c1"].ended = False, CLOCK.now

    reactor.after(0.8, finish)
    code, took = ended(reactor)
    assert (code, took >= 1.0) == (IDLE, True)


def test_an_operation_under_way_is_work() -> None:
    reactor, _, _ = made(lambda: CLOCK.now < 0.8, idle_seconds=0.2)
    code, took = ended(reactor)
    assert (code, took >= 0.9) == (IDLE, True)


def test_without_limits_nothing_ends() -> None:
    reactor, life, _ = made()
    assert life.left() == {"lifetime_left_seconds": None, "idle_left_seconds": None}
    assert life.notices() == []
    assert reactor._timers == []


def test_a_pause_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "LOOK_SECONDS", 0.2)
    reactor, _, _ = made(idle_seconds=0.5)
    reactor.after(0.1, lambda: setattr(CLOCK, "now", 1.1))  # nothing runs meanwhile, as when the sandbox is frozen
    code, took = ended(reactor)
    assert (code, took >= 1.3) == (IDLE, True)


def test_what_is_left_is_told_when_a_threshold_is_passed() -> None:
    _, life, _ = made(lifetime_seconds=4000.0)
    assert life.notices() == []
    life._started -= 3601  # a tenth is left
    (notice,) = life.notices()
    assert notice["code"] == "lifetime_ending"
    assert 390 < notice["seconds"] < 400
    assert life.notices() == []  # once
    life._started -= 110  # five minutes
    assert [n["code"] for n in life.notices()] == ["lifetime_ending"]
    assert life.notices() == []
    life._started -= 250  # one minute
    assert [n["code"] for n in life.notices()] == ["lifetime_ending"]
    assert life.notices() == []


def test_a_short_life_is_not_told_of_from_the_start() -> None:
    _, life, _ = made(lifetime_seconds=50.0)
    assert life.notices() == []
    life._started -= 46
    assert len(life.notices()) == 1


def test_who_only_watches_is_told_that_it_ends() -> None:
    _, life, _ = made(idle_seconds=1000.0)
    life._worked -= 950
    assert [n["code"] for n in life.notices()] == ["idle_ending"]
    assert life.notices() == []
    life.touch(operation_named("read"))
    assert life.notices() == []
    life._worked -= 950
    assert [n["code"] for n in life.notices()] == ["idle_ending"]
