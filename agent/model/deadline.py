"""A limit on the time that a call into a library takes: a library's own limits are on each wait for a byte, and bytes can drip."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _PastDeadline(BaseException):
    """Not an Exception: a library would take it for a fault of its own, and go on."""


@contextmanager
def deadline(seconds: float, error: Exception) -> Iterator[None]:
    """Raise ``error`` if the block takes longer than ``seconds``: at the next line of Python, as after the wait for a byte."""
    thread, lock, is_over = threading.get_ident(), threading.Lock(), False

    def strike() -> None:
        with lock:
            if not is_over:
                _raise_in(thread, _PastDeadline)

    timer = threading.Timer(seconds, strike)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                is_over = True
            for _ in range(2):  # what is on its way is raised here. To take it back would slow Python down for good
                pass
    except _PastDeadline:
        raise error from None


def _raise_in(thread: int, error: type[BaseException]) -> None:
    import ctypes  # not for everybody who imports an agent

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
