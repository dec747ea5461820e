"""Await a request over the pipe in an asyncio loop. The process's reader wakes the task: no thread waits for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial
from typing import Any

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.interrupts import Shield

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
    body: AsyncIterable[bytes] | None = None,
    sink: Callable[[bytes | memoryview], Awaitable[None]] | None = None,
) -> Reply:
    """Do what ``Transport.request`` does. The output of a command is streamed to a ``watch`` that has ``room``.

    If the task is cancelled, what is ``stoppable`` is stopped before the cancellation is raised, and what streams a ``body`` or
    to a ``sink`` is given up; anything else goes on.
    """
    seconds = timeout_seconds + GRACE_SECONDS
    deadline = time.monotonic() + seconds
    streams = watch is not None and watch.listens
    if watch is not None and streams:
        sink = watch.take_awaited
    pending = PendingRequest(seconds, max_reply_bytes, deadline, body is not None, sink is not None, streams)
    while not transport.connected and transport.loss is None:  # noqa: ASYNC110  # rare: it is reached again
        await asyncio.sleep(TURN_SECONDS)
    fields = transport.register(pending, operation, args, request_id, blob_for)
    task = _Task(transport, pending, stoppable)
    try:
        with contextlib.nullcontext() if watch is None else watch.stopping(pending.cancel):
            reply = await task.answer(fields, blob, body, sink)
    except asyncio.CancelledError:
        if stoppable or pending.sent_by is None or pending.sends or pending.takes:
            transport.given_up.add(pending.channel)
            transport.cancel_given_up(0)
        else:
            _leave(transport, pending, fields)
        raise
    except BaseException:  # as in ``Transport.request``
        transport.given_up.add(pending.channel)
        transport.cancel_given_up(0)
        raise
    finally:
        if pending.on_room == task.wake:
            transport.forget(pending)
            pending.on_room = None  # they would keep each other until the garbage is collected
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

    async def answer(
        self,
        fields: dict[str, Any],
        blob: bytes,
        body: AsyncIterable[bytes] | None = None,
        sink: Callable[[bytes | memoryview], Awaitable[None]] | None = None,
    ) -> Reply:
        """Send the request and return the reply. Raises SandboxError, and what ``body`` and ``sink`` raise."""
        pending, transport = self._pending, self._transport
        with contextlib.suppress(Cut):
            await self._send(fields, blob)
            if body is not None:
                await self._send_body(body)
        while True:
            if pending.again:
                with contextlib.suppress(Cut):
                    await self._in_thread(partial(pending.catch_up, transport))
            if pending.cancelled:
                pending.begin_stopping()
                with contextlib.suppress(Cut):
                    await self._send_frame(Kind.CANCEL)
            if pending.chunks:
                await self._pass_on(sink)
                continue
            if pending.reply is not None:
                return pending.reply
            if pending.error is not None:
                raise pending.error
            for seconds in pending.waits():
                await self._sleep(seconds)

    async def _send_body(self, body: AsyncIterable[bytes]) -> None:
        """Stream ``body`` to the operation; see ``PendingRequest.send_body``."""
        pending, began = self._pending, time.monotonic()
        try:
            async for chunk in body:
                pending.lent += time.monotonic() - began  # a source that is slow is no silence of the guest
                view = memoryview(chunk)
                while view:
                    while pending.outgoing.left <= 0 and not pending.answered:
                        for seconds in pending.waits():
                            await self._sleep(seconds)
                    if pending.answered:  # a failure
                        return
                    self._raise_if_cancelled()
                    piece = view[: min(pending.outgoing.left, wire.MAX_PAYLOAD)]
                    with pending.lock:
                        pending.outgoing.use(len(piece))
                    await self._send_frame(Kind.DATA, piece)
                    view = view[len(piece) :]
                began = time.monotonic()
        except BaseException as error:  # the guest must not take a part for the whole
            problem = f"the source failed: {str(error) or type(error).__name__}"
            self._transport.try_send(Kind.END, pending.channel, problem.encode("utf-8", "replace")[:500], wait_seconds=0)
            raise
        await self._send_frame(Kind.END)

    async def _pass_on(self, sink: Callable[[bytes | memoryview], Awaitable[None]] | None) -> None:
        """Pass the next piece of the stream from the guest to ``sink``, and let the guest send more."""
        pending = self._pending
        if not pending.streams:
            self._raise_if_cancelled()
        with pending.lock:
            chunk = pending.chunks.popleft()
            pending.incoming.consume(len(chunk))
        if sink is not None and not self.cancelled:  # what a command prints while it is being stopped is nobody's
            began = time.monotonic()
            try:
                await sink(chunk)
            except asyncio.CancelledError:
                if not (pending.streams and self._stoppable):
                    raise
                self._cancel()
            pending.lent += time.monotonic() - began
        if pending.incoming.credit_due:
            with contextlib.suppress(Cut):
                await self._send_frame(Kind.CREDIT, pending.incoming.credit())

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
            with Shield():
                sent = sender.offer(pending.channel, [(kind, payload)])
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

    def _raise_if_cancelled(self) -> None:
        """Raise CancelledError if the task was cancelled where that had to wait."""
        if self.cancelled:
            raise asyncio.CancelledError

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
