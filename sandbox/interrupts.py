"""Being told to end: SIGTERM and SIGHUP end a command as Ctrl-C does, and nothing stops it from closing what it opened."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what ``signal`` wraps: its enums take 20 µs of every request
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_ENDS = (signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], Any]


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


@contextmanager
def unswallowed() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C, SIGTERM or SIGHUP raised it within: a library called there may
    have dropped it, or made another exception of it. Another Ctrl-C raises it again. Does nothing outside the main thread.
    """
    struck = False

    def noting(handler: _Handler) -> _Handler:
        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal struck
            try:
                handler(number, frame)
            except KeyboardInterrupt:
                struck = True
                raise

        return handle

    found = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDS)}
    try:
        with _handled({number: noting(handler) for number, handler in found.items() if callable(handler)}):
            yield
    except Exception as error:
        if struck:
            raise KeyboardInterrupt from error
        raise
    if struck:
        raise KeyboardInterrupt


# The signals that are usually handled by a Python function, which may raise at any point of the main thread's code.
_MAY_RAISE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class Shield:
    """Put off signals until the end of a ``with`` block, so that none of them can raise in the middle of it.

    Their handlers are called when the block ends, and may raise there. ``struck`` says that one is waiting: a block that
    waits for something should then call ``let_in`` soon. Costs nothing outside the main thread, where no handler is ever called.
    """

    __slots__ = ("_handlers", "_noted", "struck")

    def __init__(self) -> None:
        self.struck = False
        self._noted: dict[int, FrameType | None] = {}
        self._handlers: dict[int, _Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: handler for number in _MAY_RAISE if callable(handler := _signal.getsignal(number))}
            try:
                for number, handler in handlers.items():
                    self._handlers[number] = handler
                    _signal.signal(number, self._note)
            except BaseException:
                self._put_back()
                raise
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._handlers:
            return
        error: BaseException | None = None
        try:
            self._put_back()
        except BaseException as raised:  # noqa: BLE001 - by a signal that came just now; those before it are to be handled, too
            error = raised
        handlers, self._handlers = self._handlers, {}
        self._handle(handlers, error)

    def let_in(self) -> None:
        """Call the handlers of the signals that wait, now; what they raise is raised. If none raises, the block goes on.

        Signals that come meanwhile wait: what the block does on its way out is not interrupted either.
        """
        self.struck = False
        try:
            self._handle(self._handlers, None)
        finally:
            for number in list(self._handlers):
                if (chosen := _signal.getsignal(number)) != self._note:  # a handler has installed another one, or none
                    del self._handlers[number]
                    if callable(chosen):
                        self._handlers[number] = chosen
                        _signal.signal(number, self._note)

    def _handle(self, handlers: dict[int, _Handler], error: BaseException | None) -> None:
        """Call the handlers of the signals that were noted, then raise the last that one of them raised, or ``error``."""
        noted, self._noted = self._noted, {}
        for number, frame in noted.items():
            try:
                handlers[number](number, frame)
            except BaseException as raised:  # noqa: BLE001 - raised below, when every handler was called
                error = raised
        if error is not None:
            raise error

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted[number] = frame
        self.struck = True

    def _put_back(self) -> None:
        left = list(self._handlers.items())
        error: BaseException | None = None
        while left:
            try:
                while left:
                    _signal.signal(*left[-1])
                    left.pop()
            except BaseException as raised:  # noqa: BLE001 - by a handler that was put back already; the others are to be, too
                error = raised
        if error is not None:
            raise error
