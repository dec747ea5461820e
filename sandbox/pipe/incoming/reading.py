"""Reading one pipe: by the process's reader, or for a moment by a caller that waits for its answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import cast

from sandbox.guest.protocol import wire
from sandbox.interrupts import Shield
from sandbox.pipe.pending_request import PendingRequest
from sandbox.pipe.reattaching import ByteStream, WatchedStream

from .blocking_stream import BlockingStream
from .frames import Frame, FrameReader
from .reader import pipe_reader

log = logging.getLogger(__name__)

# Read at once where no body is due: little, since what is in it of a long body is copied.
READ_BYTES = 1 << 14
# A pipe that never runs dry lets the others have their turn after this: after a few reads of long frames, or after one read of
# short ones, which take more time than their bytes.
MOST_READS = 8
MOST_SECONDS = 0.001
# Instead of the reason of an end while it is not known whether the sandbox has another host.
FOREIGN = "foreign_nonce"
# The reason and a detail.
End = tuple[str, str]

_threads = threading.local()


class Reading:
    """Takes frames off ``stream`` and passes each to ``take``, until ``ended(reason, detail)`` is called, once.

    Both are called by the thread that reads, or stops reading, and must not block. ``tick`` is that of ``reader.Watched``;
    ``received`` is what was read before.
    """

    def __init__(
        self,
        stream: ByteStream,
        nonce: bytes,
        received: bytes,
        take: Callable[[int, int, bytes | memoryview], None],
        ended: Callable[[str, str], None],
        tick: Callable[[float], float],
    ) -> None:
        # What cannot be watched gets a thread that waits for it.
        self.stream = cast("WatchedStream", stream) if hasattr(stream, "descriptors") else BlockingStream(stream)
        self.frames = FrameReader(nonce)
        self.heard = 0.0
        self.over = False
        self._received = received
        self._reader = pipe_reader()
        self._take, self._ended, self.tick = take, ended, tick
        self._role = threading.Lock()  # of reading, which nobody takes any more after the end

    def begin(self, due: float) -> None:
        """Read from now on, with a ``tick`` at ``due``. Raises OSError if there is no descriptor left."""
        self.heard = time.monotonic()
        self._reader.add(self, due)
        if self._received:
            self.read()

    def descriptors(self) -> tuple[int, ...]:
        """See ``reader.Watched``."""
        return self.stream.descriptors()

    def read(self) -> None:
        """See ``reader.Watched``."""
        if self._take_role(0):
            self._give_back(self._serve())

    def read_for(self, pending: PendingRequest, seconds: float, begin: Callable[[], bool] | None = None) -> None:
        """Read in the thread of a caller that waits, until there is something for it to do, unless another thread reads.

        It saves the hand-over from the reader to the caller. ``begin`` is called before, and returns whether to read. Signals wait
        meanwhile: a Ctrl-C must not lose bytes that were read.
        """
        with Shield() as shield:
            if not self._take_role(0):
                return
            end: End | None = None
            try:
                self._reader.disarm(self)
                until = time.monotonic() + seconds
                if begin is not None and not begin():
                    return
                while not pending.wants_turn and not shield.struck and (left := until - time.monotonic()) > 0:
                    if self.stream.ready(left) and (end := self._serve()) is not None:
                        break
            finally:
                self._give_back(end)

    def stop(self, timeout_seconds: float) -> bool:
        """Read no more, after waiting up to ``timeout_seconds`` for the thread that reads. Returns whether this was the end."""
        with Shield():
            if not self._take_role(timeout_seconds):
                return False
            self._end("closed", "")
            return True

    def _take_role(self, timeout_seconds: float) -> bool:
        """Become the one that reads. Returns False if another thread reads for longer than that, or the end was reached."""
        if not self._role.acquire(timeout=timeout_seconds):
            return False
        if self.over:
            self._role.release()
            return False
        return True

    def _give_back(self, end: End | None) -> None:
        """Let others read, unless it is the end."""
        if end is None:
            self._role.release()
            self._reader.arm(self)  # not earlier: what is reported while the role is taken is not reported again
        else:
            self._end(*end)

    def _end(self, reason: str, detail: str) -> None:
        self._reader.remove(self)
        try:
            self._ended(reason, detail)
        finally:
            self.over = True
            self._role.release()  # who waits for it in ``stop`` goes on at once

    def _serve(self) -> End | None:
        """Take the frames that have come, without waiting. Returns the end if there is nothing more to come."""
        try:
            if self._received:
                data, self._received = self._received, b""
                self._take_each(self.frames.find(memoryview(data)))
            return self._read_for_a_turn()
        except wire.ForeignNonceError as error:
            return FOREIGN, str(error)
        except wire.WireError as error:
            return "protocol_violation", str(error)
        except OSError as error:
            return "pipe_broken", str(error)
        except Exception as error:
            log.exception("the reader of a sandbox's pipe failed")
            return "host_failed", f"{type(error).__name__}: {error}"

    def _read_for_a_turn(self) -> End | None:
        reads, began = 0, time.monotonic()
        while True:
            room = self.frames.room
            buffer = _buffer() if room is None else room
            if reads >= MOST_READS or (reads and self.heard - began >= MOST_SECONDS):
                buffer = buffer[: self.stream.buffered]  # which nobody would report; the rest waits for the next turn
                if not buffer:
                    return None
            reads += 1
            size = self.stream.receive_into(buffer)
            if size == 0:
                return "pipe_broken", ""
            if size is not None:
                self.heard = time.monotonic()
                self._take_each(self.frames.find(buffer[:size]) if room is None else self.frames.fill(size))
            if size != len(buffer):
                return None

    def _take_each(self, frames: Iterable[Frame]) -> None:
        for kind, channel, payload in frames:
            self._take(kind, channel, payload)


def _buffer() -> memoryview:
    """Return the memory that this thread reads into where no body is due. Frames are copied out of it."""
    made: memoryview | None = getattr(_threads, "buffer", None)
    if made is None:
        made = _threads.buffer = memoryview(bytearray(READ_BYTES))
    return made
