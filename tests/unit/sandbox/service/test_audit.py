"""The audit: written in batches, lost by no orderly end, kept through a store that cannot be written, and bounded per tenant."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandbox.service.operators import audit as module
from sandbox.service.operators.audit import Audit
from sandbox.service.settings import Settings, read_settings
from sandbox.service.store import migrations
from sandbox.service.store.database import Database, opened
from sandbox.service.store.tables import audit as rows
from sandbox.service.store.tables.audit import AuditEntry

ENTRY = AuditEntry(at=1.0, tenant="a", key="k", address="", action="x", target="", status=200, outcome="ok", request="r")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"data": tmp_path})


def actions(connection: sqlite3.Connection) -> list[str]:
    return [each.entry.action for each in rows.page(connection, {}, None, 99)][::-1]


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
        assert count.entry.target == "2"
        database.close()
        return found

    assert asyncio.run(work()) == ["0", "1", "2", "audit.lost"]
    assert len(lost) == 2


def test_a_tenant_pushes_out_its_own_entries_only(tmp_path: Path) -> None:
    async def work() -> dict[str, Any]:
        database = Database(tmp_path / "db")
        many = [replace(ENTRY, tenant=tenant, at=at, action=f"{at:g}") for at in (1.0, 5.0, 6.0, 7.0) for tenant in ("a", "a", "b")]
        await database.call(lambda c: rows.insert(c, many))
        assert await database.call(lambda c: rows.forget(c, 2.0, 4, 4)) == 4  # the rest the next time
        assert await database.call(lambda c: rows.forget(c, 2.0, 4, 4)) == 1
        found = {}
        for tenant in ("a", "b"):
            of_tenant = partial(rows.page, wanted={"tenant": tenant}, before=None, most=9)
            found[tenant] = [each.entry.action for each in await database.call(of_tenant)]
        database.close()
        return found

    assert asyncio.run(work()) == {"a": ["7", "7", "6", "6"], "b": ["7", "6", "5"]}


def test_what_a_tenant_sees_says_nothing_of_what_others_do(tmp_path: Path) -> None:
    """Ids of all entries together would tell it how much the others did in between."""

    async def work() -> tuple[list[Any], ...]:
        database = Database(tmp_path / "db")
        for tenants in ("abb", "bbba", "ba", ""):
            await database.call(partial(rows.insert, entries=[replace(ENTRY, tenant=each) for each in tenants]))
        of_a = partial(rows.page, wanted={"tenant": "a"})
        found = await database.call(partial(of_a, before=None, most=9))
        rest = await database.call(partial(of_a, before=found[0].place, most=1))
        await database.call(lambda c: rows.forget(c, 9.0, 9, 99))
        await database.call(partial(rows.insert, entries=[replace(ENTRY, tenant="a"), replace(ENTRY, tenant="b")]))
        later = await database.call(partial(of_a, before=None, most=9))
        every = await database.call(partial(rows.page, wanted={}, before=None, most=9))
        database.close()
        return found, rest, later, every

    found, rest, later, every = asyncio.run(work())
    assert [(each.number, each.place) for each in found] == [(3, 3), (2, 2), (1, 1)]
    assert [each.number for each in rest] == [2]
    assert [each.number for each in later] == [4]  # none is used twice
    assert [(each.entry.tenant, each.number, each.place) for each in every] == [("b", 7, 11), ("a", 4, 10)]


def test_a_store_of_the_version_before_gets_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ", ".join(rows.COLUMNS)
    with monkeypatch.context() as before:
        before.setattr(migrations, "STEPS", migrations.STEPS[:8])
        old = opened(tmp_path / "db")
    for tenant in "abab":
        marks = ", ".join("?" * len(rows.COLUMNS))
        old.execute(f"INSERT INTO audit ({columns}) VALUES ({marks})", astuple(replace(ENTRY, tenant=tenant)))
    old.close()
    new = opened(tmp_path / "db")
    rows.insert(new, [replace(ENTRY, tenant="a")])
    found = [(each.entry.tenant, each.number) for each in rows.page(new, {}, None, 9)]
    assert found == [("a", 3), ("b", 2), ("a", 2), ("b", 1), ("a", 1)]
    new.close()
