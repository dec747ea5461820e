"""The clock on the wall may be set, forward or back. Times to live stay what they were, and the times that are shown follow it.

The clock since boot is never set. How far both are apart is in the store: a service knows, too, of what happened before it began.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import replace

from sandbox.service import clock
from sandbox.service.store.database import Database
from sandbox.service.store.identity import note_clock
from sandbox.service.store.tables.sandboxes import OVER

from . import engine
from .live_sandbox import LiveSandbox

log = logging.getLogger(__name__)

# What a daemon for the time corrects bit by bit is less between two looks, and over a restart it hardly matters.
MOST_SECONDS = 2.0


class ClockJumps:
    """Follows the clock of one service."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset = 0.0

    async def load(self) -> None:
        """Have the times in the store follow what was done to the clock since the last service was there."""
        self._offset, boot = _offset(), engine.boot()
        await self._database.call(_following(boot, self._offset))

    def look(self, sandboxes: list[LiveSandbox]) -> None:
        """Have the times of the sandboxes follow the clock if it was set since the last look."""
        offset = _offset()
        jump = offset - self._offset
        if abs(jump) <= MOST_SECONDS:
            self._offset = offset  # it is corrected bit by bit
            return
        self._offset = offset
        for live in sandboxes:
            if not live.is_over:
                live.record = replace(live.record, ends_at=live.record.ends_at + jump)
        # At once, before anything else that is written of them: it has the new times. If it fails, the next start finds the jump.
        written = self._database.call(_following(engine.boot(), offset, jump))
        written.add_done_callback(lambda future: future.exception())
        log.warning("the clock of this host was set by %.0f s: the ends of sandboxes follow it", jump)


def _offset() -> float:
    return clock.now() - clock.since_boot()


def _following(boot: str, offset: float, seen: float | None = None) -> Callable[[sqlite3.Connection], None]:
    """Return a call that has the store follow the jump that was ``seen``, or what happened since it was noted last."""

    def follow(connection: sqlite3.Connection) -> None:
        before = note_clock(connection, boot, offset)
        since = 0.0 if before is None else offset - before
        jump = since if seen is None else seen
        if abs(jump) > MOST_SECONDS:
            places = ", ".join("?" * len(OVER))
            connection.execute(f"UPDATE sandboxes SET ends_at = ends_at + ? WHERE state NOT IN ({places})", (jump, *OVER))  # noqa: S608

    return follow
