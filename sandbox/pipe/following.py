"""The output of commands as it comes, as iterators.

``Following`` reads the output of any command, from any offset, any number of times; ``CommandOutput`` runs a command and yields
what it prints.
"""

from __future__ import annotations

import codecs
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from sandbox.envelope import Envelope
from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass

from .watching import CancelToken, StreamName

if TYPE_CHECKING:
    from sandbox.operations import LogsResult, RunResult

# One request waits this long for output; then it is asked again.
WAIT_SECONDS = 30.0
# A paused sandbox is asked again after this time.
PAUSED_SECONDS = 0.2
# Pieces of output that may wait for the caller before the command has to.
PIECES_AHEAD = 16
LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of what a command printed. ``stream`` is None if both streams come together, in the order of arrival.

    ``next_offset`` is the offset of the byte after it, to go on from later; None if bytes are not counted.
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
        """Return the output from ``offset`` on, as soon as there is some."""


def is_paused(answer: Envelope[LogsResult]) -> bool:
    """Return whether a paused sandbox answered. Its commands go on afterwards, so followers wait."""
    return not answer.ok and answer.code is ErrorCode.sandbox_paused


def all_printed(answer: LogsResult) -> bool:
    """Return whether the command has ended and ``answer`` has the last of its output."""
    return not answer.running and answer.next_offset >= answer.total_bytes


def follow_logs(ask: AskLogs, ident: str, offset: int = 0, cancel: CancelToken | None = None) -> Iterator[LogsResult]:
    """Yield the answers of ``ask`` until the command has ended; wait while the sandbox is paused. Raises SandboxError."""
    while True:
        answer = ask(ident, offset=offset, follow=True, wait_seconds=WAIT_SECONDS, cancel=cancel)
        if is_paused(answer):
            time.sleep(PAUSED_SECONDS)
            continue
        logs = answer.unwrap()
        offset = max(offset, logs.next_offset)
        yield logs
        if all_printed(logs):
            return


class Tail:
    """Joins the answers of ``logs`` so that a character that is split between two of them stays whole."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.ended: LogsResult | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, answer: LogsResult) -> OutputChunk | None:
        """Return the next piece, or None if there is no text. Sets ``ended`` with the last one."""
        self.offset = max(self.offset, answer.next_offset)
        over = all_printed(answer)
        self.ended = answer if over else None
        text = self._decoder.decode(answer.content_bytes, final=over)
        return OutputChunk(None, text, self.offset) if text else None


class Following:
    """Iterates over the output of a command until it ends; ``ended`` is then its last state, without output.

    Does not follow processes that the command leaves running, and waits while the sandbox is paused. Iterating raises SandboxError.
    """

    def __init__(self, ask: AskLogs, ident: str, offset: int, cancel: CancelToken | None) -> None:
        self._ask, self._id, self._cancel = ask, ident, cancel
        self._tail = Tail(offset)

    @property
    def ended(self) -> LogsResult | None:
        """How the command ended; None until it has ended and all of its output was taken."""
        return self._tail.ended

    def __iter__(self) -> Iterator[OutputChunk]:
        if self._tail.ended is not None:
            return
        for answer in follow_logs(self._ask, self._id, self._tail.offset, self._cancel):
            chunk = self._tail.take(answer)
            if chunk is not None:
                yield chunk


class CommandOutput:
    """The output of one command: iterate over it once. ``envelope`` is the answer of ``run`` after the iteration.

    The command runs in a thread. After a ``break``, ``close`` or the end of a ``with`` block stops the command.
    """

    def __init__(self, run: Callable[..., Envelope[RunResult]], command: str | None, options: dict[str, Any]) -> None:
        self.envelope: Envelope[RunResult] | None = None
        self._token: CancelToken = options.get("cancel") or CancelToken()
        self._chunks: queue.Queue[OutputChunk] = queue.Queue(PIECES_AHEAD)
        self._error: BaseException | None = None
        self._closed = False
        call = {**options, "cancel": self._token, "on_output": self._take}
        self._thread = threading.Thread(
            target=self._work, args=(run, command, call), name="gamebox-stream", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[OutputChunk]:
        try:
            while self._thread.is_alive() or not self._chunks.empty():
                with suppress(queue.Empty):
                    yield self._chunks.get(timeout=LOOK_AGAIN_SECONDS)
        finally:  # also after a break
            self.close()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the command if it still runs, and wait until all of its processes have ended."""
        self._closed = True
        if self._thread.is_alive():
            self._token.cancel()
            self._thread.join()

    def _work(self, run: Callable[..., Envelope[RunResult]], command: str | None, call: dict[str, Any]) -> None:
        try:
            self.envelope = run(command, **call)
        except BaseException as error:  # noqa: BLE001  # raised by the iteration
            self._error = error

    def _take(self, stream: StreamName, text: str) -> None:
        while not self._closed and not self._token.cancelled:
            with suppress(queue.Full):
                self._chunks.put(OutputChunk(stream, text), timeout=LOOK_AGAIN_SECONDS)
                return
