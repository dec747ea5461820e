"""Being told to end: SIGTERM and SIGHUP end a command as Ctrl-C does, and nothing stops it from closing what it opened."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in the block, so that what must be closed is closed.

    One that is ignored stays so (as with nohup). Does nothing outside the main thread, which alone may ask for signals.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled({number: interrupt for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP have no effect on the block."""
    with _handled(dict.fromkeys((signal.SIGINT, *_ENDS), signal.SIG_IGN)):
        yield


@contextmanager
def _handled(handlers: dict[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    before: dict[signal.Signals, signal._HANDLER] = {}
    try:
        for number, handler in handlers.items():
            before[number] = signal.signal(number, handler)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
