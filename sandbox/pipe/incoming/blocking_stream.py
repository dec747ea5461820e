"""Let the reader watch a stream that can only be waited for, such as one that a test disturbs: a thread waits for it."""

from __future__ import annotations

import os
import select
import threading

from sandbox.interrupts import Shield
from sandbox.pipe.reattaching import ByteStream

_LOOK_SECONDS = 1.0


class BlockingStream:
    """Implements ``reattaching.WatchedStream`` over a ByteStream. Holds one piece at a time: the stream keeps the others."""

    buffered = 0

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.send, self.has_room, self.receive = stream.send, stream.has_room, stream.receive
        self._come = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._come, select.POLLIN)
        self._taken = threading.Semaphore(0)
        self._piece: memoryview | OSError = memoryview(b"")
        self._closed = False
        with Shield():
            threading.Thread(target=self._wait, name="gamebox-stream-wait", daemon=True).start()

    def __del__(self) -> None:
        os.close(self._come)

    def _wait(self) -> None:
        data: bytes | None = None
        while data != b"":
            try:
                data = b"" if self._closed else self._stream.receive(_LOOK_SECONDS)
                if data is None:
                    continue
                self._piece = memoryview(data)
            except OSError as error:
                self._piece, data = error, b""
            os.eventfd_write(self._come, 1)
            if data:
                self._taken.acquire()

    def descriptors(self) -> tuple[int, ...]:
        """See ``WatchedStream``."""
        return (self._come,)

    def ready(self, timeout_seconds: float) -> bool:
        """See ``WatchedStream``."""
        return bool(self._poll.poll(timeout_seconds * 1000))

    def receive_into(self, view: memoryview) -> int | None:
        """See ``WatchedStream``."""
        if not self.ready(0):
            return None
        piece = self._piece
        if isinstance(piece, OSError):
            raise piece
        size = min(len(view), len(piece))
        view[:size] = piece[:size]
        self._piece = piece[size:]
        if size == len(piece) and size:
            os.eventfd_read(self._come)
            self._taken.release()
        return size

    def close(self) -> None:
        self._closed = True
        self._stream.close()
        self._taken.release()

    def finish(self) -> None:
        """See ``WatchedStream``."""
