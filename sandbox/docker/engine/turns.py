"""Have sandboxes start in turns: if more start at once, the engine does not make more per second, and each takes longer."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.errors import ErrorCode, SandboxError
from sandbox.interrupts import Shield
from sandbox.readers import Hint

AT_ONCE = 8
WAIT_SECONDS = 30.0
"""The deadline for a turn: as long as a guest may take to answer for the first time."""
_WAKE_SECONDS = 0.05


class Turns:
    """Lets ``at_once`` callers be in a ``turn`` at the same time; the others wait in the order in which they came."""

    def __init__(self, at_once: int = AT_ONCE, wait_seconds: float = WAIT_SECONDS) -> None:
        self._at_once, self._wait_seconds = at_once, wait_seconds
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin with all turns free, also in a forked process: those who had them are threads of its parent."""
        self._lock = threading.Lock()
        self._free = self._at_once
        self._queue: deque[threading.Event] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a turn in the block. Raises SandboxError ``capacity`` if none comes in time."""
        mine = threading.Event()  # set when it is this caller's turn
        try:
            with Shield(), self._lock:
                if self._free:
                    self._free -= 1
                    mine.set()
                else:
                    self._queue.append(mine)
            self._wait(mine)
            yield
        finally:  # after a Ctrl-C, too
            with Shield(), self._lock:
                self._leave(mine)

    def _wait(self, mine: threading.Event) -> None:
        deadline = time.monotonic() + self._wait_seconds
        while not mine.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._refusal(mine)
            with Shield():  # an Event's own lock can be left taken by a signal
                mine.wait(min(left, _WAKE_SECONDS))

    def _leave(self, mine: threading.Event) -> None:
        if not mine.is_set():
            if mine in self._queue:
                self._queue.remove(mine)
        elif self._queue:
            self._queue.popleft().set()
        else:
            self._free += 1

    def _refusal(self, mine: threading.Event) -> SandboxError:
        with Shield(), self._lock:
            before = self._queue.index(mine) if mine in self._queue else 0
        return SandboxError(
            ErrorCode.capacity,
            f"The sandbox got no turn to start within {self._wait_seconds:g} s (being started: {self._at_once}; waiting before it: "
            f"{before}). Nothing was started.",
            Hint(
                "Try again when fewer sandboxes are being started.",
                "Start fewer at once: this process started more than the engine makes in that time.",
                "Start fewer at once, or try again: the engine makes a sandbox in a fraction of a second.",
            ),
            retryable=True,
        )


turns = Turns()
