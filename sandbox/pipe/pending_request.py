"""One request over the pipe, from its first frame to its reply.

Every frame that postpones the deadline is bounded in number by something else; otherwise a guest could postpone it for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from sandbox.errors import ErrorCode, OperationError, SandboxError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.messages.faults import word_fault

from .sender import FrameSender

# Silence is reported this long after an operation's own deadline.
GRACE_SECONDS = 2.0
# After a pause or a cut, a request has some time for its answer again; all cuts together give it no more than this.
MOST_SPARE_SECONDS = 3 * GRACE_SECONDS
# After a cancel: a fork storm takes 1.5 s to end.
CANCEL_SECONDS = 1.5 + GRACE_SECONDS
# A caller without a deadline looks again this often.
LOOK_SECONDS = 30.0
# A wait that ends this much too late was not a wait: this process was stopped, or starved. The answer may have arrived meanwhile,
# so the request gets more time.
OVERSLEPT_SECONDS = 0.05
# A caller that waits reads the pipe itself for this long, and then leaves it to the process's reader: a short answer comes without
# a hand-over between threads, and of a long one the hand-over does not matter.
OWN_SECONDS = 0.02
# A pipe that has any room takes frames up to this size together, and their headers, without waiting.
SHORT = 4000
MORE_PER_LATE_SECOND = 5
NOTHING = nullcontext()


# Takes a piece of a stream from the guest, which is the caller's to keep.
Sink = Callable[[bytes | memoryview], None]


class Cut(Exception):  # noqa: N818 - no error: the request is sent again
    """The pipe was cut. The reader reconnects it, or gives it up."""


class Pipe(Protocol):
    """What a request sends its frames through."""

    sender: FrameSender

    def send_frame(
        self, request: PendingRequest, sender: FrameSender, kind: int, payload: bytes | memoryview = b""
    ) -> None:
        """Send a frame within the deadline of ``request``. Raises SandboxUnavailableError, Cut."""

    def try_send(self, kind: int, channel: int, payload: bytes = b"") -> bool:
        """Send a frame that may be lost if the pipe is full or broken. Returns whether it was sent."""

    def read_for(self, pending: PendingRequest, seconds: float) -> None:
        """Read the pipe for up to ``seconds``, until there is something to do for ``pending``, unless another thread does."""

    def ask(
        self, request: PendingRequest, sender: FrameSender, frames: Sequence[tuple[int, bytes | memoryview]], seconds: float
    ) -> bool | None:
        """Send short frames, then do what ``read_for`` does. Returns what ``FrameSender.offer`` does."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request under way, shared by its caller and the pipe's reader. Fields that both write are guarded by ``lock``.

    States::

        SENDING ── send() ──► WAITING ─── reply or error ──► ANSWERED
                              │     ▲
             notice "queued"  ▼     │  notice "started"
                              QUEUED

        QUEUED     a command waits for its session: ``deadline`` is None
        ANSWERED   ``reply`` is returned, or ``error`` is raised

    From every state but ANSWERED::

        pause() ─► resume()      the sandbox is paused: the deadline stands still (``resting``; ``left`` is what remains of it)
        pause() ─► ask_again()   the pipe was cut: the caller sends the request again (``again``), or the request fails with
                                 transfer_incomplete if it had a stream under way
        cancel()                 the caller sends CANCEL and waits CANCEL_SECONDS (``cancelled``, then ``stopping``)

    Without an answer by ``deadline`` (monotonic) the caller raises ``no_answer``. The guest may be silent for ``seconds``;
    frames that show that it works postpone the deadline by that.

    ``lock`` and ``bell`` are of kinds that a Ctrl-C, which may strike the caller anywhere, never leaves half taken. A
    Condition may be left so: its ``with`` is Python code, which a signal can end between its taking the lock and recording
    that.
    """

    seconds: float
    limit: int  # of the reply, in bytes
    deadline: float | None
    sends: bool = False  # has a stream to the guest
    takes: bool = False  # has a stream from the guest
    streams: bool = False  # the stream from the guest is a command's output, which does not postpone the deadline
    feeds: bool = False  # the stream to the guest is a command's input
    sent: bool = False  # all of the caller's own stream to the guest
    channel: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    bell: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    message: tuple[int, dict[str, Any], bytes] | None = None  # kind, fields and blob, to be sent again after a cut
    sent_by: object = None  # the sender that took all of the message
    reply: tuple[dict[str, Any], bytes] | None = None
    error: SandboxError | None = None
    chunks: deque[bytes | memoryview] = field(default_factory=deque)  # from the guest, not consumed yet
    incoming: wire.ReceiveWindow = field(default_factory=partial(wire.ReceiveWindow, wire.WINDOW))
    outgoing: wire.SendWindow = field(default_factory=partial(wire.SendWindow, wire.WINDOW))
    events: set[str] = field(default_factory=set)
    late: int = 0  # bytes of output that came after the deadline
    lent: float = 0.0  # seconds that the caller spent in its own callbacks: no silence of the guest
    cancelled: bool = False
    stopping: bool = False
    again: bool = False
    cut_seconds: float = 0.0
    spare: float = MOST_SPARE_SECONDS  # what cuts may still add to the deadline
    resting: bool = False
    left: float | None = None
    rest_began: float = 0.0
    rested: float = 0.0  # seconds of all pauses and cuts so far
    latest: float | None = None  # when a command that was started must be answered, not counting ``rested``
    on_room: Callable[[], None] | None = None  # called with every wake

    def wake(self) -> None:
        """Have the caller look again."""
        if self.bell.empty():  # one ring is enough: the caller looks at everything after it
            self.bell.put(None)
        on_room = self.on_room  # the caller may leave meanwhile
        if on_room is not None:
            on_room()

    def cancel(self) -> None:
        """Have the caller ask the guest to stop. May be called from any thread and from a signal handler."""
        self.cancelled = True
        self.wake()

    def pause(self) -> None:
        """Stop the deadline's clock until ``resume``: the sandbox is paused, or the pipe is cut."""
        with self.lock:
            if not self.resting:
                self.resting, self.rest_began = True, time.monotonic()
                self.left = None if self.deadline is None else self.deadline - time.monotonic()
                self.deadline = None
        self.wake()

    def resume(self, *, after_cut: bool = False) -> None:
        """Let the deadline's clock run again, with some time for the answer; all cuts together give a bounded time."""
        with self.lock:
            if self.resting:
                now, self.resting = time.monotonic(), False
                self.rested += now - self.rest_began
                if self.left is None:
                    self.deadline = None
                else:
                    more = max(0.0, GRACE_SECONDS - self.left)
                    if after_cut:
                        more = min(more, self.spare)
                        self.spare -= more
                    self.deadline = now + self.left + more
        self.wake()

    def ask_again(self, cut_seconds: float) -> None:
        """Have the request sent again after a cut of ``cut_seconds``, or fail it: a stream cannot be continued in the middle."""
        with self.lock:
            if self.reply is None and self.error is None:
                self.cut_seconds += cut_seconds
                self.events.clear()
                if self.sends or (self.takes and not self.streams):
                    self.error = _cut_short(self.sends, self.feeds)
                else:
                    self.again = True
        self.resume(after_cut=True)
        self.wake()

    def take(self, kind: int, channel: int, payload: bytes | memoryview, assembler: wire.Assembler) -> None:
        """Take a frame of the guest on this request's channel. Raises WireError for what the protocol does not allow."""
        if kind == Kind.REPLY or (kind == Kind.HELLO and self.reply is None):
            self.reply = wire.unpack_message(assembler.finish(channel, payload))
        elif kind == Kind.PART and payload:
            if assembler.add(channel, payload, self.limit):
                self._postpone()
                return
            self.error = too_long(self.limit)  # the guest would fail the request itself, unless it was taken over
        elif kind == Kind.DATA and payload and self.takes:
            self._take_data(payload)
        elif kind == Kind.CREDIT and len(payload) == 4 and self.sends:
            self._take_credit(int.from_bytes(payload, "big"))
        elif kind == Kind.NOTICE:
            self.take_notice(payload)
        else:
            raise wire.WireError(f"frame of kind {kind} from the guest that nothing asked for")
        self.wake()

    def _take_credit(self, size: int) -> None:
        """Note that the guest consumed ``size`` bytes of the stream to it. Raises WireError."""
        with self.lock:
            if not 0 < size <= wire.WINDOW - self.outgoing.left:
                raise wire.WireError("credit for what was not sent")
            self.outgoing.add_credit(size)
        if not self.feeds:  # a command has its own deadline
            self._postpone()

    def take_notice(self, payload: bytes | memoryview) -> None:
        """Note that the command waits in its queue, or was started. Raises WireError."""
        event = wire.unpack_message(payload)[0].get("event")
        if event not in ("queued", "started") or event in self.events:
            raise wire.WireError("notice that makes no sense")
        self.events.add(event)
        with self.lock:
            left = None if event == "queued" else self._left_when_started()
            if self.resting:
                self.left = left
            else:
                self.deadline = None if left is None else time.monotonic() + left

    def _left_when_started(self) -> float:
        """Return the seconds that a command has from now on. After a cut the notice comes again, and gives no more."""
        now = (self.rest_began if self.resting else time.monotonic()) - self.rested
        if self.latest is None:
            self.latest = now + self.seconds
            return self.seconds
        return min(self.seconds, self.latest + MOST_SPARE_SECONDS - now)

    def _take_data(self, payload: bytes | memoryview) -> None:
        """Take a piece of the stream from the guest. Raises WireError."""
        with self.lock:
            self.incoming.receive(len(payload))
            if self.incoming.overrun:
                raise wire.WireError("stream beyond its credit")
            self.chunks.append(payload)
        if not self.streams:
            self._postpone()
        elif self.deadline is not None and time.monotonic() > self.deadline:
            self.late += len(payload)
            if self.late > 2 * wire.WINDOW:  # all that can be under way, and what pipes may hold
                raise wire.WireError("output of a command that is past its deadline")

    def no_answer(self) -> SandboxUnavailableError:
        """Return the error for a deadline that has passed."""
        return SandboxUnavailableError(
            "no_answer",
            f"The sandbox did not answer within {self.seconds:g} seconds.",
            "It may be paused or starved of CPU; close it and start another one.",
        )

    def _postpone(self) -> None:
        """Postpone the deadline: the guest has shown that it works."""
        if self.deadline is not None:
            self.deadline = time.monotonic() + self.seconds

    def perform(
        self,
        pipe: Pipe,
        fields: dict[str, Any],
        blob: bytes = b"",
        *,
        kind: int = Kind.REQUEST,
        on_sent: Callable[[], None] | None = None,
        body: Iterable[bytes] | None = None,
        watching: AbstractContextManager[object] = NOTHING,
        feeding: AbstractContextManager[object] = NOTHING,
        sink: Sink | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """Send the request with its body (a tuple if all is known) and wait for the reply within ``watching`` and ``feeding``.

        See ``Transport.request`` for the rest.

        A request that a cut keeps from being sent is sent again with what follows the cut. Raises SandboxError.
        """
        short = body is None or (isinstance(body, tuple) and sum(map(len, body)) < SHORT)
        try:
            if short and on_sent is None and watching is NOTHING and feeding is NOTHING and len(blob) < SHORT:
                self.ask(pipe, kind, fields, blob, None if body is None else b"".join(body))
            else:
                self.send(pipe, kind, fields, blob)
                if on_sent is not None:
                    on_sent()
                if body is not None:
                    self.send_body(pipe, body)
        except Cut:
            pass
        with watching, feeding:
            return self.wait_for_reply(pipe, sink)

    def send(self, pipe: Pipe, kind: int, fields: dict[str, Any], blob: bytes = b"") -> None:
        """Send the request. Called by the caller's thread, as all that follows. Raises SandboxError, Cut."""
        frames = self.frames(kind, fields, blob)
        self.sent_by = sender = pipe.sender  # all of it through one: a part through another would be nonsense
        for part, payload in frames:
            pipe.send_frame(self, sender, part, payload)

    def ask(self, pipe: Pipe, kind: int, fields: dict[str, Any], blob: bytes = b"", body: bytes | None = None) -> None:
        """Send the request; read the pipe from before that, if it is short: the answer may come at once. Raises as ``send``."""
        frames = list(self.frames(kind, fields, blob))
        if body is not None:
            frames += [(Kind.DATA, body), (Kind.END, b"")] if body else [(Kind.END, b"")]
            self.outgoing.use(len(body))
            self.sent = True
        self.sent_by = sender = pipe.sender
        sent, left = None, OWN_SECONDS if self.deadline is None else self.deadline - time.monotonic()
        if sum(len(payload) for _, payload in frames) < SHORT:
            sent = pipe.ask(self, sender, frames, min(left, OWN_SECONDS))
        if sent is False:  # the rest goes before the next frame
            pipe.send_frame(self, sender, Kind.PING)
        for part, payload in frames if sent is None else ():
            pipe.send_frame(self, sender, part, payload)

    def frames(self, kind: int, fields: dict[str, Any], blob: bytes = b"") -> Iterator[tuple[int, bytes | memoryview]]:
        """Return the frames of the request. Raises OperationError for what cannot be sent."""
        self.message = (kind, fields, blob)
        try:  # exact: what cannot be carried out as asked must be refused, not carried out in another way
            message = wire.pack_message(fields, exact=True)
        except ValueError as error:
            problem = "a number in them has more digits than can be sent" if "digits" in str(error) else str(error)
            words = word_fault(ErrorCode.invalid_arguments, {"problem": problem}, str(fields.get("operation", "hello")))
            raise OperationError(ErrorCode.invalid_arguments, words.message, words.hint, effects="none") from error
        return wire.split_message(kind, message, blob)

    def send_body(self, pipe: Pipe, body: Iterable[bytes]) -> None:
        """Stream ``body`` to the operation. Raises SandboxError, Cut, and what ``body`` raises."""
        try:
            for chunk in body:
                view = memoryview(chunk)
                while view:
                    room = self._await_window(pipe)
                    if not room:  # answered already: a failure
                        return
                    piece = view[: min(room, wire.MAX_PAYLOAD)]
                    with self.lock:
                        self.outgoing.use(len(piece))
                    pipe.send_frame(self, pipe.sender, Kind.DATA, piece)
                    view = view[len(piece) :]
        except BaseException as error:  # of the source, or a Ctrl-C: the guest must not take a part for the whole
            problem = f"the source failed: {str(error) or type(error).__name__}"
            pipe.try_send(Kind.END, self.channel, problem.encode("utf-8", "replace")[:500])
            raise
        pipe.send_frame(self, pipe.sender, Kind.END)
        self.sent = True

    def _await_window(self, pipe: Pipe) -> int:
        while self.outgoing.left <= 0 and not self.answered:
            self._wait(pipe)
        return 0 if self.answered else self.outgoing.left

    @property
    def answered(self) -> bool:
        """Whether there is a reply, or an error to raise."""
        return self.reply is not None or self.error is not None

    def wait_for_reply(self, pipe: Pipe, sink: Sink | None = None) -> tuple[dict[str, Any], bytes]:
        """Wait for the reply and return it; pass what is streamed back to ``sink``. Raises SandboxError."""
        while True:
            try:
                self.catch_up(pipe)
            except Cut:  # it is sent again after that
                pass
            while not self.has_work:
                self._wait(pipe)
            with self.lock:
                if not self.chunks:
                    if self.reply is not None:
                        return self.reply
                    if self.error is not None:
                        raise self.error
                    continue
                chunk = self.chunks.popleft()
                self.incoming.consume(len(chunk))
            if sink is not None:
                began = time.monotonic()
                sink(chunk)
                self.lent += time.monotonic() - began
            if self.incoming.credit_due:
                with contextlib.suppress(Cut):
                    pipe.send_frame(self, pipe.sender, Kind.CREDIT, self.incoming.credit())

    @property
    def has_work(self) -> bool:
        """Whether there is something for the caller to do."""
        return bool(self.chunks) or self.must_send or self.answered

    @property
    def wants_turn(self) -> bool:
        """Whether the caller has to stop reading the pipe."""
        return self.has_work or (self.sends and not (self.feeds or self.sent) and self.outgoing.left > 0)

    @property
    def must_send(self) -> bool:
        """Whether ``catch_up`` is due."""
        return self.cancelled or self.again

    def catch_up(self, pipe: Pipe) -> None:
        """Send what is due: the request again after a cut, and its cancellation."""
        if self.again:
            self.again = False
            self.cancelled = self.cancelled or self.stopping
            if self.message is not None and self.sent_by is not pipe.sender:
                self.send(pipe, *self.message)
        if self.cancelled:
            self.begin_stopping()
            pipe.send_frame(self, pipe.sender, Kind.CANCEL)

    def begin_stopping(self) -> None:
        """Note that the guest is asked to stop, for which it has some time."""
        self.cancelled, self.stopping = False, True
        if not self.resting:
            self.deadline = time.monotonic() + CANCEL_SECONDS

    def _wait(self, pipe: Pipe) -> None:
        """Wait once. Raises SandboxUnavailableError ``no_answer`` past the deadline."""
        for seconds in self.waits():
            self._sleep(pipe, seconds)

    def waits(self) -> Iterator[float]:
        """Yield for how long to wait, once. Raises SandboxUnavailableError ``no_answer`` past the deadline."""
        due = self.deadline  # the reader may change it meanwhile
        if due is None:
            yield LOOK_SECONDS
            return
        left = due + self.lent - time.monotonic()
        if left <= 0:
            raise self.no_answer()
        yield min(left, LOOK_SECONDS)
        late = time.monotonic() - due - self.lent
        with self.lock:
            if self.deadline == due and late > OVERSLEPT_SECONDS:
                # It was this process that was stopped, not the guest that was silent: the answer may be in the pipe.
                self.deadline = time.monotonic() - self.lent + min(GRACE_SECONDS, MORE_PER_LATE_SECOND * late)

    def _sleep(self, pipe: Pipe, seconds: float) -> None:
        """Wait for ``wake``, at most ``seconds``. May return early."""
        own = min(seconds, OWN_SECONDS)
        pipe.read_for(self, own)
        with contextlib.suppress(queue.Empty):
            self.bell.get(timeout=max(0.0, seconds - own))


def too_long(limit: int) -> OperationError:
    """Return the error for a reply that grows past ``limit`` bytes."""
    words = word_fault(ErrorCode.response_too_large, {"limit": limit}, "")
    return OperationError(ErrorCode.response_too_large, words.message, words.hint, effects="unknown")


def _cut_short(sends: bool, feeds: bool) -> OperationError:
    if feeds:
        return OperationError(
            ErrorCode.transfer_incomplete,
            "The connection to the sandbox was cut while the command's input was sent, and stands again; the command was stopped.",
            "Look at what it has done, then run it again with a new source for stdin.",
            effects="unknown",
        )
    words = word_fault(
        ErrorCode.transfer_incomplete, {"problem": "the connection to the sandbox was cut, and stands again"}, ""
    )
    return OperationError(
        ErrorCode.transfer_incomplete, words.message, words.hint, retryable=True, effects="unknown" if sends else "none"
    )
