"""The host's end of the pipe: requests out, replies in, each within its deadline.

Many threads may call ``request`` at once. One reader thread takes frames off the stream; everything it takes is hostile until it is
validated, and bounded: a message, a stream's bytes under way, the number of open requests.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .errors import SandboxUnavailableError
from .guest import wire
from .guest.wire import Kind
from .pending import Pending
from .sender import ByteSink, FrameSender
from .watching import Watch

log = logging.getLogger(__name__)

# Silence of the pipe after which the host shows that it is there; the guest's lease is four times as long.
PING_SECONDS = 30.0
# Over an operation's own deadline, silence is reported.
GRACE_SECONDS = 2.0
MAX_REPLY_BYTES = 4 * 1024 * 1024
# After a cancel: a fork storm takes 1.5 s to end.
CANCEL_SECONDS = 1.5 + GRACE_SECONDS
# For frames that only spare the guest some work.
OFFER_SECONDS = 0.1
# Without a deadline of its own (a command in the queue), a caller waits this long for the pipe to take a frame.
SEND_SECONDS = 30.0
CREDIT_STEP = wire.WINDOW // 4


class ByteStream(ByteSink, Protocol):
    """A duplex byte stream to a guest."""

    def receive(self, timeout_seconds: float) -> bytes | None:
        """What came in; b"" at the end of the stream, None when nothing came in time. Raises OSError."""

    def close(self) -> None:
        """End the stream; a blocked ``receive`` returns. May be called more than once."""


class Transport:
    """Speaks the wire protocol on ``stream``.

    ``explain(reason, detail)`` words the end of the pipe as a SandboxUnavailableError; it is called once, off the callers'
    threads, and may take the time a post-mortem needs.
    """

    def __init__(self, stream: ByteStream, explain: Callable[[str, str], SandboxUnavailableError]) -> None:
        self._stream = stream
        self._explain = explain
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._sender = FrameSender(stream, nonce)
        self._decoder = wire.Decoder(nonce)
        self._assembler = wire.Assembler()
        self._channel = 0
        self._state_lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._lost: SandboxUnavailableError | None = None
        self._closing = False
        self._hello = Pending(0, MAX_REPLY_BYTES, None)
        self._reader = threading.Thread(target=self._read, name="gamebox-transport", daemon=True)

    def open(self, hello: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Greet the guest and return its HELLO. Raises SandboxUnavailableError."""
        self._hello.seconds = timeout_seconds
        self._hello.deadline = time.monotonic() + timeout_seconds
        self._reader.start()
        self._message(self._hello, Kind.HELLO, 0, {"protocol": wire.PROTOCOL, **hello})
        fields, _ = self._await(self._hello, None)
        if fields.get("protocol") != wire.PROTOCOL:
            raise SandboxUnavailableError(
                "protocol_violation", f"The guest speaks protocol {fields.get('protocol')!r}."
            )
        return fields

    def close(self) -> None:
        """End the pipe; requests under way fail with reason ``closed``."""
        self._closing = True
        self._stream.close()
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(timeout=5)

    def request(
        self,
        operation: str,
        args: dict[str, Any],
        *,
        timeout_seconds: float,
        blob: bytes = b"",
        blob_is_stdin: bool = False,
        body: Iterable[bytes] | None = None,
        sink: Callable[[bytes], None] | None = None,
        watch: Watch | None = None,
        request_id: str | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its reply: (fields, blob), not validated yet.

        ``body`` is streamed to the operation, what it streams back goes to ``sink``; both in this thread. ``watch`` is for a
        command: it is told the output as it comes, and its token stops the command. A ``request_id`` that was
        used before gets the first reply. Silence for
        ``timeout_seconds`` + 2 s raises SandboxUnavailableError ``no_answer``; the end of the pipe raises its post-mortem.
        """
        seconds = timeout_seconds + GRACE_SECONDS
        deadline = time.monotonic() + seconds
        streams = watch is not None and watch.listens
        sink = watch.take if watch is not None and streams else sink
        pending = Pending(seconds, max_reply_bytes, deadline, body is not None, sink is not None, streams)
        channel = self._register(pending)
        fields = {"operation": operation, "args": args, "stdin_blob": blob_is_stdin, "stream": streams}
        fields["request_id"] = request_id
        try:
            self._message(pending, Kind.REQUEST, channel, fields, blob)
            if body is not None:
                self._send_body(channel, pending, body)
            with watch.stopping(pending.cancel) if watch is not None else contextlib.nullcontext():
                return self._await(pending, sink, channel)
        except BaseException:
            self._offer(Kind.CANCEL, channel)
            raise
        finally:
            self._pending.pop(channel, None)

    def _register(self, pending: Pending) -> int:
        with self._state_lock:
            if self._lost is not None:
                raise self._lost
            self._channel = self._channel % 0x7FFFFFFF + 1
            self._pending[self._channel] = pending
            return self._channel

    # --- out ------------------------------------------------------------------
    def _message(self, pending: Pending, kind: int, channel: int, fields: dict[str, Any], blob: bytes = b"") -> None:
        # exact: what cannot be carried out as it was asked is to be refused, not carried out in another way
        for part, payload in wire.split_message(kind, wire.pack_message(fields, blob, exact=True)):
            self._frame(pending, part, channel, payload)

    def _frame(self, pending: Pending, kind: int, channel: int, payload: bytes | memoryview = b"") -> None:
        """Send a frame within the deadline of ``pending``. Raises SandboxUnavailableError."""
        try:
            deadline = time.monotonic() + SEND_SECONDS if pending.deadline is None else pending.deadline
            if not self._sender.send(kind, channel, payload, deadline):
                raise _silent(pending)
        except OSError as error:
            self._stream.close()  # the reader notices, and words it
            raise self._wait_for_loss(error) from error

    def _offer(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame that may be lost where the pipe is full or broken."""
        with contextlib.suppress(OSError):
            self._sender.send(kind, channel, payload, time.monotonic() + OFFER_SECONDS)

    def _wait_for_loss(self, error: OSError) -> SandboxUnavailableError:
        self._reader.join(timeout=3)
        return self._lost or SandboxUnavailableError("pipe_broken", f"The pipe to the sandbox broke: {error}.")

    def _send_body(self, channel: int, pending: Pending, body: Iterable[bytes]) -> None:
        try:
            for chunk in body:
                view = memoryview(chunk)
                while view:
                    room = self._await_window(pending)
                    if not room:  # answered already: a failure
                        return
                    piece = view[: min(room, wire.MAX_PAYLOAD)]
                    with pending.changed:
                        pending.window -= len(piece)
                    self._frame(pending, Kind.DATA, channel, piece)
                    view = view[len(piece) :]
        except BaseException as error:  # of the source, or a Ctrl-C: the guest must not take a part for the whole
            problem = f"the source failed: {str(error) or type(error).__name__}"
            self._offer(Kind.END, channel, problem.encode("utf-8", "replace")[:500])
            raise
        self._frame(pending, Kind.END, channel)

    def _await_window(self, pending: Pending) -> int:
        with pending.changed:
            while pending.window <= 0 and pending.reply is None and pending.error is None:
                self._wait(pending)
            return pending.window if pending.reply is None and pending.error is None else 0

    # --- waiting ------------------------------------------------------------------
    def _await(
        self, pending: Pending, sink: Callable[[bytes], None] | None, channel: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        owed = 0
        while True:
            if pending.cancelled:
                pending.cancelled = False
                pending.deadline = time.monotonic() + CANCEL_SECONDS
                self._frame(pending, Kind.CANCEL, channel)
            with pending.changed:
                while not (pending.chunks or pending.cancelled) and pending.reply is None and pending.error is None:
                    self._wait(pending)
                if not pending.chunks:
                    if pending.reply is not None:
                        return pending.reply
                    if pending.error is not None:
                        raise pending.error
                    continue
                chunk = pending.chunks.popleft()
                pending.held -= len(chunk)
            if sink is not None:
                began = time.monotonic()
                sink(chunk)
                pending.lent += time.monotonic() - began  # the caller's own time is no silence of the guest
            owed += len(chunk)
            if owed >= CREDIT_STEP:
                self._frame(pending, Kind.CREDIT, channel, owed.to_bytes(4, "big"))
                owed = 0

    def _wait(self, pending: Pending) -> None:
        """One wait; raises SandboxUnavailableError ``no_answer`` past the deadline."""
        if pending.deadline is None:
            pending.changed.wait(PING_SECONDS)
            return
        left = pending.deadline + pending.lent - time.monotonic()
        if left <= 0:
            raise _silent(pending)
        pending.changed.wait(left)

    # --- in ------------------------------------------------------------------
    def _read(self) -> None:
        reason, detail = "pipe_broken", ""
        try:
            while True:
                data = self._stream.receive(PING_SECONDS)
                if data is None:
                    self._offer(Kind.PING, 0)
                    continue
                if not data:
                    break
                for kind, channel, payload in self._decoder.feed(data):
                    self._take(kind, channel, payload)
        except wire.WireError as error:
            reason, detail = "protocol_violation", str(error)
        except OSError as error:
            detail = str(error)
        except Exception:
            log.exception("the reader of a sandbox's pipe failed")
            reason, detail = "protocol_violation", "unreadable"
        self._stream.close()  # the far end may be open for writing still, with nobody there who reads
        self._fail("closed" if self._closing else reason, detail)

    def _fail(self, reason: str, detail: str) -> None:
        if reason == "closed":
            error = SandboxUnavailableError("closed", "The sandbox was closed.", "Start another one.")
        else:
            error = self._explain(reason, detail)
        with self._state_lock:
            self._lost = error
            waiting = [*self._pending.values(), self._hello]
        for pending in waiting:
            pending.error = error
            pending.wake()

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        pending = self._hello if kind == Kind.HELLO else self._pending.get(channel)
        if pending is None:  # answered or given up; its parts are dropped
            self._assembler.drop(channel)
            return
        if kind == Kind.REPLY or (kind == Kind.HELLO and pending.reply is None):
            pending.reply = wire.unpack_message(self._assembler.finish(channel, payload))
        elif kind == Kind.PART and payload:
            self._assembler.add(channel, payload, pending.limit)
            pending.extend()
            return
        elif kind == Kind.DATA and payload and pending.takes:
            self._take_data(pending, payload)
        elif kind == Kind.CREDIT and len(payload) == 4 and pending.sends:
            self._take_credit(pending, int.from_bytes(payload, "big"))
        elif kind == Kind.NOTICE:
            self._take_notice(pending, payload)
        else:
            raise wire.WireError(f"frame of kind {kind} from the guest that nothing asked for")
        pending.wake()

    # Every frame that puts off a deadline is bounded in number by something else: else a guest could put it off for ever.
    def _take_credit(self, pending: Pending, size: int) -> None:
        with pending.changed:
            if not 0 < size <= wire.WINDOW - pending.window:
                raise wire.WireError("credit for what was not sent")
            pending.window += size
        pending.extend()

    def _take_notice(self, pending: Pending, payload: bytes) -> None:
        event = wire.unpack_message(payload)[0].get("event")
        if event not in ("queued", "started") or event in pending.events:
            raise wire.WireError("notice that makes no sense")
        pending.events.add(event)
        pending.deadline = None if event == "queued" else time.monotonic() + pending.seconds

    def _take_data(self, pending: Pending, payload: bytes) -> None:
        with pending.changed:
            pending.held += len(payload)
            if pending.held > wire.WINDOW:
                raise wire.WireError("stream beyond its credit")
            pending.chunks.append(payload)
        if not pending.streams:
            pending.extend()
        elif pending.deadline is not None and time.monotonic() > pending.deadline:
            pending.late += len(payload)
            if pending.late > 2 * wire.WINDOW:  # all that can be under way, and what pipes may hold
                raise wire.WireError("output of a command that is past its deadline")


def _silent(pending: Pending) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        "no_answer",
        f"The sandbox did not answer within {pending.seconds:g} seconds.",
        "It may be paused or starved of CPU; close it and start another one.",
    )
