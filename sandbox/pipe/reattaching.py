"""Reach the guest of a kept sandbox again, so that callers do not notice a cut of the pipe."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any, Protocol

from sandbox.guest.protocol.reattach import ANSWER_BYTES, Call, answer_prefix

from .sender import ByteSink

# What the guest's pipe and the engine may still hold for an earlier host. After more than that, no answer is coming.
MOST_BEFORE_ANSWER = 64 << 20
# A call is repeated: its bytes may have been mixed with those of a host that is dying.
CALL_AGAIN_SECONDS = 2.0
MOST_ACKNOWLEDGED = 256


class ByteStream(ByteSink, Protocol):
    """A duplex byte stream to a guest."""

    def receive(self, timeout_seconds: float) -> bytes | None:
        """Return what came in: b"" at the end of the stream, None if nothing came in time. Raises OSError."""

    def close(self) -> None:
        """End the stream, which makes a blocked ``receive`` return. May be called more than once."""


class WatchedStream(ByteStream, Protocol):
    """A ByteStream whose descriptors can be watched, so that it needs no thread."""

    @property
    def buffered(self) -> int:
        """How many bytes can be read though the descriptors do not report them. Reading no more than these adds none."""

    def descriptors(self) -> tuple[int, ...]:
        """Return what to watch; bytes come on the first."""

    def ready(self, timeout_seconds: float) -> bool:
        """Wait until there is something to read, or the end. One thread at a time."""

    def receive_into(self, view: memoryview) -> int | None:
        """Read what is there now: the number of bytes, 0 at the end, None if nothing is there. Raises OSError."""

    def finish(self) -> None:
        """Take what may come after the end, such as the last of stderr. May wait for a moment."""


class Keep(Protocol):
    """How a transport reaches its guest again; ``seconds`` is how long the guest waits without a host."""

    seconds: float
    answer_prefix: bytes

    def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[ByteStream, bytes]:
        """Return another stream on which the guest has answered, and the bytes after its answer.

        ``reason`` and ``detail`` say why the last stream ended. Raises SandboxUnavailableError if the guest is gone, or cannot be
        reached in time.
        """


class NoAnswerError(OSError):
    """The guest did not answer a call: it is stuck, or it has another host."""


def call_guest(stream: ByteStream, token: bytes, call: Call, deadline: float) -> bytes:
    """Call the guest until it answers, at most until ``deadline`` (monotonic); return the bytes after its answer.

    Drops everything before the answer, which was meant for an earlier host. Raises OSError if the stream ends, NoAnswerError if
    no answer came.
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
    """Return what follows the last answer: a call that was repeated may be answered twice, and the guest starts anew each time."""
    at = rest.rfind(answer)
    return rest if at < 0 else rest[at + len(answer) :]


class AskIds:
    """The ids of requests to a kept sandbox, which recognises a request that is sent again until its answer is acknowledged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: list[str] = []
        # Of a cut that hit no request: the next reply has the notice.
        self.cut_seconds = 0.0

    def next_fields(self) -> dict[str, Any]:
        """Return the fields that the next request carries."""
        return {"ask_id": secrets.token_hex(12), "acknowledged": self.take_acknowledged()}

    def take_acknowledged(self) -> list[str]:
        """Take the ids of the answers that have arrived and were not acknowledged yet."""
        with self._lock:
            acknowledged, self._answered = self._answered[-MOST_ACKNOWLEDGED:], []
        return acknowledged

    def accept_reply(
        self, ask_id: str | None, reply: tuple[dict[str, Any], bytes], cut_seconds: float, streams: bool
    ) -> tuple[dict[str, Any], bytes]:
        """Return a reply that has arrived, with the notice of a cut if there was one.

        ``cut_seconds`` is how long its request was cut off, ``streams`` whether the request streamed a command's output.
        """
        with self._lock:
            if ask_id is not None:
                self._answered.append(ask_id)
            seconds, self.cut_seconds = cut_seconds + self.cut_seconds, 0.0
        if not seconds:
            return reply
        notices = reply[0].get("notices")
        notice = {"code": "reconnected", "seconds": round(seconds, 1), "streamed": streams and cut_seconds > 0}
        return {**reply[0], "notices": [*(notices if isinstance(notices, list) else []), notice]}, reply[1]
