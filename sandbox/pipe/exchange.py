"""One request from its caller's side: sent, streamed to, waited for; and sent again where the pipe was cut meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.messages.faults import word_fault

from .pending import GRACE_SECONDS, Pending
from .reattaching import Cut

if TYPE_CHECKING:
    from .transport import Transport

# After a cancel: a fork storm takes 1.5 s to end.
CANCEL_SECONDS = 1.5 + GRACE_SECONDS
# A caller without a deadline looks again this often.
LOOK_SECONDS = 30.0
# A wait that ends so much too late was not a wait: this process was stopped, or starved. It then has some more, for what came in.
OVERSLEPT_SECONDS = 0.05
MORE_PER_LATE_SECOND = 5


class Exchange:
    """Lives in the caller's thread; all methods raise SandboxError, and ``send`` and ``send_body`` Cut."""

    def __init__(self, transport: Transport, pending: Pending, channel: int) -> None:
        self._transport = transport
        self._pending = pending
        self._channel = channel
        self._message: tuple[int, dict[str, Any], bytes] | None = None

    def send(self, kind: int, fields: dict[str, Any], blob: bytes = b"") -> None:
        """Send the request."""
        self._message = (kind, fields, blob)
        try:  # exact: what cannot be carried out as it was asked is to be refused, not carried out in another way
            message = wire.pack_message(fields, blob, exact=True)
        except ValueError as error:
            problem = "a number in them has more digits than can be sent" if "digits" in str(error) else str(error)
            words = word_fault(ErrorCode.invalid_arguments, {"problem": problem}, str(fields.get("operation", "hello")))
            raise OperationError(ErrorCode.invalid_arguments, words.message, words.hint, effects="none") from error
        self._pending.sent_by = sender = (
            self._transport.sender
        )  # all of it through one: a part elsewhere would be nonsense
        for part, payload in wire.split_message(kind, message):
            self._transport.frame(self._pending, sender, part, self._channel, payload)

    def _frame(self, kind: int, payload: bytes | memoryview = b"") -> None:
        self._transport.frame(self._pending, self._transport.sender, kind, self._channel, payload)

    # --- a body ------------------------------------------------------------------
    def send_body(self, body: Iterable[bytes]) -> None:
        """Stream the body."""
        pending = self._pending
        try:
            for chunk in body:
                view = memoryview(chunk)
                while view:
                    room = self._await_window()
                    if not room:  # answered already: a failure
                        return
                    piece = view[: min(room, wire.MAX_PAYLOAD)]
                    with pending.lock:
                        pending.outgoing.use(len(piece))
                    self._frame(Kind.DATA, piece)
                    view = view[len(piece) :]
        except BaseException as error:  # of the source, or a Ctrl-C: the guest must not take a part for the whole
            problem = f"the source failed: {str(error) or type(error).__name__}"
            self._transport.offer(Kind.END, self._channel, problem.encode("utf-8", "replace")[:500])
            raise
        self._frame(Kind.END)

    def _await_window(self) -> int:
        pending = self._pending
        while pending.outgoing.left <= 0 and pending.reply is None and pending.error is None:
            self._wait()
        return pending.outgoing.left if pending.reply is None and pending.error is None else 0

    # --- waiting ------------------------------------------------------------------
    def reply(self, sink: Callable[[bytes], None] | None = None) -> tuple[dict[str, Any], bytes]:
        """The reply; what is streamed back meanwhile goes to ``sink``."""
        pending = self._pending
        while True:
            with contextlib.suppress(Cut):
                self._catch_up()
            while not self._something():
                self._wait()
            with pending.lock:
                if not pending.chunks:
                    if pending.reply is not None:
                        return pending.reply
                    if pending.error is not None:
                        raise pending.error
                    continue
                chunk = pending.chunks.popleft()
                pending.incoming.consume(len(chunk))
            if sink is not None:
                began = time.monotonic()
                sink(chunk)
                pending.lent += time.monotonic() - began  # the caller's own time is no silence of the guest
            if pending.incoming.credit_due:
                with contextlib.suppress(Cut):
                    self._frame(Kind.CREDIT, pending.incoming.credit())

    def _something(self) -> bool:
        pending = self._pending
        due = pending.chunks or pending.cancelled or pending.again
        return bool(due) or pending.reply is not None or pending.error is not None

    def _catch_up(self) -> None:
        """Send what is due: the request again where the pipe was cut, and that it is cancelled."""
        pending = self._pending
        if pending.again:
            pending.again = False
            pending.cancelled = pending.cancelled or pending.stopping
            if self._message is not None and pending.sent_by is not self._transport.sender:
                self.send(*self._message)
        if pending.cancelled:
            pending.cancelled, pending.stopping = False, True
            if not pending.resting:
                pending.deadline = time.monotonic() + CANCEL_SECONDS
            self._frame(Kind.CANCEL)

    def _wait(self) -> None:
        """One wait; raises SandboxUnavailableError ``no_answer`` past the deadline."""
        pending = self._pending
        due = pending.deadline  # the reader may change it meanwhile
        if due is None:
            pending.sleep(LOOK_SECONDS)
            return
        left = due + pending.lent - time.monotonic()
        if left <= 0:
            raise pending.silent()
        pending.sleep(min(left, LOOK_SECONDS))
        late = time.monotonic() - due - pending.lent
        with pending.lock:
            if pending.deadline == due and late > OVERSLEPT_SECONDS:
                # It was this process that was stopped, not the guest that was silent: the answer may be in the pipe.
                pending.deadline = time.monotonic() - pending.lent + min(GRACE_SECONDS, MORE_PER_LATE_SECOND * late)
