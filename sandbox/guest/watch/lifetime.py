"""When a sandbox ends by itself: its lifetime is over, or nothing was done in it for too long.

Work is: a command that runs, in the foreground or in the background; an operation that acts on files or commands; and a process
that a command left behind, as long as it computes. Watching is none: logs, screens, lists of processes, ``usage``, pings.

Both clocks are the monotonic one. Time in which the sandbox was paused counts for its lifetime, and does not count as idle.
"""

from __future__ import annotations

import time

from ..loop.reactor import Reactor
from ..protocol.constants import IDLE, LIFETIME_OVER
from .spending import tree_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes

# A look now and then tells a pause: it comes late then.
LOOK_SECONDS, LEAST_SECONDS = 10.0, 0.05
# What left-behind processes must use of a processor to count as work.
BUSY_SHARE = 0.01
# Told once each when only so much is left, as far as that is at most half of all; and when a tenth is left.
THRESHOLDS = (300.0, 60.0)
WATCHING = frozenset({"logs", "screen", "processes", "usage", "resize", "wait_for", "describe"})


class Lifetime:
    """Stops the reactor with the exit code when the time has come. Lives in the reactor's thread.

    ``under_way`` says whether an operation is.
    """

    def __init__(self, reactor: Reactor, processes: Processes, under_way: Callable[[], bool]) -> None:
        limits = processes.place.limits
        self._reactor = reactor
        self._processes = processes
        self._under_way = under_way
        self._lifetime: float | None = limits.get("lifetime_seconds")
        self._idle: float | None = limits.get("idle_seconds")
        self._started = self._worked = self._looked = time.monotonic()
        self._left_behind = 0.0
        # Whether a kept sandbox has no host at the moment: then its keep_seconds run, and it is not idle.
        self.alone: Callable[[], bool] = lambda: False
        self._told: dict[str, float] = {}
        self._arm()

    def touch(self, operation: str) -> None:
        """``operation`` is asked for."""
        if operation not in WATCHING:
            self._worked = time.monotonic()

    def left(self) -> dict[str, float | None]:
        """Seconds that are left, None where there is no such limit."""
        now = time.monotonic()
        worked = now if self._busy() else self._last_work()
        return {
            "lifetime_left_seconds": None if self._lifetime is None else round(self._started + self._lifetime - now, 3),
            "idle_left_seconds": None if self._idle is None else round(worked + self._idle - now, 3),
        }

    def notices(self) -> list[dict[str, Any]]:
        """What is to be told of the time that is left: each threshold once."""
        found = []
        left = self.left()
        for name, all_of_it in (("lifetime", self._lifetime), ("idle", self._idle)):
            seconds = left[f"{name}_left_seconds"]
            if all_of_it is None or seconds is None:
                continue
            passed = [step for step in _steps(all_of_it) if seconds <= step]
            if not passed:
                self._told.pop(name, None)
            elif min(passed) < self._told.get(name, all_of_it):
                self._told[name] = min(passed)
                found.append({"code": f"{name}_ending", "seconds": max(0.0, seconds), "limit": all_of_it})
        return found

    # --- looking ------------------------------------------------------------------
    def _arm(self) -> None:
        spans = [span for span in (self._lifetime, self._idle) if span is not None]
        if not spans:
            return
        self._looked = time.monotonic()
        due = [LOOK_SECONDS, min(spans) / 10]
        if self._lifetime is not None:
            due.append(self._started + self._lifetime - self._looked)
        if self._idle is not None:
            due.append(self._last_work() + self._idle - self._looked)
        self._pause = max(LEAST_SECONDS, min(due))
        self._reactor.after(self._pause, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        late = now - self._looked - self._pause
        if late > LOOK_SECONDS:  # the sandbox was paused
            self._worked = self._last_work() + late
        if self._busy() or self._left_behind_computes(now - self._looked):
            self._worked = now
        if self._lifetime is not None and now >= self._started + self._lifetime:
            self._reactor.stop(LIFETIME_OVER)
        elif self._idle is not None and now >= self._last_work() + self._idle:
            self._reactor.stop(IDLE)
        else:
            self._arm()

    def _last_work(self) -> float:
        return max([self._worked, *(c.ended for c in self._processes.commands.values())])

    def _busy(self) -> bool:
        return self._under_way() or self.alone() or any(c.running for c in self._processes.commands.values())

    def _left_behind_computes(self, seconds: float) -> bool:
        if self._idle is None:
            return False
        left = [
            c for c in self._processes.commands.values() if not c.running and not c.tree_empty and c.runner is not None
        ]
        used = sum(tree_seconds(c.runner.pid) for c in left if c.runner is not None)
        before, self._left_behind = self._left_behind, used
        return used - before > BUSY_SHARE * seconds


def _steps(span: float) -> list[float]:
    return [span / 10, *(step for step in THRESHOLDS if step <= span / 2)]
