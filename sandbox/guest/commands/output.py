"""The output of a command: its head and tail in memory, all of it up to a limit in a spill file."""

from __future__ import annotations

import os

from ..builtin import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STDOUT, STDERR = 1, 2
# Where the output changes between its streams is kept so often, and told so often in one answer: each takes memory.
MOST_CHANGES, MOST_TOLD_CHANGES = 1024, 256
SETTLED_BYTES = 64 * 1024
# Longer output goes into a file, so that a result that shows less than is kept can say where the rest is.
SPILLED_FROM_BYTES = 8 * 1024
SPILL_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Output:
    """Collects both streams of one command in the order of arrival, in bounded memory.

    ``keep_bytes`` is how much a result may show: one half from the start, the other from the end. When more than that arrives, or
    more than SPILLED_FROM_BYTES, a spill file is made at ``path`` that contains everything up to ``spill_limit`` bytes.
    ``make_room`` is called when the file system of the spill file is full, and returns whether it freed something.
    """

    def __init__(self, path: bytes, keep_bytes: int, spill_limit: int, make_room: Callable[[], bool]) -> None:
        self.path = path
        self.total = 0
        self.spilled = 0
        self.spill_truncated = False
        self.keep_bytes = keep_bytes
        self._spill_limit = spill_limit
        self._make_room = make_room
        self._head: list[tuple[int, bytes]] = []
        self._head_room = keep_bytes - keep_bytes // 2
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_size = 0
        self._fd: int | None = None
        self._stream = 0
        self._changes: list[int] = []  # four times the offset, and the stream from there on; 0 is unknown

    @property
    def has_spill(self) -> bool:
        """Whether there is a spill file."""
        return self._fd is not None

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail are no longer in memory."""
        return self.total > self.keep_bytes

    def append(self, stream: int, data: bytes) -> None:
        """Add what the command wrote to ``stream``."""
        if stream != self._stream:
            self._stream = stream
            if len(self._changes) <= MOST_CHANGES:
                self._changes.append(4 * self.total + (stream if len(self._changes) < MOST_CHANGES else 0))
        self.total += len(data)
        if self._fd is None and self.total > min(self.keep_bytes, SPILLED_FROM_BYTES) and not self.spill_truncated:
            self._open_spill()
        if self._fd is not None:
            self._spill(data)
        if self._head_room:
            kept = data[: self._head_room]
            self._head.append((stream, kept))
            self._head_room -= len(kept)
            data = data[len(kept) :]
        if data:
            self._tail.append((stream, data))
            self._tail_size += len(data)
            self._trim()

    def fields(self) -> dict[str, Any]:
        """Return what the result of the command says of its output."""
        return {
            "output_bytes": self.total,
            "truncated": self.truncated,
            "spill_path": os.fsdecode(self.path) if self.has_spill else None,
            "spill_truncated": self.truncated and self.spill_truncated,
        }

    def finish(self) -> tuple[dict[str, Any], list[list[int]], bytes]:
        """Return the ``fields`` and ``segments`` of a command that has ended, and free memory, see ``settle``."""
        fields, (segments, data) = self.fields(), self.segments()
        self.settle()
        return fields, segments, data

    def segments(self) -> tuple[list[list[int]], bytes]:
        """Return what is kept: segments ``[stream, length, 0 for head or 1 for tail]``, and their bytes joined."""
        parts = [(s, d, 0) for s, d in self._head] + [(s, d, 1) for s, d in self._tail]
        segments: list[list[int]] = []
        for stream, data, part in parts:
            if segments and segments[-1][0] == stream and segments[-1][2] == part:
                segments[-1][1] += len(data)
            else:
                segments.append([stream, len(data), part])
        return segments, b"".join(d for _, d, _ in parts)

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """Return (start, bytes) from ``offset`` on; ``start`` is later than ``offset`` if the bytes there are no longer kept."""
        if self._fd is not None and offset < self.spilled:
            return offset, os.pread(self._fd, min(size, self.spilled - offset), offset)
        tail_start = self.total - self._tail_size
        if self._held() == self.total:
            data = b"".join(d for _, d in (*self._head, *self._tail))
            return min(offset, self.total), data[offset : offset + size]
        start = max(offset, tail_start)
        data = b"".join(d for _, d in self._tail)
        return min(start, self.total), data[start - tail_start : start - tail_start + size]

    def streams(self, start: int, size: int) -> list[list[int]]:
        """Return the streams of ``size`` bytes from ``start`` on as ``[stream, length]``, as far as they are known."""
        found: list[list[int]] = []
        end = start + size
        for change, following in zip(self._changes, [*self._changes[1:], 4 * max(end, self.total)], strict=False):
            length = min(following // 4, end) - max(change // 4, start)
            if length > 0:
                if not change % 4 or len(found) == MOST_TOLD_CHANGES:
                    break
                found.append([change % 4, length])
        return found

    def settle(self) -> None:
        """Free memory after the command has ended and its result is known: beyond SETTLED_BYTES only the spill file is kept."""
        if not self.total:  # most commands print nothing
            return
        if self._held() <= SETTLED_BYTES:
            # Joined, because a command that writes byte by byte leaves pieces that take a hundred times its output. The stream of
            # each piece was in the result and is not needed again.
            self._head = [(STDOUT, b"".join(data for _, data in self._head))]
            self._tail = deque([(STDOUT, b"".join(data for _, data in self._tail))])
            return
        if self._fd is None and not self.spill_truncated:
            self._open_spill()
        if self._fd is not None:
            self._head.clear()
            self._tail.clear()
            self._tail_size = self._head_room = 0

    def _held(self) -> int:
        return self._tail_size + sum(len(data) for _, data in self._head)

    def tail(self) -> bytes:
        """Return the end of what is kept, about SETTLED_BYTES of it."""
        parts: list[bytes] = []
        size = 0
        for _, data in (*reversed(self._tail), *reversed(self._head)):
            parts.append(data[-SETTLED_BYTES:])
            size += len(data)
            if size >= SETTLED_BYTES:
                break
        return b"".join(reversed(parts))

    def discard(self) -> None:
        """Remove the spill file. Head and tail stay."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self.spill_truncated = True
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def _trim(self) -> None:
        over = self._tail_size - self.keep_bytes // 2
        while over > 0:
            stream, data = self._tail.popleft()
            cut = min(over, len(data))
            if cut < len(data):
                self._tail.appendleft((stream, data[cut:]))
            self._tail_size -= cut
            over -= cut

    def _open_spill(self) -> None:
        try:
            self._fd = os.open(self.path, SPILL_FLAGS, 0o644)
        except OSError:
            self.spill_truncated = True
            return
        for _, data in (*self._head, *self._tail):
            self._spill(data)

    def _spill(self, data: bytes) -> None:
        if self.spill_truncated or self._fd is None:
            return
        fits = memoryview(data)[: self._spill_limit - self.spilled]
        self.spill_truncated = len(fits) < len(data)
        while fits and self._fd is not None:  # make_room may have removed this very file
            try:
                written = os.write(self._fd, fits)
            except OSError:
                if not self._make_room():
                    self.spill_truncated = True
                    return
                continue
            self.spilled += written
            fits = fits[written:]
