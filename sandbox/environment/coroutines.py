"""Run the coroutine functions of tools for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from .host_actions import CallStoppedError, stop_with

_CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("callers_loop", default=None)
_LOCK = threading.Lock()
_own: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
_CLOSE_SECONDS = 1.0


@contextlib.contextmanager
def awaiting_on(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Await the coroutines of tools on ``loop`` while this context, or a copy of it in another thread, is active.

    It is for asynchronous drivers, which call an environment in a worker thread: a tool then shares its clients and
    connections with the program that runs the agent.
    """
    token = _CALLERS_LOOP.set(loop)
    try:
        yield
    finally:
        _CALLERS_LOOP.reset(token)


def run_awaitable(awaitable: Awaitable[Any]) -> Any:
    """Await ``awaitable`` on an event loop in another thread and return its result, or raise what it raises.

    The loop is that of ``awaiting_on``, otherwise one that all tools of this process share, so that an HTTP client that a
    tool keeps between two calls stays usable. The call is cancelled when its deadline passes or the waiting thread is
    interrupted.
    """
    loop = _CALLERS_LOOP.get()
    if loop is None or loop is _running_loop():  # waiting here for a loop of this thread would never end
        loop = _own_loop()
    if loop is _running_loop():
        raise RuntimeError(
            "A coroutine function of a tool ran another one without await: call the function, and await it."
        )
    outcome: Future[Any] = Future()
    tasks: list[asyncio.Task[None]] = []

    def stop() -> None:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

    loop.call_soon_threadsafe(lambda: tasks.append(_begin(loop, awaitable, outcome)))
    stop_with(stop)
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():  # Ctrl-C in the waiting thread
            stop()
        raise


def _begin(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any], outcome: Future[Any]) -> asyncio.Task[None]:
    """Return the task that awaits ``awaitable`` and sets ``outcome``, whatever becomes of it."""

    async def work() -> None:
        try:
            outcome.set_result(await awaitable)
        except asyncio.CancelledError:
            outcome.set_exception(CallStoppedError("The call was cancelled."))
        except BaseException as error:  # noqa: BLE001  handed over to the waiting thread
            outcome.set_exception(error)

    def ended(_: asyncio.Task[None]) -> None:
        if not outcome.done():  # cancelled before its first step
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            outcome.set_exception(CallStoppedError("The call was cancelled."))

    task = loop.create_task(work())
    task.add_done_callback(ended)
    return task


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _own_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process's tools; the first call, and the first one after a fork, starts it."""
    global _own
    with _LOCK:
        if _own is None or not _own[1].is_alive():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="gamebox-coroutines", daemon=True)
            thread.start()
            _own = loop, thread
        return _own[0]


@atexit.register
def _close_own_loop() -> None:
    if _own is not None and _own[1].is_alive():
        loop, thread = _own
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_SECONDS)
        if not thread.is_alive():
            loop.close()
