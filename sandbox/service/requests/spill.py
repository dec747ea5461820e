"""Output that is older than what is kept in memory, in unnamed files: a client whose connection was cut reads it from there."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import weakref
from bisect import bisect_right
from pathlib import Path

log = logging.getLogger(__name__)

# Of one request, as much as a sandbox itself keeps of a command's output.
MOST_BYTES = 64 << 20
# Of all requests of a service.
MOST_TOGETHER = 1 << 30
# A command that changes between its streams more often is not kept further: each change takes memory.
MOST_RUNS = 100_000


class SpillRoom:
    """The folder of the files, and how much all of them may take: ``most``, and what is left ``within`` another one.

    For any thread.
    """

    def __init__(self, folder: Path, most: int | None = MOST_TOGETHER, within: SpillRoom | None = None) -> None:
        self.folder = folder
        self.taken = 0
        self._most, self._within = most, within
        self._lock = threading.Lock()

    def set_most(self, most: int | None) -> None:
        """Have another bound from now on; None is none of its own."""
        self._most = most

    def take(self, size: int) -> bool:
        """Take room for ``size`` bytes; return whether there was enough."""
        with self._lock:
            if self._most is not None and self.taken + size > self._most:
                return False
            if self._within is not None and not self._within.take(size):
                return False
            self.taken += size
            return True

    def give_back(self, size: int) -> None:
        """Have the room back."""
        with self._lock:
            self.taken -= size
        if self._within is not None:
            self._within.give_back(size)


class Spill:
    """The output of one request from its beginning to ``end``. One thread at a time uses it."""

    def __init__(self, room: SpillRoom) -> None:
        self.end = 0
        self._room = room
        self._descriptor: int | None = None
        self._starts: list[int] = []  # of runs of one stream
        self._streams: list[str] = []
        self._full = False
        self._free: weakref.finalize[[int, SpillRoom, list[int]], Spill] | None = None
        self._taken = [0]

    def add(self, stream: str, offset: int, data: bytes) -> None:
        """Keep what follows; from the first time on that there is no room for it, nothing more is kept."""
        if self._full or offset != self.end:
            return
        new_run = not self._streams or self._streams[-1] != stream
        fits = self.end + len(data) <= MOST_BYTES and len(self._starts) < MOST_RUNS
        if not fits or not self._write(data):
            self._full = True
            return
        if new_run:
            self._starts.append(offset)
            self._streams.append(stream)
        self.end += len(data)

    def read(self, offset: int, most: int) -> tuple[str, bytes]:
        """Return the stream and at most so many bytes of its output from ``offset`` on, which lies before ``end``."""
        run = bisect_right(self._starts, offset) - 1
        end = self._starts[run + 1] if run + 1 < len(self._starts) else self.end
        size = min(most, end - offset)
        return self._streams[run], b"" if self._descriptor is None else os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        """Forget all of it; may be called more than once."""
        self.end, self._full, self._descriptor = 0, True, None
        if self._free is not None:
            self._free()

    def _write(self, data: bytes) -> bool:
        if not self._room.take(len(data)):
            return False
        self._taken[0] += len(data)
        try:
            if self._descriptor is None:
                self._open()
            done = 0
            while self._descriptor is not None and done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self.end + done)
        except OSError as error:
            log.warning("the output of a command could not be kept: %s", error)
            return False
        return True

    def _open(self) -> None:
        self._room.folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._room.folder)
        os.unlink(name)  # noqa: PTH108  # a name, not a path of ours
        self._descriptor = descriptor
        self._free = weakref.finalize(self, _free, descriptor, self._room, self._taken)


def _free(descriptor: int, room: SpillRoom, taken: list[int]) -> None:
    os.close(descriptor)
    room.give_back(taken[0])
