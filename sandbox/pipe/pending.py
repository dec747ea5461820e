"""A request that waits for its reply.

Every frame that puts off its deadline is bounded in number by something else: else a guest could put it off for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandbox.errors import ErrorCode, OperationError, SandboxError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.messages.faults import word_fault

# Over an operation's own deadline, silence is reported.
GRACE_SECONDS = 2.0
# After rests a request has some time for its answer again, but all cuts together give it no more than this.
MOST_SPARE_SECONDS = 3 * GRACE_SECONDS


@dataclass(slots=True, eq=False)
class Pending:
    """One request under way, shared by its caller and the reader under ``lock``.

    A Ctrl-C may strike the caller anywhere: ``lock`` and ``bell`` are of the kind that is never left half taken, as a
    Condition may be (its ``with`` is Python code, which a signal can end between its taking the lock and saying so).

    It may be silent for ``seconds``. ``deadline`` is monotonic, None while a command waits in the queue; ``lent`` is the time the
    caller took over its own callbacks, ``late`` the bytes that came after the deadline. ``limit`` bounds the reply in bytes.
    ``feeds`` says that the stream to the guest is the input of a command; ``on_room`` is called with every wake.
    ``sends`` and ``takes`` say whether it has a stream to the guest and one back, ``streams`` that the latter is the output of a
    command, which does not put off the deadline. ``again`` says that the pipe was cut and stands again, so that the request is
    to be sent once more; ``cut_seconds`` is how long it was cut, ``sent_by`` the sender that took the request. ``spare`` is
    what cuts may still add to the deadline over their own time, ``latest`` when a command that was started has to be answered,
    not counting what it ``rested`` since the beginning.
    """

    seconds: float
    limit: int
    deadline: float | None
    sends: bool = False
    takes: bool = False
    streams: bool = False
    feeds: bool = False
    cancelled: bool = False
    lent: float = 0.0
    late: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    bell: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    reply: tuple[dict[str, Any], bytes] | None = None
    error: SandboxError | None = None
    chunks: deque[bytes] = field(default_factory=deque)
    incoming: wire.ReceiveWindow = field(default_factory=lambda: wire.ReceiveWindow(wire.WINDOW))
    outgoing: wire.SendWindow = field(default_factory=lambda: wire.SendWindow(wire.WINDOW))
    events: set[str] = field(default_factory=set)
    again: bool = False
    stopping: bool = False
    cut_seconds: float = 0.0
    sent_by: object = None
    resting: bool = False
    left: float | None = None
    spare: float = MOST_SPARE_SECONDS
    rest_began: float = 0.0
    rested: float = 0.0
    latest: float | None = None
    on_room: Callable[[], None] | None = None

    def wake(self) -> None:
        """Have the caller look again."""
        if self.bell.empty():  # one ring is enough: the caller looks at everything after it
            self.bell.put(None)
        if self.on_room is not None:
            self.on_room()

    def sleep(self, seconds: float) -> None:
        """Wait for ``wake``, at most that long; only the caller does. May return early."""
        with contextlib.suppress(queue.Empty):
            self.bell.get(timeout=max(0.0, seconds))

    def cancel(self) -> None:
        """Have the caller ask the guest to stop; from any thread, and from a signal's handler."""
        self.cancelled = True
        self.wake()

    def extend(self) -> None:
        """Put off the deadline: the guest has shown that it works."""
        if self.deadline is not None:
            self.deadline = time.monotonic() + self.seconds

    # --- while no time is to pass ------------------------------------------------------------------
    def rest(self) -> None:
        """Have the deadline wait for ``go_on``: the sandbox is paused, or the pipe is cut."""
        with self.lock:
            if not self.resting:
                self.resting, self.rest_began = True, time.monotonic()
                self.left = None if self.deadline is None else self.deadline - time.monotonic()
                self.deadline = None
        self.wake()

    def go_on(self, *, after_cut: bool = False) -> None:
        """The rest is over. A guest may bring about cuts as often as it likes: they give no time without end."""
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
        """The pipe was cut for so long, and stands again; a stream cannot be taken up in the middle."""
        with self.lock:
            if self.reply is None and self.error is None:
                self.cut_seconds += cut_seconds
                self.events.clear()
                if self.sends or (self.takes and not self.streams):
                    self.error = _cut_short(self.sends, self.feeds)
                else:
                    self.again = True
        self.go_on(after_cut=True)
        self.wake()

    # --- frames ------------------------------------------------------------------
    def take(self, kind: int, channel: int, payload: bytes, assembler: wire.Assembler) -> None:
        """A frame of the guest on this request's channel. Raises WireError for what the protocol does not allow."""
        if kind == Kind.REPLY or (kind == Kind.HELLO and self.reply is None):
            self.reply = wire.unpack_message(assembler.finish(channel, payload))
        elif kind == Kind.PART and payload:
            if assembler.add(channel, payload, self.limit):
                self.extend()
                return
            self.error = too_long(self.limit)  # the guest says so itself, unless somebody took it over
        elif kind == Kind.DATA and payload and self.takes:
            self.take_data(payload)
        elif kind == Kind.CREDIT and len(payload) == 4 and self.sends:
            self.take_credit(int.from_bytes(payload, "big"))
        elif kind == Kind.NOTICE:
            self.take_notice(payload)
        else:
            raise wire.WireError(f"frame of kind {kind} from the guest that nothing asked for")
        self.wake()

    def take_credit(self, size: int) -> None:
        """The guest took ``size`` bytes of the stream to it. Raises WireError."""
        with self.lock:
            if not 0 < size <= wire.WINDOW - self.outgoing.left:
                raise wire.WireError("credit for what was not sent")
            self.outgoing.add_credit(size)
        if not self.feeds:  # a command has its own deadline
            self.extend()

    def take_notice(self, payload: bytes) -> None:
        """The command waits in the queue, or was started. Raises WireError."""
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
        """What a command has from now on; told again after a cut, it was started before: it gets no more than it had then."""
        now = (self.rest_began if self.resting else time.monotonic()) - self.rested
        if self.latest is None:
            self.latest = now + self.seconds
            return self.seconds
        return min(self.seconds, self.latest + MOST_SPARE_SECONDS - now)

    def take_data(self, payload: bytes) -> None:
        """A piece of the stream from the guest. Raises WireError."""
        with self.lock:
            self.incoming.receive(len(payload))
            if self.incoming.overrun:
                raise wire.WireError("stream beyond its credit")
            self.chunks.append(payload)
        if not self.streams:
            self.extend()
        elif self.deadline is not None and time.monotonic() > self.deadline:
            self.late += len(payload)
            if self.late > 2 * wire.WINDOW:  # all that can be under way, and what pipes may hold
                raise wire.WireError("output of a command that is past its deadline")

    def silent(self) -> SandboxUnavailableError:
        """The error for a deadline that has passed."""
        return SandboxUnavailableError(
            "no_answer",
            f"The sandbox did not answer within {self.seconds:g} seconds.",
            "It may be paused or starved of CPU; close it and start another one.",
        )


def too_long(limit: int) -> OperationError:
    """The error for a reply that grows past what was asked for."""
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
