"""The host's end under fuzz: everything from the bytes off the pipe to the envelope a model is shown."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from sandbox.envelope import Failure, Success
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, OperationError, SandboxUnavailableError
from sandbox.guest.protocol.wire import MAX_PAYLOAD, WINDOW, Kind
from sandbox.pipe.pending_request import GRACE_SECONDS
from sandbox.pipe.watching import Watch

from .calls import call
from .conversations import Exchange, Frame, encode, pick
from .found import Counts, Found
from .mutants import IDLE_SECONDS, SURE_SECONDS, FuzzedEnvironment, MutantKeep, MutantStream, Piece
from .mutations import in_pieces, mutated_frames, on_the_wire

LATE_SECONDS = 10.0
CREDIT_STEP = WINDOW // 4
# How a request that is not answered may end.
ENDINGS = ("no_answer", "pipe_broken", "protocol_violation", "taken_over", "closed")
# What the guest credits at once, in pieces of a body.
CHUNKS_CREDITED = 2
# What a model is shown of a fault or a notice is a few sentences, whatever the guest sent.
MOST_WORDS = 12_000
EXCHANGES = 40
# The shares of conversations with a kept guest, which is called again when its pipe ends, and of exchanges that it leaves
# without any answer.
KEPT, SILENT = 0.15, 0.003


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
        stream.resets = rng.random() < 0.2
        env = FuzzedEnvironment(stream, rng if rng.random() < KEPT else None, rng.choice((120.0, 120.0, 0.1)))
        try:
            try:
                env.start()
            except SandboxUnavailableError as error:
                counts.endings[f"hello:{error.reason}"] += 1
                return None
            for _ in range(EXCHANGES):
                exchange = pick(rng, self._corpus)
                mutated = rng.random() < self._wrong
                self._load(rng, stream, exchange, mutated, told)
                sure = not mutated and (
                    whole or not env.kept
                )  # the wrong answer before may still cut a kept one's pipe
                ending = make_call(env, exchange.method, exchange.args, told, exchange.ok if sure else None)
                if ending == "lost" and whole and not mutated:
                    raise Found(f"{exchange.method}: what was really said ended the pipe", told)
                whole = whole and not mutated
                counts.calls += 1
                counts.endings[ending] += 1
                if ending == "lost":
                    return None
                if rng.random() < SILENT:
                    return leave_waiting(rng, env, stream, told) if rng.random() < 0.8 else overstay(env, stream, told)
        finally:
            env.close()
            counts.conversations += 1
            counts.frames += env.transport._reading.frames.sequence + (env.transport._lost is not None)

    def _load(
        self, rng: random.Random, stream: MutantStream, exchange: Exchange, mutated: bool, told: list[Any]
    ) -> None:
        """Make the answers to the requests of ``exchange`` ready, one of them wrong."""
        asked = max(frame.channel for frame in exchange.sent) + 1
        wrong = rng.randrange(asked) if mutated else None
        said: list[list[str | float]] = []
        told.append([exchange.method, exchange.args, said])
        stream.clear()
        for n in range(asked):
            frames = [frame for frame in exchange.received if frame.channel == n]
            streamed = any(frame.kind == Kind.DATA for frame in exchange.sent if frame.channel == n)
            for wrong_now, answers in ((n == wrong, stream.answers), (False, stream.again)):
                answers.append(partial(self._answer, rng, frames, streamed, wrong_now, said))

    def _answer(
        self, rng: random.Random, frames: list[Frame], streamed: bool, mutated: bool, said: list[list[str | float]],
        channel: int, sequence: int, nonce: bytes,
    ) -> tuple[list[Piece], int]:  # fmt: skip
        first, due = frames[0].channel, frames[-1].kind
        if mutated:
            frames = mutated_frames(rng, frames, self._corpus)
        parts = [
            (kind, (channel + c - first) & 0xFFFFFFFF, payload)
            for frame in frames
            for kind, c, payload in frame.frames()
        ]
        each = encode(parts, sequence, nonce)
        data = on_the_wire(rng, parts, sequence, nonce, 0.03 if mutated else 0.0)
        pieces: list[Piece] = []
        if (streamed or len(data) > WINDOW) and data == b"".join(each):
            pieces += _in_turns(parts, each, streamed, IDLE_SECONDS if mutated else SURE_SECONDS)
        else:
            pieces += in_pieces(rng, data)
        if data != b"".join(each) or (due, channel) not in [(kind, c) for kind, c, _ in parts]:
            pieces.append(b"")  # nothing may come that answers the request
        if mutated and rng.random() < 0.01:  # the answer to another host's call
            pieces += [MutantKeep.answer_prefix[:9], MutantKeep.answer_prefix[9:] + bytes(8), b""]
        said.append([piece.hex() if isinstance(piece, bytes) else piece for piece in pieces])
        return pieces, len(parts)


def _in_turns(
    parts: list[tuple[int, int, bytes]], encoded: list[bytes], streamed: bool, wait: float = IDLE_SECONDS
) -> Iterator[Piece]:
    """What comes in while a body is ``streamed`` there, or as the host gives credit for it."""
    room = WINDOW - CREDIT_STEP
    for (kind, _, payload), piece in zip(parts, encoded, strict=True):
        if streamed:
            yield from [wait] * (CHUNKS_CREDITED if kind == Kind.CREDIT else 1)
        elif kind == Kind.DATA and room < len(payload):
            room += CREDIT_STEP
            yield wait
        room -= len(payload)
        yield piece


def overstay(env: FuzzedEnvironment, stream: MutantStream, told: list[Any]) -> None:
    """A command that prints on and on when its deadline has passed, to a caller who takes it slowly. Raises Found."""
    told.append(["overstay", {}, []])
    stream.clear()
    stream.answers.append(_printing)
    slow = iter((0.02,))
    watch = Watch(on_bytes=lambda name, data: time.sleep(next(slow, 0.0)))
    began = time.monotonic()
    try:
        env.transport.request("run", {"command": "x"}, timeout_seconds=0.01 - GRACE_SECONDS, watch=watch)
    except SandboxUnavailableError as error:
        if error.reason in ENDINGS and time.monotonic() - began < LATE_SECONDS:
            return
    raise Found("a command past its deadline was not given up", told)


def _printing(channel: int, sequence: int, nonce: bytes) -> tuple[list[Piece], int]:
    """Twice what may come after a deadline, as the host credits it."""
    parts = [(int(Kind.DATA), channel, b"\1" * MAX_PAYLOAD)] * (4 * WINDOW // MAX_PAYLOAD)
    return list(_in_turns(parts, encode(parts, sequence, nonce), streamed=False)), len(parts)


def leave_waiting(rng: random.Random, env: FuzzedEnvironment, stream: MutantStream, told: list[Any]) -> None:
    """A request that gets no answer, or not all of it, within its deadline; what comes of it comes too late. Raises Found."""
    wait = rng.choice((0.0, 0.02))
    told.append(["wait", {"seconds": wait}, []])
    stream.clear()
    stream.answers.append(lambda channel, sequence, nonce: ([], 0))
    pipe = env.pipe
    pipe.full = rng.random() < 0.3
    try:
        env.transport.request(
            "read", {"path": "x"}, timeout_seconds=wait - GRACE_SECONDS, body=rng.choice((None, [b"x" * (5 << 20)]))
        )
    except SandboxUnavailableError as error:
        if error.reason not in ENDINGS:
            raise Found(f"silence ended with {error.reason}", told) from error
    except OperationError as error:
        if error.code is not ErrorCode.transfer_incomplete:
            raise Found(f"silence ended with {error.code}", told) from error
    else:
        raise Found("silence was an answer", told)
    finally:
        pipe.full = False


def make_call(env: SandboxedEnvironment, method: str, args: dict[str, Any], told: list[Any], expected: bool | None) -> str:
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
                stream.answers.append(
                    partial(_again, [bytes.fromhex(piece) if isinstance(piece, str) else piece for piece in answer])
                )
            if method == "hello":
                env.start()
            elif method == "overstay":
                overstay(env, stream, conversation)
            elif method == "wait":
                leave_waiting(random.Random(1), env, stream, conversation)
            else:
                make_call(env, method, args, conversation, None)
    except SandboxUnavailableError:
        return
    finally:
        env.close()


def _again(pieces: list[Piece], channel: int, sequence: int, nonce: bytes) -> tuple[list[Piece], int]:
    return pieces, 0
