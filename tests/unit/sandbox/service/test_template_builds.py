"""Builds of templates under way: started once, in one room of their tenant's quota, and with few logs afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker.builds.steps import Plan
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.admission.workers import Workers
from sandbox.service.fleet.ceilings import Ceilings
from sandbox.service.http.problems import Problem
from sandbox.service.settings import read_settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import templates as rows
from sandbox.service.store.tables.templates import MOST_LOGS, BuildRecord, TemplateRecord
from sandbox.service.templates import builds
from sandbox.service.templates.archives import Archives
from sandbox.service.templates.builds import LOG_BYTES, Builds, Order
from sandbox.service.tenants.tenants import Tenants

TENANT = "builders"
TEMPLATE = TemplateRecord(id="t", tenant=TENANT, name="t", created_at=1.0, updated_at=1.0)


def record(ident: str, **changed: Any) -> BuildRecord:
    fields = {"template": "t", "tenant": TENANT, "state": "waiting", "created_at": 1.0, "updated_at": 1.0, "cpus": 1}
    return BuildRecord(**{"id": ident, "memory_bytes": 1, **fields, **changed})


def order(ident: str) -> Order:
    return Order(record=record(ident), plan=Plan(base="base"), spec=SandboxSpec())


class Waiting:
    """A build that goes on until it is cancelled."""

    made: list[Waiting]

    def __init__(self, *_: object, limits: Any, **__: object) -> None:
        self.limits, self._ended = limits, threading.Event()
        self.made.append(self)

    def run(self) -> None:
        self._ended.wait(60)
        raise SandboxError(ErrorCode.cancelled, "It was cancelled.", "")

    def cancel(self) -> None:
        self._ended.set()


class Images:
    """Images of a tenant that take 40 bytes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def bytes_used(self) -> int:
        return 40


@asynccontextmanager
async def carried_out(folder: Path, *waiting: str, **quota: int) -> AsyncIterator[tuple[Builds, Tenants]]:
    """Yield what carries out builds of a tenant, with those that wait."""
    settings, database = read_settings({"data": folder}), Database(folder / "service.db")
    tenants = Tenants(settings, database)
    await tenants.load()
    await tenants.create(TENANT, "", {}, quota)
    workers = Workers(settings, tenants)
    await database.call(lambda connection: rows.insert(connection, TEMPLATE))
    for each in waiting:
        await database.call(lambda connection, each=each: rows.insert_build(connection, record(each)))  # type: ignore[misc]
    made = Builds(settings, database, tenants, Ceilings(tenants), workers, Archives(settings, tenants))
    try:
        yield made, tenants
    finally:
        await made.close()
        await workers.end_tasks()
        workers.close()
        database.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Waiting]:
    """The builds that run."""
    monkeypatch.setattr(Waiting, "made", [], raising=False)
    monkeypatch.setattr(builds, "Build", Waiting)
    monkeypatch.setattr(builds, "ImageStore", Images)
    return Waiting.made


def test_a_build_that_was_started_is_not_started_again(tmp_path: Path, made: list[Waiting]) -> None:
    async def work() -> None:
        async with carried_out(tmp_path, "a", template_builds=1) as (carrying, tenants):
            await carrying.start(order("a"))
            with pytest.raises(Problem) as again:
                await carrying.start(order("a"))
            assert (again.value.status, again.value.code.value) == (409, "wrong_state")
            assert (carrying.count(TENANT), tenants.ledger.used(TENANT).sandboxes) == (1, 1)
            await carrying.close()
            assert (carrying.count(TENANT), tenants.ledger.used(TENANT).sandboxes) == (0, 0)

    asyncio.run(work())


def test_builds_at_once_share_what_is_left_of_the_quota(tmp_path: Path, made: list[Waiting]) -> None:
    async def work() -> None:
        async with carried_out(tmp_path, "a", "b", template_bytes=100) as (carrying, _):
            await carrying.start(order("a"))
            await carrying.start(order("b"))
            for _ in range(6000):
                if len(made) == 2:
                    break
                await asyncio.sleep(0.01)
            first, second = (each.limits for each in made)
            assert first.log_bytes == LOG_BYTES
            assert first.room.left == 60
            assert first.room.take(50)
            assert not second.room.take(50)

    asyncio.run(work())


def test_the_logs_of_the_last_builds_are_kept(tmp_path: Path) -> None:
    async def work() -> list[bool]:
        database = Database(tmp_path / "service.db")
        await Tenants(read_settings({"data": tmp_path}), database).create(TENANT, "", {}, {})

        def build(connection: Any) -> list[bool]:
            rows.insert(connection, TEMPLATE)
            idents = [f"b{number}" for number in range(MOST_LOGS + 2)]
            for at, ident in enumerate(idents):  # the one that was asked for first may end last
                rows.insert_build(connection, record(ident, state="building", created_at=100.0 - at))
                ended = record(ident, state="ready", tags=[ident], created_at=100.0 - at, finished_at=float(at))
                assert rows.finish_build(connection, ended, "[]")
            return [bool(rows.logs_of(connection, ident)) for ident in idents]

        kept = await database.call(build)
        database.close()
        return kept

    assert asyncio.run(work()) == [False] * 2 + [True] * MOST_LOGS
