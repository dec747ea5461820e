"""A limit on the time that a call into a library takes: a library's own limits are on each wait for a byte, and bytes can drip."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_AGAIN_SECONDS = 0.5


class _PastDeadline(BaseException):
    """Not an Exception: a library would take it for a fault of its own, and go on."""


def within(seconds: float, error: Exception, function: Callable[[], T]) -> T:
    """Return what ``function`` returns, or raise ``error`` at the next line of Python once it has taken ``seconds``.

    An exception that is sent to a thread is lost where it arrives in a finalizer or in another callback of the interpreter, so
    it is sent every half second until the call has ended.
    """
    thread, lock, is_over = threading.get_ident(), threading.Lock(), False
    ended = threading.Lock()  # held while the call runs. An Event is Python: an exception inside could leave its lock taken
    ended.acquire()

    def watch() -> None:
        pause = seconds
        while not ended.acquire(timeout=min(pause, threading.TIMEOUT_MAX)):
            with lock:
                if is_over:
                    return
                _raise_in(thread, _PastDeadline)
            pause = _AGAIN_SECONDS

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        try:
            return function()
        finally:
            while not is_over:
                try:
                    with lock:
                        is_over = True
                except _PastDeadline:  # the call has ended all the same
                    continue
            try:
                for _ in range(2):  # what is on its way is raised here. To take it back would slow Python down for good
                    pass
            except _PastDeadline:
                pass
            ended.release()
    except _PastDeadline:
        raise error from None


def _raise_in(thread: int, error: type[BaseException]) -> None:
    import ctypes  # not for everybody who imports an agent

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
