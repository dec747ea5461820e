"""The output of one command as it comes, as an iterator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from sandbox.envelope import Envelope

from .following import OutputChunk
from .watching import CancelToken, StreamName

if TYPE_CHECKING:
    from sandbox import operations as op

# Pieces of output that may wait for the caller before the command has to.
PIECES_AHEAD = 16
LOOK_AGAIN_SECONDS = 0.1


class CommandOutput:
    """The output of one command: iterate it once. ``envelope`` is the answer of ``run`` when the iteration has ended.

    The command runs in a thread. Where the loop is left early, ``close`` or the end of a ``with`` block stops the command.
    """

    def __init__(self, run: Callable[..., Envelope[op.RunResult]], command: str | None, options: dict[str, Any]) -> None:
        self.envelope: Envelope[op.RunResult] | None = None
        self._token: CancelToken = options.get("cancel") or CancelToken()
        self._chunks: queue.Queue[OutputChunk] = queue.Queue(PIECES_AHEAD)
        self._error: BaseException | None = None
        self._closed = False
        call = {**options, "cancel": self._token, "on_output": self._take}
        self._thread = threading.Thread(target=self._work, args=(run, command, call), name="gamebox-stream", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[OutputChunk]:
        try:
            while self._thread.is_alive() or not self._chunks.empty():
                with suppress(queue.Empty):
                    yield self._chunks.get(timeout=LOOK_AGAIN_SECONDS)
        finally:  # also where the loop is left early
            self.close()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the command if it still runs, and wait until nothing of it is left."""
        self._closed = True
        if self._thread.is_alive():
            self._token.cancel()
            self._thread.join()

    def _work(self, run: Callable[..., Envelope[op.RunResult]], command: str | None, call: dict[str, Any]) -> None:
        try:
            self.envelope = run(command, **call)
        except BaseException as error:  # noqa: BLE001  # raised where it is iterated
            self._error = error

    def _take(self, stream: StreamName, text: str) -> None:
        while not self._closed and not self._token.cancelled:
            with suppress(queue.Full):
                self._chunks.put(OutputChunk(stream, text), timeout=LOOK_AGAIN_SECONDS)
                return
