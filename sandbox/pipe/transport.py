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
from typing import Any

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import ANSWER_BYTES
from sandbox.guest.protocol.wire import Kind
from sandbox.interrupts import Shield

from .exchange import Exchange
from .feeding import Feeder
from .pending import GRACE_SECONDS, Pending
from .reattaching import Asks, ByteStream, Cut, Keep
from .sender import TURN_SECONDS, Carried, FrameSender
from .watching import Watch

log = logging.getLogger(__name__)

# The part of the guest's lease after which the host shows that it is there, when the pipe is silent.
PING_SHARE = 0.25
MAX_REPLY_BYTES = wire.MAX_REPLY
# The rest of an answer to a call follows its beginning at once.
ANSWER_SECONDS = 1.0
# For frames that only spare the guest some work.
OFFER_SECONDS = 0.1
# A kept sandbox that breaks the protocol so often, and answers no request in between, is given up; each time it is called later.
MOST_VIOLATIONS = 3
_BREAKING = ("protocol_violation", "host_failed")
AFTER_VIOLATION_SECONDS = 0.1
# Without a deadline of its own (a command in the queue), a caller waits this long for the pipe to take a frame.
SEND_SECONDS = 30.0


class Transport:
    """Speaks the wire protocol on ``stream``.

    ``explain(reason, detail)`` words the end of the pipe as a SandboxUnavailableError; it is called once, off the callers'
    threads, and may take the time a post-mortem needs. ``lease_seconds`` is how long the guest goes on without a word.
    ``keep`` is how to reach the guest again over another stream when this one ends; requests under way are then asked again,
    and carried out once.
    """

    def __init__(
        self,
        stream: ByteStream,
        explain: Callable[[str, str], SandboxUnavailableError],
        *,
        lease_seconds: float = 120.0,
        keep: Keep | None = None,
        nonce: bytes | None = None,
        received: bytes = b"",
    ) -> None:
        self._stream = stream
        self._ping_seconds = PING_SHARE * (lease_seconds if keep is None else min(lease_seconds, keep.seconds))
        self._explain = explain
        self._keep = keep
        self.nonce = nonce or secrets.token_bytes(wire.NONCE_BYTES)
        self.sender = FrameSender(stream, self.nonce)
        self._decoder = wire.Decoder(self.nonce)
        self._received = received  # behind the answer to a call
        self._assembler = wire.Assembler()
        self._channel = 0
        self._state_lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._given_up: set[int] = set()  # channels whose request is still to be cancelled
        self._lost: SandboxUnavailableError | None = None
        self._closing = False
        self._violations = 0  # since the last reply
        self._stands = threading.Event()
        self._stands.set()
        self._asks = Asks()
        self._hello = Pending(0, MAX_REPLY_BYTES, None)
        self._streams: Carried | None = None
        self._turn: Callable[[], None] | None = None
        self._reader = threading.Thread(target=self._read, name="gamebox-transport", daemon=True)

    def open(self, hello: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Greet the guest and return its HELLO. Raises SandboxUnavailableError, and is closed then."""
        try:
            return self._greeted(hello, timeout_seconds)
        except BaseException:  # a Ctrl-C, too: nobody else knows of the reader, which must not outlive its stream
            self.close()
            raise

    def _greeted(self, hello: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        self._hello.seconds = timeout_seconds
        self._hello.deadline = time.monotonic() + timeout_seconds
        with Shield():  # the start of a thread waits for an Event
            self._reader.start()
        greeting = Exchange(self, self._hello, 0)
        try:
            greeting.send(Kind.HELLO, {"protocol": wire.PROTOCOL, **hello})
        except Cut as error:  # what is not greeted yet is not asked again
            raise self._wait_for_loss(error.__cause__ or error) from error
        fields, _ = greeting.reply()
        if fields.get("protocol") != wire.PROTOCOL:
            raise SandboxUnavailableError(
                "protocol_violation", f"The guest speaks protocol {fields.get('protocol')!r}."
            )
        return fields

    @property
    def loss(self) -> SandboxUnavailableError | None:
        """Why nothing is answered any more; None while the pipe stands or is being repaired."""
        return self._lost

    def carry(self, streams: Carried) -> None:
        """Let connections use the pipe too; before ``open``."""
        self._streams = streams

    def route(self, turn: Callable[[], None]) -> None:
        """Ask the guest to answer another way; ``turn`` is called by the reader when the last that comes by this one is taken."""
        self._turn = turn
        self.offer(Kind.ROUTE, 0)

    def close(self, *, detach: bool = False) -> None:
        """End the pipe; requests under way fail with reason ``closed``. ``detach`` tells a kept sandbox that its host goes."""
        self._closing = True
        if detach:
            self.offer(Kind.DETACH, 0, wire.pack_message({"acknowledged": self._asks.acknowledged()}))
        self._stream.close()
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(timeout=5)

    def give_up(self, error: SandboxUnavailableError) -> None:
        """End the pipe because the guest is silent: every request fails with ``error``, at once, now and later."""
        self._closing = True
        self._lose(error)
        self._stream.close()

    def request(
        self,
        operation: str,
        args: dict[str, Any],
        *,
        timeout_seconds: float,
        blob: bytes = b"",
        blob_is_stdin: bool = False,
        body: Iterable[bytes] | None = None,
        feed: Iterable[bytes] | None = None,
        sink: Callable[[bytes], None] | None = None,
        watch: Watch | None = None,
        request_id: str | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        on_sent: Callable[[], None] | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its reply: (fields, blob), not validated yet.

        ``body`` is streamed to the operation, what it streams back goes to ``sink``; both in this thread. ``feed`` is what a
        command reads, see ``feeding.Feeder``; what it raises is raised here. ``watch`` is for a
        command: it is told the output as it comes, and its token stops the command. A ``request_id`` that was
        used before gets the first reply. ``on_sent`` is called when the request is on its way. Silence for
        ``timeout_seconds`` + 2 s raises SandboxUnavailableError ``no_answer``; the end of the pipe raises its post-mortem.
        """
        seconds = timeout_seconds + GRACE_SECONDS
        deadline = time.monotonic() + seconds
        streams = watch is not None and watch.listens
        sink = watch.take if watch is not None and streams else sink
        sends = body is not None or feed is not None
        pending = Pending(seconds, max_reply_bytes, deadline, sends, sink is not None, streams, feed is not None)
        channel = self._register(pending)
        fields = {"operation": operation, "args": args, "stdin_blob": blob_is_stdin, "stream": streams}
        fields.update(feeds=feed is not None, request_id=request_id, max_reply_bytes=max_reply_bytes)
        if self._keep is not None:
            fields.update(self._asks.next())
        exchange = Exchange(self, pending, channel)
        feeder = Feeder(self, pending, channel, feed)
        try:
            self._cancel_given_up()
            with contextlib.suppress(Cut):  # then it is asked again
                exchange.send(Kind.REQUEST, fields, blob)
                if on_sent is not None:
                    on_sent()
                if body is not None:
                    exchange.send_body(body)
            with watch.stopping(pending.cancel) if watch is not None else contextlib.nullcontext(), feeder:
                reply = exchange.reply(sink)
            if feeder.error is not None:
                raise feeder.error
        except BaseException:
            self._given_up.add(channel)  # first of all: a second Ctrl-C can strike as soon as this is done
            self._cancel_given_up()
            raise
        finally:
            self._pending.pop(channel, None)
        return self._asks.answered(fields, pending, reply)

    @property
    def stands(self) -> bool:
        """Whether the pipe is not being mended just now."""
        return self._stands.is_set()

    def rest(self) -> None:
        """Deadlines of requests under way wait for ``go_on``: the sandbox is paused."""
        for pending in list(self._pending.values()):
            pending.rest()

    def go_on(self) -> None:
        """Deadlines run again."""
        for pending in list(self._pending.values()):
            pending.go_on()

    def _register(self, pending: Pending) -> int:
        while not self._stands.is_set():
            with Shield():  # an Event's own lock can be left taken by a signal
                self._stands.wait(TURN_SECONDS)
        with self._state_lock:
            if self._lost is not None:
                raise self._lost
            self._channel = self._channel % 0x7FFFFFFF + 1
            self._pending[self._channel] = pending
            return self._channel

    # --- out ------------------------------------------------------------------
    def frame(
        self, pending: Pending, sender: FrameSender, kind: int, channel: int, payload: bytes | memoryview = b""
    ) -> None:
        """Send a frame within the deadline of ``pending``.

        Raises SandboxUnavailableError, or Cut where the pipe is broken and will be mended.
        """
        stream = self._stream
        try:
            deadline = time.monotonic() + SEND_SECONDS if pending.deadline is None else pending.deadline
            if not sender.send(kind, channel, payload, deadline):
                raise pending.silent()
        except OSError as error:
            if self._keep is not None:
                raise Cut from error
            stream.close()  # the reader notices, and words it
            raise self._wait_for_loss(error) from error

    def offer(self, kind: int, channel: int, payload: bytes = b"") -> bool:
        """Send a frame that may be lost where the pipe is full or broken; whether it was sent."""
        try:
            return self.sender.send(kind, channel, payload, time.monotonic() + OFFER_SECONDS)
        except OSError:
            return False

    def _cancel_given_up(self) -> None:
        """Cancel the requests that nobody waits for; a command that waits for input would hold up its session.

        What cannot be sent now, because the pipe is full or Ctrl-C came again, is sent with the next request or ping.
        """
        for channel in tuple(self._given_up):
            if not self.offer(Kind.CANCEL, channel):
                return
            self._given_up.discard(channel)

    def flow(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """Send a frame of a connection: requests go first, and it waits for as long as the pipe is full. Raises OSError."""
        self.sender.flow(kind, channel, payload)

    def new_channel(self) -> int:
        """A channel that nothing uses."""
        with self._state_lock:
            self._channel = self._channel % 0x7FFFFFFF + 1
            return self._channel

    def _wait_for_loss(self, error: BaseException) -> SandboxUnavailableError:
        self._reader.join(timeout=3)
        return self._lost or SandboxUnavailableError("pipe_broken", f"The pipe to the sandbox broke: {error}.")

    # --- in ------------------------------------------------------------------
    def _read(self) -> None:
        while True:
            reason, detail = self._serve()
            self._stream.close()  # the far end may be open for writing still, with nobody there who reads
            if self._streams is not None:
                self._streams.cut("the connection to the sandbox was cut")
            if self._closing or self._keep is None or self._breaks_again(reason):
                break
            if not self._reconnect(self._keep, reason, detail):
                break
        if self._lost is None:
            self._fail("closed" if self._closing else reason, detail)
        self._stands.set()

    def _serve(self) -> tuple[str, str]:
        """Take frames until the pipe ends; why it did, and more about it."""
        try:
            data: bytes | None = self._received
            while True:
                for kind, channel, payload in self._decoder.feed(data or b""):
                    self._take(kind, channel, payload)
                data = self._stream.receive(self._ping_seconds)
                if data is None:
                    self.offer(Kind.PING, 0)
                    self._cancel_given_up()
                elif not data:
                    return "pipe_broken", ""
        except wire.ForeignNonceError as error:
            return ("taken_over" if self._has_another_host() else "protocol_violation"), str(error)
        except wire.WireError as error:
            return "protocol_violation", str(error)
        except OSError as error:
            return "pipe_broken", str(error)
        except Exception as error:
            log.exception("the reader of a sandbox's pipe failed")
            return "host_failed", f"{type(error).__name__}: {error}"

    def _breaks_again(self, reason: str) -> bool:
        """Whether the guest is to be given up: calling one that answers and breaks the protocol at once would never end."""
        if reason not in _BREAKING:
            return False
        self._violations += 1
        return self._violations > MOST_VIOLATIONS

    def _has_another_host(self) -> bool:
        """Whether what came instead of a frame is the sandbox's answer to another host's call."""
        held = self._decoder.held
        prefix = b"" if self._keep is None else self._keep.answer_prefix
        if not prefix or not prefix.startswith(held[: wire.NONCE_BYTES]):
            return False
        with contextlib.suppress(OSError):
            while len(held) < ANSWER_BYTES and (more := self._stream.receive(ANSWER_SECONDS)):
                held += more
        return held[:ANSWER_BYTES] != prefix + self.nonce  # else the answer to a call that was made twice

    def _reconnect(self, keep: Keep, reason: str, detail: str) -> bool:
        """Reach the guest over another stream, and have requests under way asked again; False where it cannot be reached."""
        began = time.monotonic()
        self._stands.clear()
        self.rest()
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        try:
            if reason == "taken_over":
                return False
            if reason in _BREAKING and not self._closing:
                time.sleep(AFTER_VIOLATION_SECONDS * 2 ** (self._violations - 1))
            stream, received = keep.resume(self.nonce, nonce, reason, detail)
        except SandboxUnavailableError as error:
            self._lose(error)
            return False
        except Exception:
            log.exception("a kept sandbox could not be reached again")
            return False
        with self._state_lock:
            self._stream, self.nonce, self._received = stream, nonce, received
            self.sender, self._decoder = FrameSender(stream, nonce), wire.Decoder(nonce)
            self._assembler = wire.Assembler()
            waiting = list(self._pending.values())
        seconds = time.monotonic() - began
        for pending in waiting:
            pending.ask_again(seconds)
        if not waiting:
            self._asks.cut_seconds = seconds
        self._stands.set()
        if self._closing:
            stream.close()
        return True

    def _fail(self, reason: str, detail: str) -> None:
        if reason == "closed":
            self._lose(SandboxUnavailableError("closed", "The sandbox was closed.", "Start another one."))
        elif reason == "host_failed":
            message = f"Gamebox failed while it read an answer of the sandbox ({detail[:200]}), and cut the connection."
            hint = "This is a bug of Gamebox, and no fault of what ran: report it with the log. Start another sandbox."
            self._lose(SandboxUnavailableError(reason, message, hint))
        else:
            self._lose(self._explain(reason, detail))

    def _lose(self, error: SandboxUnavailableError) -> None:
        """End all requests with ``error``, and later ones too. The first loss is the one that counts."""
        with self._state_lock:
            self._lost = error = self._lost or error
            waiting = [*self._pending.values(), self._hello]
        for pending in waiting:
            pending.error = error
            pending.wake()

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if self._streams is not None and (kind == Kind.OPEN or self._streams.takes(channel)):
            self._streams.take(kind, channel, payload)
            return
        if kind == Kind.ROUTE and self._turn is not None:
            turn, self._turn = self._turn, None
            turn()
            return
        if kind == Kind.DETACH and self._keep is not None:
            raise wire.WireError("the sandbox does not understand its host any more")
        pending = self._hello if kind == Kind.HELLO else self._pending.get(channel)
        if pending is None or pending.error is not None:  # answered or given up; its parts are dropped
            self._assembler.drop(channel)
            return
        pending.take(kind, channel, payload, self._assembler)
        if kind == Kind.REPLY:
            self._violations = 0
