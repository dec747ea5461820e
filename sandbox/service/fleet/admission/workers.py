"""Tasks that nobody waits for, and threads for what blocks, in which tenants take turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from sandbox.errors import SandboxError
from sandbox.service.http.problems import Problem
from sandbox.service.settings import Settings
from sandbox.service.tenants.tenants import Tenants

from .turns import NOBODY, Turns

T = TypeVar("T")
log = logging.getLogger(__name__)

# Uploads and downloads at once: each holds about 1 MiB for as long as its client takes, and no thread.
MOST_TRANSFERS = 512
# Threads that wait for what a sandbox says of itself, which may take as long as it likes: not all that the service has.
MOST_ASKING = 32


class Workers:
    """The tasks and threads of the fleet.

    ``calls`` are turns at the engine, ``moving`` at uploads and downloads, ``asking`` at descriptions.
    """

    def __init__(self, settings: Settings, tenants: Tenants) -> None:
        self.calls, self.moving = Turns(settings.engine_calls), Turns(MOST_TRANSFERS, leaves_room=True)
        self.asking = Turns(MOST_ASKING, leaves_room=True)
        # Attaching to what waits does not hold up what is asked for now.
        self.background = asyncio.Semaphore(max(1, settings.engine_calls // 2))
        self._creating = Turns(settings.engine_calls, seconds=settings.create_wait_seconds)
        self._tenants = tenants
        self._engine = ThreadPoolExecutor(settings.engine_calls, thread_name_prefix="gamebox-engine")
        self._tasks: set[asyncio.Task[Any]] = set()

    def creation(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Wait for a turn at creating sandboxes. Raises Problem if too many of the tenant wait already, or after some time."""
        return self._creating.turn(tenant, self._tenants.find(tenant).quota.creations_waiting)

    async def in_engine(self, call: Callable[[], T], tenant: str = NOBODY) -> T:
        """Call in a thread of those that speak with the engine: so many at once, the others wait for their turn."""
        async with self.calls.turn(tenant):
            return await asyncio.get_running_loop().run_in_executor(self._engine, call)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Carry out work that nobody waits for; it ends with the service."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def end_tasks(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """End the threads; what waits for one is not carried out."""
        self._engine.shutdown(wait=False, cancel_futures=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SandboxError | Problem):
            log.error("a task of the service failed", exc_info=error)
