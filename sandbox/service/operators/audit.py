"""Who did what: noted as requests end, and written to the store in batches. A kill of the process loses at most the last moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from sandbox.errors import SandboxError
from sandbox.service.clock import iso, now
from sandbox.service.settings import Settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import audit as rows
from sandbox.service.store.tables.audit import AuditEntry
from sandbox.service.store.tidying import in_pieces

log = logging.getLogger(__name__)

# What a kill may lose. One transaction for all that came meanwhile.
BATCH_SECONDS = 0.25
MOST_TOGETHER = 500
# While the store cannot be written, so many wait in memory. What comes then is counted.
MOST_WAITING = 20_000
RETRY_SECONDS = 1.0
TIDY_SECONDS = 600.0
# The end of a service does not wait for a store that cannot be written.
CLOSE_ATTEMPTS = 3


class Audit:
    """Notes what was done. ``note`` is for the loop's thread; ``begin`` starts the writing, ``close`` writes what is left."""

    def __init__(self, database: Database, settings: Settings, lost: Callable[[], None] = lambda: None) -> None:
        self._database, self._settings, self._count_lost = database, settings, lost
        self._waiting: deque[AuditEntry] = deque()
        self._lost = 0
        self._failing = False
        self._closing = asyncio.Event()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Write what is noted, from now on."""
        self._task = asyncio.create_task(self._work(), name="audit")

    def note(self, entry: AuditEntry) -> None:
        """Have an entry written soon. If too many wait because the store cannot be written, it is counted and lost."""
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
            self._count_lost()
            return
        self._waiting.append(entry)
        self._news.set()

    async def close(self) -> None:
        """Write what is left; gives up if the store cannot be written."""
        self._closing.set()
        self._news.set()
        if self._task is not None:
            await self._task
        for _ in range(CLOSE_ATTEMPTS):
            while self._waiting and await self._write():
                pass
            if not self._waiting:
                return
        log.error("%d entries of the audit were lost: the store cannot be written", len(self._waiting))

    async def _work(self) -> None:
        tidied = time.monotonic()
        while not self._closing.is_set():
            await self._sleep(self._news, TIDY_SECONDS)
            await self._sleep(self._closing, BATCH_SECONDS)
            self._news.clear()
            while self._waiting and not self._closing.is_set():
                if not await self._write():
                    await self._sleep(self._closing, RETRY_SECONDS)
            if time.monotonic() - tidied > TIDY_SECONDS:
                tidied = time.monotonic()
                await self._forget_old()

    async def _write(self) -> bool:
        """Write a batch, the oldest first; return whether that was possible."""
        batch = list(islice(self._waiting, MOST_TOGETHER))
        lost = self._lost
        more = [_loss(lost)] if lost else []
        try:
            await self._database.call(lambda connection: rows.insert(connection, [*batch, *more]))
        except SandboxError as error:
            if not self._failing:
                log.warning("the audit waits: %s", error.message)
            self._failing = True
            return False
        self._failing = False
        self._lost -= lost
        for _ in batch:
            self._waiting.popleft()
        return True

    async def _forget_old(self) -> None:
        """Forget entries that are too old, or too many."""
        before, most = now() - self._settings.audit_seconds, self._settings.audit_entries
        with contextlib.suppress(SandboxError):  # the store cannot be written: the next time
            await in_pieces(self._database, lambda connection, piece: rows.forget(connection, before, most, piece))

    @staticmethod
    async def _sleep(event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass


def _loss(count: int) -> AuditEntry:
    """Return the entry that stands for so many that were lost."""
    return AuditEntry(
        at=now(), tenant="", key="", address="", action="audit.lost", target=str(count), status=0, outcome="lost", request=""
    )


def entry_data(ident: int, entry: AuditEntry) -> dict[str, Any]:
    """Return what is answered of an entry."""
    return {
        "id": ident,
        "at": iso(entry.at),
        "tenant": entry.tenant or None,
        "key_id": entry.key or None,
        "address": entry.address,
        "action": entry.action,
        "target": entry.target or None,
        "status": entry.status,
        "outcome": entry.outcome,
        "request_id": entry.request,
    }
