"""While a service runs, the ends of its sandboxes follow the clock on the wall when that is set, and not when it is corrected."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.service.fleet import engine
from sandbox.service.fleet.clock_jumps import ClockJumps
from sandbox.service.store.database import Database
from sandbox.service.store.identity import note_clock
from sandbox.service.store.tables import sandboxes

from .test_database import RECORD, add_tenant


def test_ends_follow_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = 1000.0
    monkeypatch.setattr("sandbox.service.clock.now", lambda: wall)
    monkeypatch.setattr("sandbox.service.clock.since_boot", lambda: 500.0)

    def add(connection: sqlite3.Connection) -> None:
        add_tenant(connection)
        sandboxes.insert(connection, RECORD)

    async def work() -> None:
        nonlocal wall
        database = Database(tmp_path / "db")
        await database.call(add)
        live: Any = SimpleNamespace(record=RECORD, is_over=False)
        over: Any = SimpleNamespace(record=RECORD, is_over=True)
        jumps = ClockJumps(database)
        await jumps.load()
        for at, end in ((1000.5, 0.0), (1001.0, 0.0), (4601.0, 3600.0), (601.0, -400.0)):
            wall = at
            jumps.look([live, over])
            assert live.record.ends_at == RECORD.ends_at + end
        (stored,) = await database.call(sandboxes.every)
        assert stored.ends_at == live.record.ends_at
        assert over.record.ends_at == RECORD.ends_at
        boot = engine.boot()
        assert await database.call(lambda c: note_clock(c, boot, 0.0)) == 601.0 - 500.0
        assert await database.call(lambda c: note_clock(c, "another", 0.0)) is None
        database.close()

    asyncio.run(work())
