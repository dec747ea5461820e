"""Watch a command while it runs: its output as it comes, and a token that stops it from another thread."""

from __future__ import annotations

import codecs
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import field, replace
from typing import BinaryIO, Literal

from sandbox.argument_types import check_callable, check_types
from sandbox.errors import SandboxUnavailableError
from sandbox.frozen import dataclass
from sandbox.text.masking import Mask, MaskedStream

StreamName = Literal["stdout", "stderr"]
OnOutput = Callable[[StreamName, str], None]
_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}
_onlooker: ContextVar[OnOutput | None] = ContextVar("gamebox_onlooker", default=None)


class CancelToken:
    """Stops the commands that it is passed to, with everything they started. For any number of threads and commands."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel the command that its own thread is starting
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Stop the commands. Returns at once; the call that runs a command answers ``cancelled`` when all of it has ended."""
        with self._lock:
            self._cancelled = True
            callbacks = list(self._callbacks)
        for call in callbacks:
            call()

    @contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """Have ``cancel`` call ``call`` during the block, at once if it was called before."""
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
    """The caller's part in a running command: it gets the output as text or bytes, may stop it, and feeds its standard input.

    With ``room``, which is awaited with the size of each piece before it comes, a loop awaits the command without a thread:
    ``on_output`` and ``on_bytes`` are called in the loop, and do not wait.
    """

    on_output: OnOutput | None = None
    on_bytes: Callable[[StreamName, bytes], None] | None = None
    cancel: CancelToken | None = None
    stdin: BinaryIO | Iterable[bytes] | None = None
    room: Callable[[int], Awaitable[None]] | None = None
    _decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=_decoders, repr=False)
    _masked: dict[int, MaskedStream] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_types("Watch", cancel=(self.cancel, CancelToken | None))
        check_callable("Watch", "on_output", self.on_output)
        check_callable("Watch", "on_bytes", self.on_bytes)
        check_callable("Watch", "room", self.room)

    def masked(self, mask: Mask) -> Watch:
        """Return the same watch with masked output. What may be the beginning of a secret comes later."""
        return replace(self, _decoders=_decoders(), _masked={stream: MaskedStream(mask) for stream in _NAMES})

    @property
    def listens(self) -> bool:
        """Whether the caller wants the output."""
        return self.on_output is not None or self.on_bytes is not None

    def take(self, chunk: bytes | memoryview) -> None:
        """Take a piece of output: the number of its stream, then bytes. Raises SandboxUnavailableError for an unknown stream."""
        stream = chunk[0]
        if stream not in _NAMES:
            raise SandboxUnavailableError("protocol_violation", f"The sandbox sent output of a stream {stream}.")
        data = bytes(chunk[1:])
        self._pass_bytes(stream, data if self._masked is None else self._masked[stream].feed(data))

    async def take_awaited(self, chunk: bytes | memoryview) -> None:
        """Do what ``take`` does when there is room for the piece."""
        if self.room is not None:
            await self.room(len(chunk) - 1)
        self.take(chunk)

    def _pass_bytes(self, stream: int, data: bytes) -> None:
        if data and self.on_bytes is not None:
            self.on_bytes(_NAMES[stream], data)
        self._pass_text(stream, self._decoders[stream].decode(data))

    @contextmanager
    def stopping(self, call: Callable[[], None]) -> Iterator[None]:
        """Have the token, if there is one, call ``call`` during the block."""
        with self.cancel.calling(call) if self.cancel is not None else nullcontext():
            yield

    def finish(self) -> None:
        """End the output: pass on what was held back, such as an incomplete character."""
        for stream, masked in (self._masked or {}).items():
            self._pass_bytes(stream, masked.finish())
        for stream, decoder in self._decoders.items():
            self._pass_text(stream, decoder.decode(b"", final=True))

    def _pass_text(self, stream: int, text: str) -> None:
        if text and self.on_output is not None:
            self.on_output(_NAMES[stream], text)


@contextmanager
def onlooker(on_output: OnOutput | None) -> Iterator[None]:
    """Call ``on_output`` during the block with the output of every command whose caller waits for it without watching.

    It lets a person look on while others, such as an agent's tools, run commands. None ends that for an inner block.
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
