"""How many bytes of new layers there may be, for builds at once that share a quota."""

from __future__ import annotations

import threading


class Room:
    """Builds in any thread take from it what their layers need: together they never take more than there is."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._taken = most_bytes, 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """How much was taken so far."""
        return self._taken

    @property
    def left(self) -> int:
        """How much may be taken still."""
        with self._lock:
            return max(0, self._most - self._taken)

    def take(self, count: int) -> bool:
        """Take ``count`` bytes and return True; if fewer are left, take nothing and return False."""
        with self._lock:
            if self._taken + count > self._most:
                return False
            self._taken += count
            return True

    def measured(self, left: int, since: int) -> None:
        """Note that ``left`` bytes were there, measured after ``since`` were taken: what came later may not be part of it."""
        with self._lock:
            self._most = since + left
