"""Watching a command while it runs: its output as it comes, and a token that stops it from another thread."""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Literal

from sandbox.argument_types import check_callable, check_types
from sandbox.errors import SandboxUnavailableError
from sandbox.text.masking import Mask, MaskedStream

StreamName = Literal["stdout", "stderr"]
OnOutput = Callable[[StreamName, str], None]
_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}
_onlooker: ContextVar[OnOutput | None] = ContextVar("gamebox_onlooker", default=None)


class CancelToken:
    """Stops the commands it was given to, with all they started. May be used by any thread, for any number of commands."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may cancel what its thread is just beginning
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Stop the commands; returns at once, the call that runs each answers ``cancelled`` when nothing of it is left."""
        with self._lock:
            self._cancelled = True
            callbacks = list(self._callbacks)
        for call in callbacks:
            call()

    @contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """Within, ``cancel`` calls ``call``; at once where it was called before."""
        with self._lock:
            self._callbacks.append(call)
            cancelled = self._cancelled
        try:
            if cancelled:
                call()
            yield
        finally:
            with self._lock:
                self._callbacks.remove(call)


def _decoders() -> dict[int, codecs.IncrementalDecoder]:
    make = codecs.getincrementaldecoder("utf-8")
    return {1: make("replace"), 2: make("replace")}


@dataclass(frozen=True, slots=True)
class Watch:
    """What the caller of one ``run`` wants to be told, as text or as bytes, how it can stop it, and what the command reads."""

    on_output: OnOutput | None = None
    on_bytes: Callable[[StreamName, bytes], None] | None = None
    cancel: CancelToken | None = None
    stdin: BinaryIO | Iterable[bytes] | None = None
    _decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=_decoders, repr=False)
    _masked: dict[int, MaskedStream] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_types("Watch", cancel=(self.cancel, CancelToken | None))
        check_callable("Watch", "on_output", self.on_output)
        check_callable("Watch", "on_bytes", self.on_bytes)

    def masked(self, mask: Mask) -> Watch:
        """The same, told what ``mask`` makes of the output: what may be the beginning of a secret is told later."""
        return replace(self, _decoders=_decoders(), _masked={stream: MaskedStream(mask) for stream in _NAMES})

    @property
    def listens(self) -> bool:
        """Whether anybody wants the output."""
        return self.on_output is not None or self.on_bytes is not None

    def take(self, chunk: bytes) -> None:
        """A piece of the stream: the number of the stream, then bytes. Raises SandboxUnavailableError for nonsense."""
        stream = chunk[0]
        if stream not in _NAMES:
            raise SandboxUnavailableError("protocol_violation", f"The sandbox sent output of a stream {stream}.")
        self._show(stream, chunk[1:] if self._masked is None else self._masked[stream].feed(chunk[1:]))

    def _show(self, stream: int, data: bytes) -> None:
        if data and self.on_bytes is not None:
            self.on_bytes(_NAMES[stream], data)
        self._tell(stream, self._decoders[stream].decode(data))

    @contextmanager
    def stopping(self, call: Callable[[], None]) -> Iterator[None]:
        """Within, the token, where there is one, calls ``call``."""
        with self.cancel.calling(call) if self.cancel is not None else nullcontext():
            yield

    def finish(self) -> None:
        """There is no more: a character that was begun is told as it is."""
        for stream, masked in (self._masked or {}).items():
            self._show(stream, masked.finish())
        for stream, decoder in self._decoders.items():
            self._tell(stream, decoder.decode(b"", final=True))

    def _tell(self, stream: int, text: str) -> None:
        if text and self.on_output is not None:
            self.on_output(_NAMES[stream], text)


@contextmanager
def onlooker(on_output: OnOutput | None) -> Iterator[None]:
    """Within, call ``on_output`` with the output of every command that its caller waits for and does not watch itself.

    It lets a person look on while others, such as an agent's tools, run the commands. With None nobody looks on.
    """
    token = _onlooker.set(on_output)
    try:
        yield
    finally:
        _onlooker.reset(token)


def with_onlooker(watch: Watch | None) -> Watch | None:
    """Return ``watch`` with the ``on_output`` of ``onlooker``, unless it has a listener of its own."""
    on_output = _onlooker.get()
    if on_output is None or (watch is not None and watch.listens):
        return watch
    return replace(watch or Watch(), on_output=on_output)
