"""Stream the standard input of a command to a guest, from a file or an iterator of the host."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Self

from sandbox.guest.protocol.wire import Kind
from sandbox.interrupts import Shield

from .pending_request import PendingRequest
from .stdin import CHUNK, pieces

LOOK_SECONDS = 1.0


class Feeder:
    """Streams ``source`` to a command while its caller waits for the answer (``with``), no faster than the command reads.

    ``flow(kind, channel, payload)`` sends a frame. The source is read in a thread of its own, so that a source that never
    ends delays no answer; that thread ends when the source returns. An exception of the source stops the command and becomes
    ``error``.
    """

    def __init__(
        self,
        flow: Callable[[int, int, bytes | memoryview], None],
        pending: PendingRequest,
        source: Iterable[bytes] | None,
    ) -> None:
        self.error: BaseException | None = None
        self._flow = flow
        self._pending = pending
        self._source = source
        self._over = False
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        if self._source is not None:
            self._pending.on_room = self._wake
            try:
                with Shield():  # the start of a thread waits for an Event, whose lock a signal can leave taken
                    threading.Thread(target=self._work, args=(self._source,), name="gamebox-stdin", daemon=True).start()
            except BaseException:  # a Ctrl-C: a block that was not entered is not left either
                self.__exit__()
                raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._room.empty():
            self._room.put(None)

    def _work(self, source: Iterable[bytes]) -> None:
        try:
            for piece in pieces(source):
                if not self._send(piece):
                    return
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            if not self._ended:
                self.error = error
                self._pending.cancel()
            return
        with contextlib.suppress(OSError):  # the reader notices, and words it
            self._flow(Kind.END, self._pending.channel, b"")

    @property
    def _ended(self) -> bool:
        pending = self._pending
        return self._over or pending.reply is not None or pending.error is not None

    def _send(self, piece: bytes) -> bool:
        """Send all of ``piece``. Returns False if it is not wanted any more."""
        pending, view = self._pending, memoryview(piece)
        while view:
            while pending.outgoing.left <= 0 and not self._ended:
                with contextlib.suppress(queue.Empty):
                    self._room.get(timeout=LOOK_SECONDS)
            if self._ended:
                return False
            part = view[: min(pending.outgoing.left, CHUNK)]
            with pending.lock:
                pending.outgoing.use(len(part))
            try:
                self._flow(Kind.DATA, pending.channel, part)
            except OSError:  # the reader notices, and words it
                return False
            view = view[len(part) :]
        return not self._ended
