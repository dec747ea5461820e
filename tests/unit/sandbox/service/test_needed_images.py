"""Images that nobody names any more stay as long as something needs them, and a tenant is forgotten when its builds have ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.docker.images import snapshots as images
from sandbox.errors import SandboxError
from sandbox.service.fleet.broadcast import Broadcast
from sandbox.service.fleet.fleet import Fleet
from sandbox.service.settings import read_settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import templates as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord
from sandbox.service.store.tables.snapshots import SnapshotRecord
from sandbox.service.store.tables.templates import BuildRecord, TemplateRecord
from sandbox.service.templates.builds import UnderWay
from sandbox.service.templates.templates import Templates
from sandbox.service.tenants.tenants import Tenants

TENANT = "default"
BUILD = BuildRecord(
    id="b", template="t", tenant=TENANT, state="ready", created_at=1, updated_at=1, cpus=1, memory_bytes=1, image="used"
)


class Store:
    """The images of a tenant, without an engine."""

    def __init__(self) -> None:
        self.names = {"used", "unused"}

    def reference(self, name: str) -> str:
        return f"repository:n-{name}"

    def list(self) -> list[Any]:
        return [SimpleNamespace(names=(each,)) for each in sorted(self.names)]

    def remove(self, name: str) -> None:
        self.names.discard(name)

    def prune(self, unused_seconds: float) -> None:
        pass


class House:
    """The parts of a service that know who needs what."""

    def __init__(self, folder: Path) -> None:
        settings = read_settings({"data": folder})
        self.database = Database(folder / "db")
        self.tenants = Tenants(settings, self.database)
        self.fleet = Fleet(settings, self.database, Broadcast(), self.tenants)
        self.templates = Templates(settings, self.database, self.tenants, self.fleet)
        self.store = Store()
        self.templates.builds.images = lambda tenant: self.store  # type: ignore[assignment, method-assign, return-value]

    async def load(self) -> None:
        await self.tenants.load()
        template = TemplateRecord(id="t", tenant=TENANT, name="app", created_at=1, updated_at=1)
        await self.database.call(lambda connection: rows.insert(connection, template))
        for each in (BUILD, replace(BUILD, id="c", image="unused")):
            await self.database.call(lambda connection, each=each: rows.insert_build(connection, each))  # type: ignore[misc]

    def close(self) -> None:
        self.fleet.workers.close()
        self.database.close()


@pytest.mark.parametrize("by", ["sandbox", "snapshot"])
def test_an_image_stays_while_a_stopped_sandbox_or_a_snapshot_needs_it(tmp_path: Path, by: str) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.load()
        fleet, spec = house.fleet, {"image": "repository:n-used"}
        if by == "sandbox":
            record = SandboxRecord(
                id="s", tenant=TENANT, ident="s", state="paused", created_at=1, ends_at=2, time_to_live_seconds=1, spec=spec
            )
            fleet._live["s"] = fleet._make(record)
        else:
            snapshot = SnapshotRecord(id="s", tenant=TENANT, sandbox="x", kind="snapshot", name="", created_at=1, spec=spec)
            fleet.snapshots._known["s"] = snapshot
        await house.templates.delete(await house.templates.find(TENANT, "app"))
        assert house.store.names == {"used"}
        for _ in range(3):
            house.templates._remove_unneeded(TENANT, set())
        assert house.store.names == {"used"}
        fleet._live.clear()
        fleet.snapshots._known.clear()
        for _ in range(2):
            house.templates._remove_unneeded(TENANT, set())
        assert house.store.names == set()
        house.close()

    asyncio.run(work())


def test_a_tenant_is_not_forgotten_while_a_build_of_it_has_not_ended(tmp_path: Path) -> None:
    async def work() -> None:
        house = House(tmp_path)
        await house.load()
        order: Any = SimpleNamespace(record=BUILD)
        house.templates.builds._under_way["b"] = UnderWay(order)
        with pytest.raises(SandboxError, match="have not ended yet: 1"):
            await house.templates.delete_all(TENANT)
        house.templates.builds._under_way.clear()
        await house.templates.delete_all(TENANT)
        assert await house.templates.of(TENANT) == []
        house.close()

    asyncio.run(work())


def test_the_image_of_a_snapshot_begun_while_images_are_listed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []

    async def work() -> None:
        house = House(tmp_path)

        def listed(**_: Any) -> list[dict[str, list[str]]]:
            house.fleet.snapshots._under_way.add("new")
            return [{"RepoTags": [f"{images.REPOSITORY}:{each}" for each in ("new", "old")]}]

        def remove(name: str) -> bool:
            removed.append(name)
            return True

        monkeypatch.setattr(images, "connect", lambda: SimpleNamespace(api=SimpleNamespace(images=listed)))
        monkeypatch.setattr(images, "remove", remove)
        await house.fleet.snapshots.tidy()
        house.close()

    asyncio.run(work())
    assert removed == [f"{images.REPOSITORY}:old"]
