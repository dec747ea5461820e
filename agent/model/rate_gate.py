"""Waiting together: one gate per model and address in this process, for every run of a tree and every task of a batch."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A call that goes first may take long; the others do not wait for it longer than this.
FIRST_SECONDS = 5.0
# With so many calls under way at once and none refused, the limit is over.
FREE_WIDTH = 64
# Waking often lets Ctrl-C and the limits of the run through.
_POLL_SECONDS = 0.5


class RateGate:
    """Closed after a 429 until the provider's Retry-After is over; then one call goes out, and more with each that succeeds.

    Without it each of many workers would learn of the limit by a refused call of its own, and all of them would come back at
    the same moment to be refused again. Safe for threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limited = False
        self._closed_until = 0.0
        self._width = 1  # calls that may be under way at once while it is limited
        self._under_way = 0
        self._entered_at = 0.0

    def close(self, seconds: float) -> None:
        """Let no call out for ``seconds``; a shorter time than the present one changes nothing."""
        with self._changed:
            self._limited, self._width = True, 1
            self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    @contextmanager
    def passing(self, check: Callable[[], None]) -> Iterator[None]:
        """Wait until a call may go out, and note in the end whether it succeeded.

        ``check`` runs before each wait of at most half a second; its exception ends the wait.
        """
        counted, closed_until = self._enter(check)
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            self._leave(counted, succeeded and closed_until == self._closed_until)

    def _enter(self, check: Callable[[], None]) -> tuple[bool, float]:
        with self._changed:
            while True:
                check()
                now = time.monotonic()
                if not self._limited or self._may_go(now):
                    break
                self._changed.wait(min(max(self._closed_until - now, 0.05), _POLL_SECONDS))
            if self._limited:
                self._under_way += 1
                self._entered_at = now
            return self._limited, self._closed_until

    def _may_go(self, now: float) -> bool:
        has_place = self._under_way < self._width or now - self._entered_at >= FIRST_SECONDS
        return now >= self._closed_until and has_place

    def _leave(self, counted: bool, widens: bool) -> None:
        with self._changed:
            self._under_way -= counted
            if widens and self._limited:
                self._width += 1
                self._limited = self._width <= FREE_WIDTH
            self._changed.notify_all()


_gates: dict[str, RateGate] = {}
_lock = threading.Lock()


def gate_for(model: str, address: object = None, key: object = None) -> RateGate:
    """Return the gate that all callers of this model share; another address or another key has limits of its own."""
    secret = "" if key is None else hashlib.sha256(str(key).encode()).hexdigest()
    name = "\n".join([model, str(address or ""), secret])
    with _lock:
        return _gates.setdefault(name, RateGate())
