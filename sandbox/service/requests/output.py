"""The last output of a request that is streamed: written by a thread of the pipe, read by any number of tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.frozen import dataclass

from .spill import Spill

# A reader that is further behind is cut, and may resume. Before that, the command waits for it, unless it reads nothing any more.
MOST_BYTES = 1 << 20
PATIENCE_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 0.1
PIECE_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the output; ``offset`` counts the bytes of both streams in the order in which they came."""

    stream: str
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset of what follows."""
        return self.offset + len(self.data)


class OutputGoneError(Exception):
    """The output at that offset is not kept here any more."""


_FIRST = object()


class OutputLog:
    """Keeps the last MOST_BYTES of the output, and what came before in ``spill``. Made in a loop, whose tasks read it.

    With ``catches_up`` readers may be ahead of what was added: they have read it from a service before this one.
    """

    def __init__(
        self, is_stopped: Callable[[], bool] = bool, spill: Spill | None = None, *, catches_up: bool = False
    ) -> None:
        self._is_stopped, self._spill, self._catches_up = is_stopped, spill, catches_up
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # The first reader comes a moment after the first output may.
        self._readers: dict[object, int] = {_FIRST: 0}
        self._pieces: deque[Piece] = deque()
        self._start = self.end = 0
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._told = False
        self._noted = asyncio.Event()  # that a reader has read something
        self._slowest, self._until = -1, 0.0

    def append(self, stream: str, data: bytes) -> None:
        """Add output; may be called from any thread but the loop's. Waits while readers are behind."""
        with self._lock:
            self._slowest = -1
            while not self._has_room(len(data)):
                self._room.wait(LOOK_AGAIN_SECONDS)
        self.add(stream, data)

    async def room(self, size: int) -> None:
        """Wait while readers are behind, before so many bytes are added in the loop."""
        self._slowest = -1
        while True:
            self._noted.clear()
            with self._lock:
                if self._has_room(size):
                    return
            try:
                async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                    await self._noted.wait()
            except TimeoutError:
                pass

    def add(self, stream: str, data: bytes) -> None:
        """Add output, whether or not readers are behind."""
        with self._lock:
            for at in range(0, len(data), PIECE_BYTES):
                piece = Piece(stream, self.end, data[at : at + PIECE_BYTES])
                self._pieces.append(piece)
                self.end = piece.end
            while self.end - self._start > MOST_BYTES:
                oldest = self._pieces.popleft()
                self._start = oldest.end
                if self._spill is not None:
                    self._spill.add(oldest.stream, oldest.offset, oldest.data)
        self._tell()

    def _has_room(self, size: int) -> bool:
        """Return whether all readers are close enough to the end; forget those that take nothing for a while."""
        while self._readers and self.end + size - min(self._readers.values()) > MOST_BYTES and not self._is_stopped():
            behind = min(self._readers.values())
            if behind == self.end:  # this piece alone is larger than all that is kept
                return True
            if behind > self._slowest:
                self._slowest, self._until = behind, time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() <= self._until:
                return False
            self._readers = {reader: offset for reader, offset in self._readers.items() if offset > behind}
        return True

    @contextmanager
    def reading(self, offset: int) -> Iterator[Callable[[int], None]]:
        """Have the output wait during the block for a reader at ``offset``, who tells how far it is by what is yielded."""
        reader = object()

        def note(offset: int) -> None:
            with self._room:
                self._readers.pop(_FIRST, None)
                self._readers[reader] = offset
                self._room.notify_all()
            self._noted.set()

        note(offset)
        try:
            yield note
        finally:
            with self._room:
                self._readers.pop(reader, None)
                self._room.notify_all()
            self._noted.set()

    def skip_to(self, offset: int) -> None:
        """Note that what comes before ``offset`` is not to be had any more."""
        with self._lock:
            self._pieces.clear()
            self._start = self.end = offset
            if self._spill is not None:
                self._spill.close()
        self._tell()

    def finish(self) -> None:
        """Note that nothing follows."""
        self.ended = True
        self._tell()

    def after(self, offset: int) -> list[Piece]:
        """Return what is known from ``offset`` on, at least some of it. Raises OutputGoneError."""
        with self._lock:
            if self._spill is not None and offset < min(self._start, self._spill.end):
                stream, data = self._spill.read(offset, PIECE_BYTES)
                return [Piece(stream, offset, data)]
            if self._catches_up and not self.ended and offset > self.end:
                return []
            if not self._start <= offset <= self.end:
                raise OutputGoneError
            found = [piece for piece in self._pieces if piece.end > offset]
        if found and found[0].offset < offset:
            first = found[0]
            found[0] = Piece(first.stream, offset, first.data[offset - first.offset :])
        return found

    @property
    def memory_bytes(self) -> int:
        """How much of it is in memory."""
        return self.end - self._start

    def forget_spill(self) -> None:
        """Keep no more than what is in memory."""
        with self._lock:
            if self._spill is not None:
                self._spill.close()

    async def wait(self, offset: int, seconds: float) -> bool:
        """Wait until there is more than ``offset``, or the end; return False if there was neither within ``seconds``."""
        async with asyncio.timeout(seconds) as limit:
            try:
                while self.end <= offset and not self.ended:
                    news = self._news
                    await news.wait()
            except asyncio.CancelledError:
                if limit.expired():
                    return False
                raise
        return True

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._news.set()
        self._news = asyncio.Event()
