"""The guest's event loop: descriptors, timers, and calls from other threads.

Not asyncio: it takes 35 ms to import, and its timers cannot be put off by the time that a sandbox was paused.
"""

from __future__ import annotations

import os
import select
import time

from ..builtin import deque, heappop, heappush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[int], None]


# A loop that is this late was not just busy: the sandbox was paused, or had no processor.
OVERSLEPT_SECONDS = 0.5


class Timer:
    """A call due at a monotonic time in seconds; ``cancel`` makes it do nothing."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do nothing when due."""
        self.call = None

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class Reactor:
    """Run callbacks in the thread that calls ``run``; ``hand_over`` is the only method for other threads."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[Timer] = []
        self._handed: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._running = True
        self._code = 0
        self.watch(self._wake, select.EPOLLIN, self._take_handed)

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """Call ``callback(events)`` when ``fd`` is ready."""
        if fd in self._callbacks:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``; call before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except OSError:  # closed already
                pass

    def forget(self, fd: int) -> None:
        """Forget ``fd`` without a system call. Every descriptor of its file must be closed before the next poll."""
        self._callbacks.pop(fd, None)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call ``call`` once, ``seconds`` from now."""
        timer = Timer(time.monotonic() + seconds, call)
        heappush(self._timers, timer)
        return timer

    def hand_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` in the reactor's thread; may be used from any thread."""
        self._handed.append(call)
        os.eventfd_write(self._wake, 1)

    def postpone_timers(self, seconds: float) -> None:
        """Put off every timer by ``seconds`` for which the sandbox was paused."""
        for timer in self._timers:
            timer.due += seconds

    def stop(self, code: int = 0) -> None:
        """Make ``run`` return ``code`` after the current round."""
        self._running = False
        self._code = code

    def run(self) -> int:
        """Serve until ``stop`` is called. Returns its code."""
        while self._running:
            self._serve(self._wait())
            if self._overslept():
                self._serve(0)
            self._run_timers()
        return self._code

    def _serve(self, seconds: float) -> None:
        for fd, events in self._epoll.poll(seconds):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(events)

    def _overslept(self) -> bool:
        """Return whether this process was stopped past a timer. What arrived meanwhile is read before the timer acts on silence."""
        return bool(self._timers) and time.monotonic() - self._timers[0].due > OVERSLEPT_SECONDS

    def _wait(self) -> float:
        while self._timers and self._timers[0].call is None:
            heappop(self._timers)
        return max(0.0, self._timers[0].due - time.monotonic()) if self._timers else -1

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].due <= now:
            call = heappop(self._timers).call
            if call is not None:
                call()

    def _take_handed(self, _: int) -> None:
        os.eventfd_read(self._wake)
        for _i in range(len(self._handed)):
            self._handed.popleft()()
