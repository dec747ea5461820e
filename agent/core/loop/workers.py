"""The worker threads of one run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self

# Each is started when all others are at work: one for each call of a reply that is carried out at that time.
MAX_THREADS = 1000


class Workers:
    """Threads of their own for one run: what they wait for may need one of the threads that the event loop has for all.

    Nothing goes on behind a cancellation: it is in ``cancelled`` once what was under way came back. ``cancel`` is called at once.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancelled: asyncio.CancelledError | None = None
        self._cancel = cancel
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="gamebox-run")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=False)

    def note(self, error: asyncio.CancelledError) -> None:
        """Take note that the run is cancelled."""
        if self.cancelled is None:
            self.cancelled = error
            self._cancel()

    async def result(self, function: Callable[[], Any]) -> Any:
        """Return what ``function`` returns in a thread, or raise what it raises."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, copy_context().run, partial(_outcome, function))
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                self.note(error)
        value, raised = future.result()
        if raised is not None:
            raise raised
        return value

    async def results(self, awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
        """Return what ``awaitables`` return. Raises what one of them raises once all have come back."""
        tasks = [asyncio.ensure_future(each) for each in awaitables]
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError as error:
            self.note(error)
        return [task.result() for task in tasks]


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What ``function`` returned, and what it raised: a future refuses some exceptions."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - raised where the result is read
        return None, error
