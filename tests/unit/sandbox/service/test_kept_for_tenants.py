"""What the service keeps for tenants: archives of builds, snapshots and volumes; uploads at once, names, counts that take long."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker.container.disks import volumes as engine
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.admission.workers import Workers
from sandbox.service.http.problems import Problem
from sandbox.service.settings import Settings, read_settings
from sandbox.service.snapshots.snapshots import Snapshots
from sandbox.service.store.database import Database
from sandbox.service.store.tables.snapshots import SnapshotRecord
from sandbox.service.store.tables.volumes import VolumeRecord
from sandbox.service.templates import archives as module
from sandbox.service.templates.archives import Archives
from sandbox.service.tenants.tenants import Tenants
from sandbox.service.volumes.volumes import Volumes

Place = tuple[Settings, Database, Tenants, Workers]


def in_service(folder: Path, work: Callable[[Place], Awaitable[None]]) -> None:
    """Await ``work`` with what a service has, and two tenants: ``mine``, whose quotas are small, and ``other``."""

    async def main() -> None:
        settings = read_settings({"data": folder})
        database = Database(folder / "service.db")
        tenants = Tenants(settings, database)
        await tenants.load()
        await tenants.create("mine", "", {}, {"template_upload_bytes": 10_000, "volume_bytes": 10})
        await tenants.create("other", "", {}, {})
        workers = Workers(settings, tenants)
        try:
            await work((settings, database, tenants, workers))
        finally:
            await workers.end_tasks()
            workers.close()
            database.close()

    asyncio.run(main())


def digest(number: int) -> str:
    return f"{number:064x}"


async def body(size: int, *, goes_on: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    yield bytes(size)
    if goes_on is not None:
        await goes_on.wait()


def test_uploads_together_take_no_more_than_the_quota(tmp_path: Path) -> None:
    async def work(place: Place) -> None:
        archives, goes_on = Archives(place[0], place[2]), asyncio.Event()
        begun = [archives.receive("mine", digest(each), body(6000, goes_on=goes_on), None) for each in range(4)]
        ends = asyncio.as_completed(begun)
        for refused in itertools.islice(ends, 3):
            with pytest.raises(Problem, match="would take"):
                await refused
        goes_on.set()
        await next(ends)

    in_service(tmp_path, work)
    kept = [path for path in (tmp_path / "uploads").rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in kept] == [6000], "nothing is left of the others"


def test_small_archives_count_as_files_and_again_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(place: Place) -> None:
        archives = Archives(place[0], place[2])
        for each in (0, 0, 1):  # what is replaced counts once
            await archives.receive("mine", digest(each), body(1), None)
        for again in (archives, archives, Archives(place[0], place[2])):
            with pytest.raises(Problem, match="would take"):
                await again.receive("mine", digest(2), body(1), None)
            again.prune("mine")
        monkeypatch.setattr(module, "MOST_OF_TENANT", 2)
        await archives.receive("other", digest(0), body(1), None)
        await archives.receive("other", digest(1), body(1), None)
        with pytest.raises(Problem, match="already 2 archives"):
            await archives.receive("other", digest(2), body(1), None)
        await archives.receive("other", digest(1), body(2), None)

    in_service(tmp_path, work)


def test_nobody_waits_or_fails_while_volumes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, counted, answers = threading.Event(), threading.Event(), [{"b": 11}]

    def sizes() -> dict[str, int]:
        counting.set()
        counted.wait()
        if not answers:
            raise SandboxError(ErrorCode.engine_timeout, "The engine did not answer in time.", "")
        return answers.pop()

    monkeypatch.setattr(engine, "sizes", sizes)

    async def work(place: Place) -> None:
        volumes = Volumes(place[1], place[2], place[3], "image", list)
        volumes._known = {
            ident: VolumeRecord(id=ident, tenant=tenant, name=ident, created_at=0.0, state="ready")
            for ident, tenant in (("a", "other"), ("b", "mine"))
        }
        volumes.check_room("mine")
        await asyncio.to_thread(counting.wait)
        volumes.check_room("mine")
        async with volumes.used("other", {"/mnt": "a"}):
            counted.set()
        await asyncio.gather(*place[3]._tasks)
        for _ in range(2):
            with pytest.raises(Problem, match="volume_bytes"):
                volumes.check_room("mine")
            volumes.check_room("other")
            volumes._count_at = 0.0  # the next count fails, and the last sizes hold
            volumes.check_room("other")
            await asyncio.gather(*place[3]._tasks)

    in_service(tmp_path, work)


def test_of_two_snapshots_with_one_name_at_once_the_later_stays(tmp_path: Path) -> None:
    async def work(place: Place) -> None:
        snapshots = Snapshots(tmp_path, place[1], place[2], place[3])
        environment: Any = Saved()
        fields: dict[str, Any] = {"tenant": "mine", "sandbox": "box", "kind": "snapshot", "name": "app:v1", "created_at": 1.0}
        records = [SnapshotRecord(id=ident, **fields) for ident in "abc"]
        await asyncio.gather(*(snapshots._taken(each, environment) for each in records))
        (stays,) = snapshots.of("mine")
        await asyncio.gather(*place[3]._tasks)
        assert (list(snapshots._known), place[2].ledger.stored_bytes("mine")) == ([stays.id], 4)
        await place[1].call(lambda connection: connection.execute("UPDATE snapshots SET deleting = 1"))
        await snapshots.delete(stays)
        assert snapshots.of("mine") == [], "what the store does not have is not listed either"

    in_service(tmp_path, work)


class Saved:
    """A sandbox whose checkpoints have four bytes, and no image."""

    environment = None
    size_bytes = 4

    def unwrap(self) -> Saved:
        return self

    async def checkpoint(self, _name: str) -> Saved:
        return self

    async def save_checkpoint(self, _name: str, path: Path) -> Saved:
        await asyncio.to_thread(path.write_bytes, bytes(4))
        return self

    async def delete_checkpoint(self, _name: str) -> Saved:
        return self
