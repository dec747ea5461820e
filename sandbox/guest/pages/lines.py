"""What a process of the guest's own writes: answers, one a line, in bounded memory."""

from __future__ import annotations

from ..builtin import deque
from ..commands.output import STDOUT, Output

LOG_BYTES = 2000
MOST_LINES = 8  # at a time: such a process is asked for one answer at a time


class Lines(Output):
    """The lines of standard output, each of at most ``line_bytes``; of standard error, the end."""

    def __init__(self, line_bytes: int) -> None:
        super().__init__(b"", 0, 0, lambda: False)
        self.log = b""
        self.overflown = False
        self._line_bytes = line_bytes
        self._pending: list[bytes] = []
        self._size = 0
        self._taken: deque[bytes] = deque()

    def append(self, stream: int, data: bytes) -> None:
        """Add what was written to ``stream``."""
        if stream != STDOUT:
            self.log = (self.log + data)[-LOG_BYTES:]
            return
        if self.overflown:
            return
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._taken.append(b"".join((*self._pending, piece)))
            self._pending, self._size = [], 0
        if rest:
            self._pending.append(rest)
            self._size += len(rest)
        if self._size > self._line_bytes or len(self._taken) > MOST_LINES:
            self.overflow()

    def overflow(self) -> None:
        """Forget what was written, and take no more."""
        self.overflown = True
        self._pending, self._size = [], 0
        self._taken.clear()

    def take(self) -> bytes | None:
        """Return the next whole line, or None."""
        return self._taken.popleft() if self._taken else None
