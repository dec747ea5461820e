"""The end of the program: SIGTERM and SIGHUP act like Ctrl-C, and clean-up is not interrupted and has a bounded time."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what ``signal`` wraps: its enums take 20 µs of every request
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_ENDS = (signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], Any]
# How long the end of the interpreter waits for sandboxes, whatever they are waited for.
EXIT_SECONDS = 10.0
_exit_until: float | None = None


def interpreter_ends() -> bool:
    """Return whether the program is over, and functions registered with atexit run. From Python 3.12 on, no thread starts then."""
    return not threading.main_thread().is_alive()


def exit_seconds_left() -> float:
    """Return how much longer the end of the interpreter may wait. Call it only then: the first call begins the time."""
    global _exit_until
    if _exit_until is None:
        _exit_until = time.monotonic() + EXIT_SECONDS
    return max(0.0, _exit_until - time.monotonic())


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt in the block, so that its clean-up runs.

    An ignored signal stays ignored (as with nohup). Does nothing outside the main thread, the only one that may set handlers.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled({number: interrupt for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN}):
        yield


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP during the block."""
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
def reraise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C, SIGTERM or SIGHUP raised it within.

    A library that is called in the block may have swallowed it, or turned it into another exception. Does nothing outside the main
    thread.
    """
    struck = False

    def recording(handler: _Handler) -> _Handler:
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
        with _handled({number: recording(handler) for number, handler in found.items() if callable(handler)}):
            yield
    except Exception as error:
        if struck:
            raise KeyboardInterrupt from error
        raise
    if struck:
        raise KeyboardInterrupt


# Signals that usually have a Python handler, which may raise at any point of the main thread's code.
_MAY_RAISE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class Shield:
    """Postpone signals until the end of a ``with`` block, so that none of them can raise in the middle of it.

    Their handlers are called when the block ends, and may raise there. ``struck`` says that a signal is waiting: a block that
    waits for something should then call ``deliver`` soon. Costs nothing outside the main thread, where handlers are never called.
    """

    __slots__ = ("_handlers", "_recorded", "struck")

    def __init__(self) -> None:
        self.struck = False
        self._recorded: dict[int, FrameType | None] = {}
        self._handlers: dict[int, _Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _MAY_RAISE:
                    if callable(handler := _signal.getsignal(number)):
                        self._handlers[number] = handler
                        _signal.signal(number, self._record)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._handlers:
            return
        error: BaseException | None = None
        try:
            self._restore()
        except BaseException as raised:  # noqa: BLE001 - by a signal that came just now; the earlier ones must be handled, too
            error = raised
        handlers, self._handlers = self._handlers, {}
        self._handle(handlers, error)

    def deliver(self) -> None:
        """Call the handlers of the waiting signals now; what they raise is raised. If none raises, the block goes on.

        Signals that come meanwhile wait, so that the block's way out is not interrupted either.
        """
        self.struck = False
        try:
            self._handle(self._handlers, None)
        finally:
            for number in list(self._handlers):
                if (chosen := _signal.getsignal(number)) != self._record:  # a handler has replaced itself
                    del self._handlers[number]
                    if callable(chosen):
                        self._handlers[number] = chosen
                        _signal.signal(number, self._record)

    def _handle(self, handlers: dict[int, _Handler], error: BaseException | None) -> None:
        """Call the handlers of the recorded signals, then raise the last exception of theirs, or ``error``."""
        noted, self._recorded = self._recorded, {}
        for number, frame in noted.items():
            try:
                handlers[number](number, frame)
            except BaseException as raised:  # noqa: BLE001 - raised below, after every handler was called
                error = raised
        if error is not None:
            raise error

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._recorded[number] = frame
        self.struck = True

    def _restore(self) -> None:
        left = list(self._handlers.items())
        error: BaseException | None = None
        while left:
            try:
                while left:
                    _signal.signal(*left[-1])
                    left.pop()
            except BaseException as raised:  # noqa: BLE001 - by a handler that was restored already; the others must be, too
                error = raised
        if error is not None:
            raise error
