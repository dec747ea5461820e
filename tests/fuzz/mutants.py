"""A guest that answers with the bytes it is given, and the host's end before it."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.backend import Description, GuestStream, StartRequest
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import CALL_BYTES, Call, answer_prefix, time_of_call
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import transport as transport_module
from sandbox.pipe.reattaching import ByteStream, call_guest
from sandbox.pipe.transport import Transport

from .conversations import NONCE, encode
from .guest_calls import TOKEN

# How often a conversation's pipe is mended, and how long a call waits for its answer.
MOST_RESUMED, CALL_SECONDS = 3, 0.05
# A stream that waits for more from the host than comes goes on after this: if its answer is wrong, or was really said.
IDLE_SECONDS, SURE_SECONDS = 0.03, 60.0

# Bytes that come in at once; b"" ends the pipe, a number is a wait for a frame of a body, or credit, of so many seconds at most.
Piece = bytes | float
# The pieces that answer the request on that channel, with the first frame's number and the nonce, and how many frames they are.
Answer = Callable[[int, int, bytes], tuple[list[Piece], int]]


class MutantStream:
    """A pipe to a guest that answers each request with the bytes it is given for it; implements ``transport.ByteStream``.

    ``answers`` are for the requests to come, ``again`` for those that are asked again once the pipe was mended. While it is
    ``full`` it takes nothing; where it ``resets``, it ends with an error. A stream ``after`` another one is to be called before
    it is used: see ``called``.
    """

    def __init__(self, nonce: bytes = NONCE, after: MutantStream | None = None) -> None:
        self.answers: deque[Answer] = deque() if after is None else after.answers
        self.again: deque[Answer] = deque() if after is None else after.again
        self._asked: list[Answer] = [] if after is None else after._asked  # the request under way, if it is asked again
        self.sequence = 0
        self.full = False
        self.resets: bool = after is not None and after.resets
        self._decoder = wire.Decoder(None)
        self._call_left = 0
        self._call_answer: list[bytes] = []
        self._nonce = nonce
        self._changed = threading.Condition()
        self._arriving: deque[Piece] = deque()
        self._moved = 0.0  # when a frame was taken, or a piece came in
        self._closed = False

    def clear(self) -> None:
        """No answers any more."""
        for answers in (self.answers, self.again, self._asked):
            answers.clear()

    def called(self, answer: list[bytes], behind: int) -> None:
        """What comes first is a call, and ``answer`` what it gets, ``behind`` the number of frames in it."""
        self._call_left, self._call_answer, self.sequence = CALL_BYTES, answer, behind
        asked = [*self._asked, *self.again]
        for answers in (self.again, self.answers):
            answers.clear()
            answers.extend(asked)

    def has_room(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not self.full, timeout_seconds)

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        with self._changed:
            if self._closed:
                raise BrokenPipeError
            if self.full:
                self._changed.wait_for(lambda: self._closed or not self.full, timeout_seconds)
                return 0
            if self._call_left:
                self._call_left -= len(data)
                if not self._call_left:
                    self._arriving += self._call_answer
            else:
                for kind, channel, _payload in self._decoder.feed(data):
                    self._take(kind, channel)
            self._moved = time.monotonic()
            self._changed.notify_all()
        return len(data)

    def _take(self, kind: int, channel: int) -> None:
        if kind in (Kind.HELLO, Kind.REQUEST):
            none: tuple[list[Piece], int] = ([b""], 0)
            self._go_on()
            pieces, count = self.answers.popleft()(channel, self.sequence, self._nonce) if self.answers else none
            self._asked[:] = [self.again.popleft()] if self.again else []
            self._arriving += pieces
            self.sequence += count
        elif kind in (Kind.DATA, Kind.CREDIT):
            if (wait := next((piece for piece in self._arriving if not isinstance(piece, bytes)), None)) is not None:
                self._arriving.remove(wait)
        elif kind in (Kind.END, Kind.CANCEL):
            self._go_on()

    def _go_on(self) -> None:
        self._arriving = deque(piece for piece in self._arriving if isinstance(piece, bytes))

    def _ready(self) -> bool:
        return self._closed or (bool(self._arriving) and isinstance(self._arriving[0], bytes))

    def receive(self, timeout_seconds: float) -> bytes | None:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._ready():
                now = time.monotonic()
                wait = self._arriving[0] if self._arriving else None
                due = deadline if wait is None or isinstance(wait, bytes) else self._moved + wait
                if now >= due and self._arriving:
                    self._arriving.popleft()
                    self._moved = now
                elif now >= deadline:
                    return None
                else:
                    self._changed.wait(min(due, deadline) - now)
            self._moved = time.monotonic()
            data = b"" if self._closed else self._arriving.popleft()
            assert isinstance(data, bytes)
            if self.resets and not data and not self._closed:
                raise ConnectionResetError
            return data

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class MutantKeep:
    """How the guest is reached again; implements ``resuming.Keep``. The answer to the call is mutated as well."""

    seconds = 60.0
    answer_prefix = answer_prefix(TOKEN)

    def __init__(self, stream: MutantStream, rng: random.Random) -> None:
        self.stream, self._rng = stream, rng
        self.resumed = 0

    def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[ByteStream, bytes]:
        self.resumed += 1
        if self.resumed > MOST_RESUMED:
            raise SandboxUnavailableError(reason, f"Given up: {detail}.")
        answer, frames = self._answer(nonce)
        self.stream = MutantStream(nonce, self.stream)
        self.stream.called(answer, frames)
        try:
            call = Call(nonce, replaces, bytes(8), time_of_call(), 0)
            rest = call_guest(self.stream, TOKEN, call, time.monotonic() + CALL_SECONDS)
        except OSError as error:
            raise SandboxUnavailableError("pipe_broken", f"Not reached: {error}.") from error
        return self.stream, rest

    def _answer(self, nonce: bytes) -> tuple[list[bytes], int]:
        """The pieces of an answer to the call, and how many frames are behind it."""
        rng = self._rng
        before = rng.choice((b"", b"", b"x" * 100, self.answer_prefix[:7], self.answer_prefix + bytes(8)))
        whole = self.answer_prefix + nonce
        kind = rng.random()
        if kind < 0.05:
            return [before, b""] if before else [b""], 0  # the end
        if kind < 0.08:
            return [before] if before else [], 0  # nothing
        answer = before + whole * rng.choice((1, 1, 1, 2))
        frames = rng.choice((0, 0, 1))
        if frames:
            answer += encode([(Kind.PONG, 0, b"")], 0, nonce)[0]
        at = rng.randrange(1, len(answer))
        return rng.choice(([answer], [answer[:at], answer[at:]])), frames


class FuzzedEnvironment(SandboxedEnvironment):
    """An environment whose guest is a MutantStream; with ``rng`` a kept one, whose pipe is mended."""

    def __init__(self, stream: MutantStream, rng: random.Random | None = None, lease_seconds: float = 120.0) -> None:
        super().__init__(MutantBackend(self), track_changes=False)
        self._stream = stream
        self._mended = None if rng is None else MutantKeep(stream, rng)
        self._lease_seconds = lease_seconds
        self._detaches = rng is not None

    def _connect(self) -> Transport:
        transport_module.AFTER_VIOLATION_SECONDS = 0.001  # a wait for the sake of the guest: there is none
        transport = Transport(
            self._stream, lambda reason, detail: SandboxUnavailableError(reason, f"Ended: {detail}."), nonce=NONCE,
            keep=self._mended, lease_seconds=self._lease_seconds,
        )  # fmt: skip
        self._network.carry(transport, self._services.connectors(lambda: self.ceiling), self._services.close_with)
        try:
            transport.open({}, 5.0)
        finally:
            self.transport = transport
        return transport

    @property
    def kept(self) -> bool:
        """Whether its pipe is mended."""
        return self._mended is not None

    @property
    def pipe(self) -> MutantStream:
        """The pipe of now."""
        return self._stream if self._mended is None else self._mended.stream


class NoBackend:
    """Implements ``Backend`` for a sandbox that has no guest: its transport answers by itself."""

    attached = False

    def open(self, request: StartRequest) -> GuestStream:
        """Raise NotImplementedError: there is no guest to reach."""
        raise NotImplementedError

    def serve(self, asked: Any, request: StartRequest) -> Mapping[str, str]:
        """Raise NotImplementedError: nothing stands by."""
        raise NotImplementedError

    def note_acquired(self) -> None:
        """Do nothing: nothing stands by."""

    def check(self, facts: Mapping[str, Any], transport: Transport) -> None:
        """Do nothing: nothing is enforced."""

    def close(self, *, detach: bool) -> None:
        """Do nothing: there is nothing to release."""

    def wait_until_gone(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def outlives_close(self) -> bool:
        """See ``Backend``."""
        return False

    def claim_removal(self, *, left: bool) -> bool:
        """See ``Backend``."""
        return True

    def explain(self, reason: str, detail: str) -> SandboxUnavailableError:
        """See ``Backend``."""
        return SandboxUnavailableError(reason, detail)

    def explain_silence(
        self, error: SandboxUnavailableError, give_up: Callable[[SandboxUnavailableError], None]
    ) -> SandboxUnavailableError:
        """See ``Backend``."""
        return error

    def freeze(self) -> None:
        """Nothing runs."""

    def thaw(self) -> None:
        """Nothing runs."""

    def describe(self) -> Description:
        """See ``Backend``."""
        return Description(sandbox="A sandbox that exists only in a test.")


class MutantBackend(NoBackend):
    """Ends the transport once more when the environment is closed."""

    def __init__(self, env: FuzzedEnvironment) -> None:
        self._env = env

    def close(self, *, detach: bool) -> None:
        """See ``Backend``."""
        self._env.transport.close()
