"""An asyncio loop in a thread of its own, for what goes on beside the caller."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.interrupts import Shield

CLOSE_SECONDS = 5.0


class LoopThread:
    """The loop begins with the first work. Any thread but its own may ask for work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the loop's thread, where waiting for work would never end."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Return what the coroutine returns, which the loop carries out. Raises what it raises.

        Raises SandboxError if it is late, or the loop is closed.
        """
        # Not a Future: a Ctrl-C can leave its lock taken.
        done: queue.SimpleQueue[asyncio.Task[Any]] = queue.SimpleQueue()

        def begin() -> None:
            asyncio.get_running_loop().create_task(work).add_done_callback(done.put)

        with Shield(), self._lock:
            if not self._closed:
                self._start().call_soon_threadsafe(begin)
            else:
                work.close()
                raise _closed()
        try:
            task = done.get(timeout=seconds)
        except queue.Empty:
            raise SandboxError(
                ErrorCode.capacity, f"The thread {self._name} was busy for {seconds:g} s.", "Try again.", retryable=True
            ) from None
        if task.cancelled():
            raise _closed()
        return task.result()

    def close(self) -> None:
        """Cancel what goes on, and end the thread; may be called more than once."""
        with Shield(), self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None and not self.is_current:
            self._thread.join(CLOSE_SECONDS)

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for each in tasks:
            each.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()


def _closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The sandbox is closed.", "Make a new environment.")
