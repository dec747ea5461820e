"""The host's end under fuzz: everything from the bytes off the pipe to the envelope a model is shown."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from sandbox.envelope import Failure, Success
from sandbox.errors import ErrorCode, SandboxUnavailableError
from sandbox.guest import wire
from sandbox.guest.wire import Kind
from sandbox.guest_environment import GuestEnvironment
from sandbox.transport import Transport

from .conversations import NONCE, Exchange, Frame, encode
from .found import Counts, Found
from .mutations import in_pieces, mutated_frames, on_the_wire
from .recording import call

LATE_SECONDS = 10.0
# What a model is shown of a fault or a notice is a few sentences, whatever the guest sent.
MOST_WORDS = 12_000
EXCHANGES = 40


# The bytes that answer the request on that channel, the first frame with that number, and how many frames they are; b"" at the
# end of the bytes ends the pipe.
Answer = Callable[[int, int], tuple[list[bytes], int]]


class MutantStream:
    """A pipe to a guest that answers each request with the bytes it is given for it; implements ``transport.ByteStream``."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()  # for each request to come
        self.sequence = 0
        self._decoder = wire.Decoder(None)
        self._changed = threading.Condition()
        self._arriving: deque[bytes] = deque()
        self._closed = False

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        with self._changed:
            if self._closed:
                raise BrokenPipeError
            for kind, channel, _payload in self._decoder.feed(data):
                if kind in (Kind.HELLO, Kind.REQUEST):
                    pieces, count = self.answers.popleft()(channel, self.sequence) if self.answers else ([b""], 0)
                    self._arriving += pieces
                    self.sequence += count
            self._changed.notify_all()
        return len(data)

    def receive(self, timeout_seconds: float) -> bytes | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._arriving or self._closed, timeout_seconds):
                return None
            return b"" if self._closed else self._arriving.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class FuzzedEnvironment(GuestEnvironment):
    """An environment whose guest is a MutantStream."""

    def __init__(self, stream: MutantStream) -> None:
        super().__init__(None, None, None, track_changes=False)
        self._stream = stream

    def _connect(self) -> Transport:
        transport = Transport(
            self._stream, lambda reason, detail: SandboxUnavailableError(reason, f"Ended: {detail}."), nonce=NONCE
        )
        try:
            transport.open({}, 5.0)
        finally:
            self.transport = transport
        return transport

    def _release(self) -> None:
        self.transport.close()


class HostTarget:
    """Mutated conversations with the host's end. ``wrong`` is the share of exchanges that are mutated."""

    def __init__(self, greeting: Exchange, corpus: list[Exchange], wrong: float = 0.5) -> None:
        self._greeting = greeting
        self._corpus = corpus
        self._wrong = wrong

    def conversation(self, rng: random.Random, counts: Counts) -> None:
        """One conversation, until its pipe ends. Raises Found."""
        stream, told = MutantStream(), list[Any]()
        whole = rng.random() > 0.02
        self._load(rng, stream, self._greeting, not whole, told)
        env = FuzzedEnvironment(stream)
        try:
            try:
                env.start()
            except SandboxUnavailableError as error:
                counts.endings[f"hello:{error.reason}"] += 1
                return
            for _ in range(EXCHANGES):
                exchange = rng.choice(self._corpus)
                mutated = rng.random() < self._wrong
                self._load(rng, stream, exchange, mutated, told)
                ending = make_call(env, exchange.method, exchange.args, told, None if mutated else exchange.ok)
                if ending == "lost" and whole and not mutated:
                    raise Found(f"{exchange.method}: what was really said ended the pipe", told)
                whole = whole and not mutated
                counts.calls += 1
                counts.endings[ending] += 1
                if ending == "lost":
                    return
        finally:
            env.close()
            counts.conversations += 1
            counts.frames += env.transport._decoder._sequence + (env.transport._lost is not None)

    def _load(
        self, rng: random.Random, stream: MutantStream, exchange: Exchange, mutated: bool, told: list[Any]
    ) -> None:
        """Make the answers to the requests of ``exchange`` ready, one of them wrong."""
        asked = max(frame.channel for frame in exchange.sent) + 1
        wrong = rng.randrange(asked) if mutated else None
        said: list[list[str]] = []
        told.append([exchange.method, exchange.args, said])
        stream.answers.clear()
        for n in range(asked):
            frames = [frame for frame in exchange.received if frame.channel == n]
            stream.answers.append(partial(self._answer, rng, frames, n == wrong, said))

    def _answer(
        self, rng: random.Random, frames: list[Frame], mutated: bool, said: list[list[str]], channel: int, sequence: int
    ) -> tuple[list[bytes], int]:
        first, due = frames[0].channel, frames[-1].kind
        if mutated:
            frames = mutated_frames(rng, frames, self._corpus)
        parts = [
            (kind, (channel + c - first) & 0xFFFFFFFF, payload)
            for frame in frames
            for kind, c, payload in frame.frames()
        ]
        whole = b"".join(encode(parts, sequence))
        data = on_the_wire(rng, parts, sequence, NONCE, 0.03 if mutated else 0.0)
        pieces = in_pieces(rng, data)
        if data != whole or (due, channel) not in [(kind, c) for kind, c, _ in parts]:
            pieces.append(b"")  # nothing may come that answers the request
        said.append([piece.hex() for piece in pieces])
        return pieces, len(parts)


def make_call(env: GuestEnvironment, method: str, args: dict[str, Any], told: list[Any], expected: bool | None) -> str:
    """Make one call and judge its answer; how it ended. Raises Found."""
    began = time.monotonic()
    try:
        answer = call(env, method, args)
        _judge(answer)
    except Exception as error:
        raise Found(f"{method} {args} ended with {type(error).__name__}: {error}"[:2000], told) from error
    if time.monotonic() - began > LATE_SECONDS:
        raise Found(f"{method} took {time.monotonic() - began:.1f} s", told)
    gone = not answer.ok and answer.code is ErrorCode.sandbox_unavailable
    if gone and env.transport._lost is not None:  # type: ignore[attr-defined]
        return "lost"  # by this exchange or one before
    if expected is not None and method not in ("send", "screen") and answer.ok != expected:
        raise Found(f"{method} {args}: what was really said came out as {answer}", told)
    return "ok" if answer.ok else "refused" if gone else "fault"


def _judge(answer: Any) -> None:
    assert isinstance(answer, Success | Failure), f"no envelope: {answer!r}"
    json.dumps(answer.to_dict(), ensure_ascii=False, allow_nan=False).encode()
    answer.to_text().encode()
    said = [n.message for n in answer.notices] + [n.hint for n in answer.notices]
    if isinstance(answer, Failure):
        said += [answer.error, answer.hint]
        assert answer.error, "a failure without a word"
    longest = max(map(len, said), default=0)
    assert longest <= MOST_WORDS, f"a sentence of {longest} characters"


def replay(conversation: list[Any]) -> None:
    """A conversation that was kept, once more. Raises Found where it still goes wrong."""
    stream = MutantStream()
    env = FuzzedEnvironment(stream)
    try:
        for method, args, answers in conversation:
            stream.answers.clear()
            for answer in answers:
                stream.answers.append(partial(_again, [bytes.fromhex(piece) for piece in answer]))
            if method == "hello":
                env.start()
            else:
                make_call(env, method, args, conversation, None)
    except SandboxUnavailableError:
        return
    finally:
        env.close()


def _again(pieces: list[bytes], channel: int, sequence: int) -> tuple[list[bytes], int]:
    return pieces, 0
