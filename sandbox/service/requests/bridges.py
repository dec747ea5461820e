"""Bytes from a task of the loop to a thread of the pipe, in bounded memory."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

from sandbox.service.http.problems import Problem, ProblemCode

# What may wait between both sides.
MOST_BYTES = 1 << 20
# Commands of all sandboxes whose input is streamed: each holds a thread.
MOST_FED = 256
# A waiting side looks again after this time whether the other side is still there.
LOOK_SECONDS = 1.0


class BrokenOffError(Exception):
    """The other side has left before the end."""


class Feeding:
    """How many commands read what their clients stream: those of one tenant are no more than it leaves to others."""

    def __init__(self, most: int = MOST_FED) -> None:
        self._left = most
        self._taken: Counter[str] = Counter()

    def begin(self, tenant: str) -> None:
        """Count one more of a tenant. Raises Problem if there are as many as there may be."""
        taken = self._taken[tenant]
        if taken >= self._left:
            raise Problem(
                429,
                ProblemCode.quota_exceeded,
                f"{taken} commands of this tenant read an input that is streamed, and the service has no room for more.",
                "Wait until some of them have ended. Up to 1 MiB of input can be sent as stdin, in the body of the request.",
                retryable=True,
                headers={"Retry-After": "1"},
                quota="streamed_inputs",
                used=taken,
            )
        self._left -= 1
        self._taken[tenant] += 1

    def end(self, tenant: str) -> None:
        """Count one less."""
        self._left += 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]


class Bridge:
    """Has one writer and one reader; what is written together is read together. Made in the loop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = self._broken = False
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def finish(self) -> None:
        """Say that nothing more is written. From any thread."""
        with self._changed:
            self._ended = True
            self._tell()

    def break_off(self) -> None:
        """Leave: the other side gets a BrokenOffError. From any thread; after ``finish`` it does nothing to the reader."""
        with self._changed:
            self._broken = True
            self._tell()

    def discard(self) -> None:
        """Leave, and forget what nobody reads any more. From any thread."""
        with self._changed:
            self._pieces.clear()
            self._size = 0
        self.break_off()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read."""
        return self._broken or (self._ended and not self._pieces)

    def _tell(self) -> None:
        self._changed.notify_all()
        self._loop.call_soon_threadsafe(self._news.set)

    def _add(self, data: bytes) -> None:
        if self._broken:
            raise BrokenOffError
        if data:
            self._pieces.append(data)
            self._size += len(data)

    def _take(self) -> bytes | None:
        """Return what was written, b"" if there is nothing yet, None at the end."""
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            return data
        if self._ended:
            return None
        if self._broken:
            raise BrokenOffError
        return b""


class BodyBridge(Bridge):
    """Written by a task, read by a thread."""

    async def write(self, data: bytes) -> None:
        """Pass ``data`` on; waits while much of what came before was not read. Raises BrokenOffError."""
        while True:
            self._news.clear()
            with self._changed:
                if self._size < MOST_BYTES or self._broken:
                    self._add(data)
                    self._changed.notify_all()
                    return
            await self._news.wait()

    def __iter__(self) -> Iterator[bytes]:
        """Yield what comes, in the reader's thread. Raises BrokenOffError."""
        while True:
            with self._changed:
                while (data := self._take()) == b"":
                    self._changed.wait(LOOK_SECONDS)
            if data is None:
                return
            self._loop.call_soon_threadsafe(self._news.set)
            yield data
