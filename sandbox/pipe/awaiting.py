"""Await a request over the pipe in an asyncio loop. The process's reader wakes the task: no thread waits for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

from sandbox.guest.protocol.wire import Kind

from .pending_request import GRACE_SECONDS, SHORT, Cut, PendingRequest
from .sender import TURN_SECONDS
from .transport import MAX_REPLY_BYTES, Reply, Transport
from .watching import Watch


async def request(
    transport: Transport,
    operation: str,
    args: dict[str, Any],
    *,
    timeout_seconds: float,
    stoppable: bool,
    blob: bytes = b"",
    blob_for: str | None = None,
    watch: Watch | None = None,
    request_id: str | None = None,
    max_reply_bytes: int = MAX_REPLY_BYTES,
) -> Reply:
    """Do what ``Transport.request`` does. Nothing is streamed: ``watch`` only stops the operation.

    If the task is cancelled, what is ``stoppable`` is stopped before the cancellation is raised; anything else goes on.
    """
    seconds = timeout_seconds + GRACE_SECONDS
    pending = PendingRequest(seconds, max_reply_bytes, time.monotonic() + seconds)
    while not transport.connected and transport.loss is None:  # noqa: ASYNC110  # rare: it is reached again
        await asyncio.sleep(TURN_SECONDS)
    fields = transport.register(pending, operation, args, request_id, blob_for)
    task = _Task(transport, pending, stoppable)
    try:
        with contextlib.nullcontext() if watch is None else watch.stopping(pending.cancel):
            reply = await task.answer(fields, blob)
    except asyncio.CancelledError:
        if stoppable or pending.sent_by is None:
            transport.give_up_request(pending, 0)
            raise
        _leave(transport, pending, fields)
        raise
    except BaseException:
        transport.give_up_request(pending, 0)
        raise
    finally:
        if pending.on_room == task.wake:
            transport.forget(pending)
    reply = transport.accept(pending, fields, reply)
    if task.cancelled:
        raise asyncio.CancelledError
    return reply


def _leave(transport: Transport, pending: PendingRequest, fields: dict[str, Any]) -> None:
    """Let the request be carried out, though nobody waits for the answer."""

    def forget() -> None:
        if pending.answered:
            transport.forget(pending)
        if pending.reply is not None:
            transport.accept(pending, fields, pending.reply)

    pending.on_room = forget
    forget()


class _Task:
    """The task that awaits a request."""

    def __init__(self, transport: Transport, pending: PendingRequest, stoppable: bool) -> None:
        self.cancelled = False
        self._transport, self._pending, self._stoppable = transport, pending, stoppable
        self._loop = asyncio.get_running_loop()
        self._sleeping: asyncio.Future[None] | None = None
        pending.on_room = self.wake

    def wake(self) -> None:
        """Have the task look again. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._rouse)

    def _rouse(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    async def answer(self, fields: dict[str, Any], blob: bytes) -> Reply:
        """Send the request and return the reply. Raises SandboxError."""
        pending, transport = self._pending, self._transport
        with contextlib.suppress(Cut):
            await self._send(fields, blob)
        while True:
            if pending.again:
                with contextlib.suppress(Cut):
                    await self._in_thread(partial(pending.catch_up, transport))
            if pending.cancelled:
                pending.begin_stopping()
                with contextlib.suppress(Cut):
                    await self._send_frame(Kind.CANCEL)
            if pending.reply is not None:
                return pending.reply
            if pending.error is not None:
                raise pending.error
            for seconds in pending.waits():
                await self._sleep(seconds)

    async def _send(self, fields: dict[str, Any], blob: bytes) -> None:
        """Send the request, in a thread where the pipe may have to be waited for."""
        pending, transport = self._pending, self._transport
        if len(blob) < SHORT:
            frames = list(pending.frames(Kind.REQUEST, fields, blob))
            if len(frames) == 1 and len(frames[0][1]) < SHORT:
                await self._send_frame(*frames[0])
                return
        await self._in_thread(partial(pending.send, transport, Kind.REQUEST, fields, blob))

    async def _send_frame(self, kind: int, payload: bytes | memoryview = b"") -> None:
        pending, transport = self._pending, self._transport
        sender = transport.sender
        if kind == Kind.REQUEST:
            pending.sent_by = sender
        try:
            sent = sender.offer(kind, pending.channel, payload)
        except OSError:
            sent = None  # the transport words it, or has the request sent again
        if not sent:  # the rest of a frame that was begun goes before the next one
            rest = (kind, payload) if sent is None else (Kind.PING, b"")
            await self._in_thread(partial(transport.send_frame, pending, sender, *rest))

    async def _in_thread(self, call: partial[None]) -> None:
        """Make a call that may wait for room in the pipe; it is not cancelled, for a part of a frame may have been sent."""
        under_way = self._loop.run_in_executor(None, call)
        while not under_way.done():
            try:
                await asyncio.wait([under_way])
            except asyncio.CancelledError:
                self._cancel()
        under_way.result()

    def _cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            if self._stoppable:
                self._pending.cancel()

    async def _sleep(self, seconds: float) -> None:
        """Wait for ``wake``, at most ``seconds``."""
        if self.cancelled and not self._stoppable:
            raise asyncio.CancelledError
        self._sleeping = self._loop.create_future()
        if self._pending.has_work:  # since the last look; what comes later finds the future
            return
        timer = self._loop.call_later(seconds, self._rouse)
        try:
            await self._sleeping
        except asyncio.CancelledError:
            if not self._stoppable:
                raise
            self._cancel()
        finally:
            timer.cancel()
