"""The host's side of a kept sandbox: how its guest is called, and what makes a cut of the pipe invisible to callers."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any, Protocol

from sandbox.guest.protocol.reattach import ANSWER_BYTES, Call, answer_prefix

from .pending import Pending
from .sender import ByteSink

# What the guest's pipe and the engine may still hold for an earlier host; more than that is no answer.
MOST_BEFORE_ANSWER = 64 << 20
# A call whose bytes were mixed with those of a host that is dying is made again.
CALL_AGAIN_SECONDS = 2.0
MOST_ACKNOWLEDGED = 256


class ByteStream(ByteSink, Protocol):
    """A duplex byte stream to a guest."""

    def receive(self, timeout_seconds: float) -> bytes | None:
        """What came in; b"" at the end of the stream, None when nothing came in time. Raises OSError."""

    def close(self) -> None:
        """End the stream; a blocked ``receive`` returns. May be called more than once."""


class Keep(Protocol):
    """How a transport reaches its guest again; ``seconds`` is how long that waits without a host."""

    seconds: float
    answer_prefix: bytes

    def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[ByteStream, bytes]:
        """Another stream on which the guest has answered, and what came behind its answer. ``reason`` is why the last one ended.

        Raises SandboxUnavailableError where the guest is gone, or cannot be reached in time.
        """


class Cut(Exception):  # noqa: N818 - no error: the request is asked again
    """The pipe was cut, and will be mended or given up by the reader."""


class NoAnswerError(OSError):
    """The guest did not answer a call: it is stuck, or it has another host."""


def call_guest(stream: ByteStream, token: bytes, call: Call, deadline: float) -> bytes:
    """Call the guest until it answers, by ``deadline`` (monotonic); what came behind the answer.

    Everything before the answer was meant for an earlier host, and is dropped. Raises OSError where the stream ends,
    NoAnswerError where no answer came.
    """
    answer = answer_prefix(token) + call.nonce
    seen, total = b"", 0
    call_at = time.monotonic()
    unsent = memoryview(b"")
    while time.monotonic() < deadline and total < MOST_BEFORE_ANSWER:
        if not unsent and time.monotonic() >= call_at:
            unsent = memoryview(call.pack(token))
            call_at = time.monotonic() + CALL_AGAIN_SECONDS
        while unsent and (sent := stream.send(unsent, 0.1)):
            unsent = unsent[sent:]
        data = stream.receive(0.05 if unsent else max(0.0, min(call_at, deadline) - time.monotonic()))
        if data is None:
            continue
        if not data:
            raise ConnectionResetError("the stream ended before the sandbox answered")
        total += len(data)
        seen += data
        at = seen.find(answer)
        if at >= 0:
            return _after_last(seen[at + len(answer) :], answer)
        seen = seen[-(ANSWER_BYTES - 1) :]
    raise NoAnswerError("the sandbox did not answer the call")


def _after_last(rest: bytes, answer: bytes) -> bytes:
    """A call that was made twice may be answered twice; the guest starts anew each time."""
    at = rest.rfind(answer)
    return rest if at < 0 else rest[at + len(answer) :]


class Asks:
    """The ids of requests to a kept sandbox: with the same id it is asked again after a cut, until the answer is acknowledged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: list[str] = []
        # Of a cut that hit no request: the next one tells of it.
        self.cut_seconds = 0.0

    def next(self) -> dict[str, Any]:
        """What the next request carries."""
        return {"ask_id": secrets.token_hex(12), "acknowledged": self.acknowledged()}

    def acknowledged(self) -> list[str]:
        """The answers that have arrived and that the guest was not told of yet."""
        with self._lock:
            acknowledged, self._answered = self._answered[-MOST_ACKNOWLEDGED:], []
        return acknowledged

    def answered(
        self, fields: dict[str, Any], pending: Pending, reply: tuple[dict[str, Any], bytes]
    ) -> tuple[dict[str, Any], bytes]:
        """The reply has arrived; with the notice of a cut where there was one."""
        with self._lock:
            if "ask_id" in fields:
                self._answered.append(fields["ask_id"])
            seconds, self.cut_seconds = pending.cut_seconds + self.cut_seconds, 0.0
        if not seconds:
            return reply
        notices = reply[0].get("notices")
        told = {
            "code": "reconnected",
            "seconds": round(seconds, 1),
            "streamed": pending.streams and pending.cut_seconds > 0,
        }
        return {**reply[0], "notices": [*(notices if isinstance(notices, list) else []), told]}, reply[1]
