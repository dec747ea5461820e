"""The output of a command as it comes, for callers that only watch: any number of them, at any time, from any offset."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sandbox.envelope import Envelope
from sandbox.errors import ErrorCode
from sandbox.operations import LogsResult

from .watching import CancelToken, StreamName

# How long one question waits for output; then it is asked again.
WAIT_SECONDS = 30.0
# How long to wait before it is asked again of a sandbox that is paused.
PAUSED_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of what a command printed. ``stream`` is None where both are told together, in the order of arrival.

    ``next_offset`` is the byte of the output behind it, to go on from later; None where it is not counted.
    """

    stream: StreamName | None
    text: str
    next_offset: int | None = None


class AskLogs(Protocol):
    """``OperationMethods.logs``."""

    def __call__(
        self,
        id: str,  # noqa: A002
        *,
        offset: int,
        follow: bool,
        wait_seconds: float,
        cancel: CancelToken | None,
    ) -> Envelope[LogsResult]:
        """The output from ``offset`` on, as soon as there is some."""


def rests(answer: Envelope[LogsResult]) -> bool:
    """Whether it is the answer of a paused sandbox: its commands go on afterwards, so nobody who follows them gives up."""
    return not answer.ok and answer.code is ErrorCode.sandbox_paused


class Tail:
    """Puts the answers of ``logs`` together: characters stay whole where an answer splits them."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.ended: LogsResult | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, answer: LogsResult) -> OutputChunk | None:
        """The next piece, or None where there is none; ``ended`` is set when it was the last."""
        self.offset = max(self.offset, answer.next_offset)
        over = not answer.running and answer.next_offset >= answer.total_bytes
        self.ended = answer if over else None
        text = self._decoder.decode(answer.content_bytes, final=over)
        return OutputChunk(None, text, self.offset) if text else None


class Following:
    """Iterates over the output of a command until it has ended; ``ended`` is its last state then, without output.

    What the command leaves running is not followed; a pause is waited through. Raises SandboxError while it iterates.
    """

    def __init__(self, ask: AskLogs, ident: str, offset: int, cancel: CancelToken | None) -> None:
        self._ask, self._id, self._cancel = ask, ident, cancel
        self._tail = Tail(offset)

    @property
    def ended(self) -> LogsResult | None:
        """How the command ended; None as long as it has not, or not all of its output was taken."""
        return self._tail.ended

    def __iter__(self) -> Iterator[OutputChunk]:
        while self._tail.ended is None:
            answer = self._ask(
                self._id, offset=self._tail.offset, follow=True, wait_seconds=WAIT_SECONDS, cancel=self._cancel
            )
            if rests(answer):
                time.sleep(PAUSED_SECONDS)
                continue
            chunk = self._tail.take(answer.unwrap())
            if chunk is not None:
                yield chunk
