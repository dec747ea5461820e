"""When a sandbox ends by itself: its lifetime is over, or it was idle for too long.

Work is a command that runs, in the foreground or in the background; an operation that acts on files or commands; and a process that
a command left behind, as long as it uses the processor. Watching (logs, screens, process lists, ``usage``, pings) is not work.

Both clocks are monotonic. Time in which the sandbox was paused counts for its lifetime, and does not count as idle.
"""

from __future__ import annotations

import time

from ..loop.reactor import Reactor
from ..protocol.constants import IDLE, LIFETIME_OVER
from .procfs import sum_tree_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..commands.command import Command
    from ..loop.operations import Operation
    from ..loop.reactor import Timer

# Regular looks detect a pause: after one, a look comes late.
LOOK_SECONDS, LEAST_SECONDS = 10.0, 0.05
# The share of a processor that processes left behind must use to count as work.
BUSY_SHARE = 0.01
# A notice is sent when this much time is left, if that is at most half of the whole; and another when a tenth is left.
THRESHOLDS = (300.0, 60.0)


class Lifetime:
    """Stops the reactor with an exit code when the time has come. Lives in the reactor's thread.

    ``is_busy`` returns whether an operation is under way. ``is_detached`` returns whether a kept sandbox has no host at the
    moment: then its keep_seconds run, and it is not idle (unless it belongs to a service).
    """

    def __init__(
        self,
        reactor: Reactor,
        limits: Mapping[str, Any],
        commands: Mapping[str, Command],
        is_busy: Callable[[], bool],
    ) -> None:
        self._reactor = reactor
        self._commands = commands
        self._is_busy = is_busy
        self._left_behind_seconds = 0.0
        self.is_detached: Callable[[], bool] = lambda: False
        self._reported: dict[str, float] = {}
        self.begin(limits)

    def begin(self, limits: Mapping[str, Any]) -> None:
        """Start the clocks. Called a second time only if there was no limit at first: the sandbox stood by."""
        self._lifetime: float | None = limits.get("lifetime_seconds")
        self._idle: float | None = limits.get("idle_seconds")
        self._started = self._worked = self._looked = time.monotonic()
        self._timer: Timer | None = None
        self._arm()

    def live_for(self, seconds: float) -> None:
        """Have ``seconds`` left of the lifetime, which may have had no limit until now."""
        self._lifetime = time.monotonic() - self._started + seconds
        self._reported.pop("lifetime", None)
        self._arm()

    def touch(self, operation: Operation) -> None:
        """Note that the host asks for ``operation``: if that is work, the sandbox is not idle."""
        if operation.is_work:
            self._worked = time.monotonic()

    def left(self) -> dict[str, float | None]:
        """Return the seconds that are left; None for a limit that is not set."""
        now = time.monotonic()
        worked = now if self._works() else self._last_work()
        return {
            "lifetime_left_seconds": None if self._lifetime is None else round(self._started + self._lifetime - now, 3),
            "idle_left_seconds": None if self._idle is None else round(worked + self._idle - now, 3),
        }

    def notices(self) -> list[dict[str, Any]]:
        """Return notices of the time that is left, one when each threshold is passed."""
        found = []
        now = time.monotonic()
        for name, limit, since in (("lifetime", self._lifetime, self._started), ("idle", self._idle, self._worked)):
            if limit is None:
                continue
            steps = _thresholds(limit)
            seconds = since + limit - now  # at least
            passed = [step for step in steps if seconds <= step]
            if passed:
                seconds = self.left()[f"{name}_left_seconds"] or 0.0
                passed = [step for step in steps if seconds <= step]
            if not passed:
                self._reported.pop(name, None)
            elif min(passed) < self._reported.get(name, limit):
                self._reported[name] = min(passed)
                found.append({"code": f"{name}_ending", "seconds": max(0.0, seconds), "limit": limit})
        return found

    def _arm(self) -> None:
        limits = [limit for limit in (self._lifetime, self._idle) if limit is not None]
        if not limits:
            return
        self._looked = time.monotonic()
        due = [LOOK_SECONDS, min(limits) / 10]
        if self._lifetime is not None:
            due.append(self._started + self._lifetime - self._looked)
        if self._idle is not None:
            due.append(self._last_work() + self._idle - self._looked)
        self._pause = max(LEAST_SECONDS, min(due))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.after(self._pause, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        late = now - self._looked - self._pause
        if late > LOOK_SECONDS:  # the sandbox was paused
            self._worked = self._last_work() + late
        if self._works() or self._left_behind_works(now - self._looked):
            self._worked = now
        if self._lifetime is not None and now >= self._started + self._lifetime:
            self._reactor.stop(LIFETIME_OVER)
        elif self._idle is not None and now >= self._last_work() + self._idle:
            self._reactor.stop(IDLE)
        else:
            self._arm()

    def _last_work(self) -> float:
        return max([self._worked, *(command.ended for command in self._commands.values())])

    def _works(self) -> bool:
        return self._is_busy() or self.is_detached() or any(c.running for c in self._commands.values())

    def _left_behind_works(self, seconds: float) -> bool:
        """Return whether processes of ended commands used the processor in the last ``seconds``."""
        if self._idle is None:
            return False
        ended = [c for c in self._commands.values() if not c.running and not c.tree_empty]
        used = sum(sum_tree_seconds(c.runner.pid) for c in ended if c.runner is not None)
        before, self._left_behind_seconds = self._left_behind_seconds, used
        return used - before > BUSY_SHARE * seconds


def _thresholds(limit: float) -> list[float]:
    return [limit / 10, *(step for step in THRESHOLDS if step <= limit / 2)]
