"""The host's end of the pipe: requests out, replies in, each within its deadline.

Many threads may call ``request`` at once. Frames are taken off the stream by the process's reader (see ``reader``), or for a moment
by a caller that waits. Everything that comes is hostile until it is validated, and is bounded: the size of a message, a stream's
bytes under way, the number of open requests.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import ANSWER_BYTES
from sandbox.guest.protocol.wire import Kind
from sandbox.interrupts import Shield

from .feeding import Feeder
from .incoming.reading import FOREIGN, Reading
from .pending_request import GRACE_SECONDS, NOTHING, Cut, PendingRequest, Sink
from .reattaching import AskIds, ByteStream, Keep
from .sender import TURN_SECONDS, Connections, FrameSender
from .watching import Watch

Reply = tuple[dict[str, Any], bytes]
log = logging.getLogger(__name__)

# On a silent pipe, the host pings the guest after this share of the guest's lease.
PING_SHARE = 0.25
# However long that lease is: no system call waits for more than 24 days.
MOST_PING_SECONDS = 3600.0
MAX_REPLY_BYTES = wire.MAX_REPLY
# The rest of an answer to a call follows its beginning within this time.
ANSWER_SECONDS = 1.0
# Frames that only spare the guest some work wait this long for room.
OFFER_SECONDS = 0.1
# A kept sandbox that breaks the protocol more often than this, and answers no request in between, is given up; it is called later
# each time.
MOST_VIOLATIONS = 3
_BREAKING = ("protocol_violation", "host_failed")
AFTER_VIOLATION_SECONDS = 0.1
# Without a deadline of its own (a command in the queue), a caller waits this long for the pipe to take a frame.
SEND_SECONDS = 30.0
# A caller waits this long for the last thread that reads the pipe.
CLOSE_SECONDS, LOSS_SECONDS = 5.0, 3.0
LOOK_SECONDS = 0.001


class Transport:
    """Speaks the wire protocol on ``stream``.

    ``explain(reason, detail)`` words the end of the pipe as a SandboxUnavailableError; it is called once, off the callers'
    threads, and may take the time that a post-mortem needs. ``lease_seconds`` is how long the guest goes on without hearing from
    the host. ``keep`` reaches the guest over another stream when this one ends; requests under way are then sent again, and are
    carried out once.
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
        heard_within = lease_seconds if keep is None else min(lease_seconds, keep.seconds)
        self._ping_seconds = min(PING_SHARE * heard_within, MOST_PING_SECONDS)
        self._explain = explain
        self._keep = keep
        self.nonce = nonce or secrets.token_bytes(wire.NONCE_BYTES)
        self._use(stream, received)
        self._assembler = wire.Assembler()
        self._channel = 0
        self._state_lock = threading.Lock()
        self._pending: dict[int, PendingRequest] = {}
        self.given_up: set[int] = set()  # channels whose request is still to be cancelled: their callers have left
        self._lost: SandboxUnavailableError | None = None
        self._closing = False
        self._violations = 0  # since the last reply
        self._connected = threading.Event()
        self._connected.set()
        self._ask_ids = AskIds()
        self._hello = PendingRequest(0, MAX_REPLY_BYTES, None)
        self._connections: Connections | None = None
        self._on_switched: Callable[[], None] | None = None
        self._concluding: threading.Thread | None = None

    def _use(self, stream: ByteStream, received: bytes) -> None:
        """Send and read by ``stream``; ``received`` is what came after the answer to a call."""
        self._reading = Reading(stream, self.nonce, received, self._take, self._ended, self._tick)
        self.sender = FrameSender(self._reading.stream, self.nonce)

    def open(self, hello: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Greet the guest and return its HELLO. Raises SandboxUnavailableError, after closing the pipe."""
        try:
            return self._greet(hello, timeout_seconds)
        except BaseException:  # a Ctrl-C, too: nothing else ends the reading, which must not outlive its stream
            self.close()
            raise

    def _greet(self, hello: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        self._hello.seconds = timeout_seconds
        self._hello.deadline = time.monotonic() + timeout_seconds
        self._reading.begin(time.monotonic() + self._ping_seconds)
        with contextlib.suppress(Cut):  # it is greeted again if it is reached again
            self._hello.send(self, Kind.HELLO, {"protocol": wire.PROTOCOL, **hello})
        fields, _ = self._hello.wait_for_reply(self)
        if fields.get("protocol") != wire.PROTOCOL:
            raise SandboxUnavailableError(
                "protocol_violation",
                f"The guest speaks protocol {fields.get('protocol')!r:.20}, and this version of gamebox {wire.PROTOCOL}.",
                "Use the sandbox with the version that made it.",
            )
        return fields

    @property
    def loss(self) -> SandboxUnavailableError | None:
        """Why nothing is answered any more; None while the pipe is connected or being reconnected."""
        return self._lost

    def carry(self, connections: Connections) -> None:
        """Let ``connections`` use the pipe too, from ``open`` on or in the place of those that have used it so far."""
        self._connections = connections

    def switch_output(self, on_switched: Callable[[], None]) -> None:
        """Ask the guest to write to its second pipe.

        ``on_switched`` runs where the pipe is read, after the last frame on the first pipe.
        """
        self._on_switched = on_switched
        self.try_send(Kind.ROUTE, 0)

    def close(self, *, detach: bool = False) -> None:
        """End the pipe; requests under way fail with reason ``closed``. ``detach`` tells a kept sandbox that its host leaves."""
        self._closing = True
        if detach:
            self.try_send(Kind.DETACH, 0, wire.pack_message({"acknowledged": self._ask_ids.take_acknowledged()}))
        self._reading.stream.close()
        until = time.monotonic() + CLOSE_SECONDS
        while not self._reading.stop(TURN_SECONDS) and not self._reading.over and time.monotonic() < until:
            pass
        if (thread := self._concluding) is not None and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))

    def give_up(self, error: SandboxUnavailableError) -> None:
        """End the pipe because the guest is silent: every request, under way or later, fails with ``error`` at once."""
        self._closing = True
        self._lose(error)
        self._reading.stream.close()

    def request(
        self,
        operation: str,
        args: dict[str, Any],
        *,
        timeout_seconds: float,
        blob: bytes = b"",
        blob_for: str | None = None,
        body: Iterable[bytes] | None = None,
        feed: Iterable[bytes] | None = None,
        sink: Sink | None = None,
        watch: Watch | None = None,
        request_id: str | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        on_sent: Callable[[], None] | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return its reply: (fields, blob), not validated yet.

        ``blob`` becomes the argument ``blob_for``. ``body`` is streamed to the operation, and what it streams back goes to
        ``sink``; both happen in this thread. ``feed`` is the standard input of a command, see ``feeding.Feeder``; what it raises
        is raised here. ``watch`` gets the output of a command as it comes, and its token stops the command. A ``request_id`` that
        was used before gets the first reply.
        ``on_sent`` is called when the request is on its way. Silence for ``timeout_seconds`` + 2 s raises
        SandboxUnavailableError ``no_answer``; the end of the pipe raises its post-mortem.
        """
        seconds = timeout_seconds + GRACE_SECONDS
        deadline = time.monotonic() + seconds
        streams = watch is not None and watch.listens
        sink = watch.take if watch is not None and streams else sink
        sends = body is not None or feed is not None
        pending = PendingRequest(seconds, max_reply_bytes, deadline, sends, sink is not None, streams, feed is not None)
        while not self._connected.is_set():
            with Shield():  # an Event's own lock can be left taken by a signal
                self._connected.wait(TURN_SECONDS)
        fields = self.register(pending, operation, args, request_id, blob_for)
        watching = NOTHING if watch is None else watch.stopping(pending.cancel)
        feeder = None if feed is None else Feeder(self.flow, pending, feed)
        try:
            self.cancel_given_up()
            reply = pending.perform(
                self,
                fields,
                blob,
                on_sent=on_sent,
                body=body,
                watching=watching,
                feeding=feeder or NOTHING,
                sink=sink,
            )
            if feeder is not None and feeder.error is not None:
                raise feeder.error
        except BaseException:
            self.given_up.add(pending.channel)  # before any function of ours: a second Ctrl-C can strike where one begins
            self.cancel_given_up()
            raise
        finally:
            self.forget(pending)
        return self.accept(pending, fields, reply)

    def register(
        self, pending: PendingRequest, operation: str, args: dict[str, Any], request_id: str | None, blob_for: str | None
    ) -> dict[str, Any]:
        """Have what is answered on a new channel go to ``pending``; return the fields of the request. Raises SandboxError."""
        fields: dict[str, Any] = {"operation": operation, "args": args, "blob_for": blob_for, "stream": pending.streams}
        fields.update(feeds=pending.feeds, request_id=request_id, max_reply_bytes=pending.limit)
        if self._keep is not None:
            fields.update(self._ask_ids.next_fields())
        with self._state_lock:
            if self._lost is not None:
                raise self._lost
            pending.channel = self._channel = self._channel % 0x7FFFFFFF + 1
            self._pending[self._channel] = pending
        return fields

    def forget(self, pending: PendingRequest) -> None:
        """Drop what is still answered to a request."""
        self._pending.pop(pending.channel, None)

    def accept(self, pending: PendingRequest, fields: dict[str, Any], reply: Reply) -> Reply:
        """Note that the reply to the request of these ``fields`` has arrived; return it with the notice of a cut."""
        return self._ask_ids.accept_reply(fields.get("ask_id"), reply, pending.cut_seconds, pending.streams)

    @property
    def connected(self) -> bool:
        """Whether the pipe is not being reconnected just now."""
        return self._connected.is_set()

    def pause_deadlines(self) -> None:
        """Stop the deadlines of requests under way until ``resume_deadlines``: the sandbox is paused."""
        for pending in list(self._pending.values()):
            pending.pause()

    def resume_deadlines(self) -> None:
        """Let the deadlines of requests under way run again."""
        for pending in list(self._pending.values()):
            pending.resume()

    def send_frame(
        self, request: PendingRequest, sender: FrameSender, kind: int, payload: bytes | memoryview = b""
    ) -> None:
        """Send a frame within the deadline of ``request``. Raises SandboxUnavailableError, or Cut for a pipe to reconnect."""
        stream = self._reading.stream
        channel = 0 if kind == Kind.PING else request.channel  # the guest answers on the same channel
        try:
            deadline = time.monotonic() + SEND_SECONDS if request.deadline is None else request.deadline
            if not sender.send(kind, channel, payload, deadline):
                raise request.no_answer()
        except OSError as error:
            if self._keep is not None:
                raise Cut from error
            stream.close()  # the reader notices, and words it
            raise self._wait_for_loss(error) from error

    def try_send(self, kind: int, channel: int, payload: bytes = b"", *, wait_seconds: float = OFFER_SECONDS) -> bool:
        """Send a frame that may be lost if the pipe is full or broken. Returns whether it was sent."""
        try:
            return self.sender.send(kind, channel, payload, time.monotonic() + wait_seconds)
        except OSError:
            return False

    def cancel_given_up(self, wait_seconds: float = OFFER_SECONDS) -> None:
        """Cancel the requests whose callers have left: a command that waits for input would block its session.

        What cannot be sent now, because the pipe is full or Ctrl-C came again, is sent with the next request or ping.
        """
        for channel in tuple(self.given_up):
            if not self.try_send(Kind.CANCEL, channel, wait_seconds=wait_seconds):
                return
            self.given_up.discard(channel)

    def flow(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """Send a frame of a connection, after those of requests, waiting as long as the pipe is full. Raises OSError."""
        self.sender.flow(kind, channel, payload)

    def new_channel(self) -> int:
        """Return a channel that nothing uses."""
        with self._state_lock:
            self._channel = self._channel % 0x7FFFFFFF + 1
            return self._channel

    def _wait_for_loss(self, error: BaseException) -> SandboxUnavailableError:
        until = time.monotonic() + LOSS_SECONDS
        while self._lost is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return self._lost or SandboxUnavailableError("pipe_broken", f"The pipe to the sandbox broke: {error}.")

    def read_for(self, pending: PendingRequest, seconds: float) -> None:
        """See ``pending_request.Pipe``."""
        self._reading.read_for(pending, seconds)

    def ask(
        self, request: PendingRequest, sender: FrameSender, frames: Sequence[tuple[int, bytes | memoryview]], seconds: float
    ) -> bool | None:
        """See ``pending_request.Pipe``."""
        sent: bool | None = None

        def send() -> bool:
            nonlocal sent
            try:
                sent = sender.offer(request.channel, frames)
            except OSError:  # worded by ``send_frame``, which tries again
                pass
            return bool(sent)

        self._reading.read_for(request, seconds, send)
        return sent

    def _tick(self, now: float) -> float:
        """Ping a guest that was not heard of, and cancel what could not be cancelled before; return when to look again."""
        due = self._reading.heard + self._ping_seconds
        if now < due:
            return due
        self.try_send(Kind.PING, 0, wait_seconds=0)
        self.cancel_given_up(0)
        return now + self._ping_seconds

    def _ended(self, reason: str, detail: str) -> None:
        """Note that the pipe has ended. What follows takes time, unless the pipe was closed here."""
        if self._connections is not None:  # at once: none of them is to end as if it were in order
            self._connections.cut("the connection to the sandbox was cut")
        if self._closing:
            self._conclude(reason, detail)
            return
        thread = threading.Thread(target=self._conclude, args=(reason, detail), name="gamebox-pipe-end", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started: the other pipes wait
            self._conclude(reason, detail)
        else:
            self._concluding = thread  # not before: ``close`` joins it

    def _conclude(self, reason: str, detail: str) -> None:
        """Reach the guest again, or fail all requests, after the end of the pipe."""
        if reason == FOREIGN:
            reason = "taken_over" if self._has_another_host() else "protocol_violation"
        if not self._closing:
            self._reading.stream.finish()
        self._reading.stream.close()  # the far end may still be open for writing, without a reader
        keep = None if self._closing or self._breaks_again(reason) else self._keep
        if keep is not None and self._reconnect(keep, reason, detail):
            return
        if self._lost is None:
            self._fail("closed" if self._closing else reason, detail)
        self._connected.set()

    def _breaks_again(self, reason: str) -> bool:
        """Return whether to give the guest up: calling one that answers and breaks the protocol at once would never end."""
        if reason not in _BREAKING:
            return False
        self._violations += 1
        return self._violations > MOST_VIOLATIONS

    def _has_another_host(self) -> bool:
        """Return whether what came instead of a frame is the sandbox's answer to another host's call."""
        held = self._reading.frames.held
        prefix = b"" if self._keep is None else self._keep.answer_prefix
        if not prefix or not prefix.startswith(held[: wire.NONCE_BYTES]):
            return False
        with contextlib.suppress(OSError):
            while len(held) < ANSWER_BYTES and (more := self._reading.stream.receive(ANSWER_SECONDS)):
                held += more
        return held[:ANSWER_BYTES] != prefix + self.nonce  # else the answer to a call that was made twice

    def _reconnect(self, keep: Keep, reason: str, detail: str) -> bool:
        """Reach the guest over another stream and have requests under way sent again. Returns whether it was reached."""
        began = time.monotonic()
        self._connected.clear()
        self.pause_deadlines()
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
            self.nonce = nonce
            self._use(stream, received)
            self._assembler = wire.Assembler()
            waiting = list(self._pending.values())
        seconds = time.monotonic() - began
        for pending in waiting if self._hello.answered else [*waiting, self._hello]:
            pending.ask_again(seconds)
        if not waiting and self._hello.answered:  # else nobody has used the connection yet
            self._ask_ids.cut_seconds = seconds
        self._connected.set()
        if self._closing:
            stream.close()
        try:
            self._reading.begin(time.monotonic() + self._ping_seconds)
        except OSError as error:
            stream.close()
            self._fail("pipe_broken", str(error))
            return False
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
        """End all requests with ``error``, later ones too. Only the first loss counts."""
        with self._state_lock:
            self._lost = error = self._lost or error
            waiting = [*self._pending.values(), self._hello]
        for pending in waiting:
            pending.error = error
            pending.wake()

    def _take(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        connections = self._connections
        if connections is not None and (kind == Kind.OPEN or connections.takes(channel)):
            connections.take(kind, channel, payload)
            return
        if kind == Kind.ROUTE and self._on_switched is not None:
            on_switched, self._on_switched = self._on_switched, None
            on_switched()
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
