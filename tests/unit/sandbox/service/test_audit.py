"""The audit: written in batches, lost by no orderly end, kept through a store that cannot be written, and bounded per tenant."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandbox.service.operators import audit as module
from sandbox.service.operators.audit import Audit
from sandbox.service.settings import Settings, read_settings
from sandbox.service.store import audit as rows
from sandbox.service.store.audit import AuditEntry
from sandbox.service.store.database import Database

ENTRY = AuditEntry(at=1.0, tenant="a", key="k", address="", action="x", target="", status=200, outcome="ok", request="r")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"data": tmp_path})


def actions(connection: sqlite3.Connection) -> list[str]:
    return [entry.action for _, entry in rows.page(connection, {}, None, 99)][::-1]


def test_what_was_noted_is_written_when_the_service_ends(tmp_path: Path, settings: Settings) -> None:
    async def work() -> list[str]:
        database = Database(tmp_path / "db")
        audit = Audit(database, settings)
        audit.begin()
        for n in range(3):
            audit.note(replace(ENTRY, action=str(n)))
        await audit.close()
        found = await database.call(actions)
        database.close()
        return found

    assert asyncio.run(work()) == ["0", "1", "2"]


def test_entries_wait_for_the_store_and_those_that_are_too_many_are_counted(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr("sandbox.service.store.database.BUSY_SECONDS", 0.02)
    lost: list[None] = []

    async def work() -> list[str]:
        database = Database(tmp_path / "db")
        audit = Audit(database, settings, lambda: lost.append(None))
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        audit.begin()
        for n in range(5):
            audit.note(replace(ENTRY, action=str(n)))
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        other.close()
        await audit.close()
        found = await database.call(actions)
        (count,) = await database.call(lambda c: rows.page(c, {"action": "audit.lost"}, None, 9))
        assert count[1].target == "2"
        database.close()
        return found

    assert asyncio.run(work()) == ["0", "1", "2", "audit.lost"]
    assert len(lost) == 2


def test_a_tenant_pushes_out_its_own_entries_only(tmp_path: Path) -> None:
    async def work() -> dict[str, Any]:
        database = Database(tmp_path / "db")
        many = [replace(ENTRY, tenant=tenant, at=at, action=f"{at:g}") for at in (1.0, 5.0, 6.0, 7.0) for tenant in ("a", "a", "b")]
        await database.call(lambda c: rows.insert(c, many))
        await database.call(lambda c: rows.forget(c, 2.0, 4))
        found = {}
        for tenant in ("a", "b"):
            of_tenant = partial(rows.page, wanted={"tenant": tenant}, before=None, most=9)
            found[tenant] = [entry.action for _, entry in await database.call(of_tenant)]
        database.close()
        return found

    assert asyncio.run(work()) == {"a": ["7", "7", "6", "6"], "b": ["7", "6", "5"]}
