"""The sandbox through which the content of a volume is read and written: the service itself follows no path in a volume."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox.docker.container.profiles import VOLUME
from sandbox.network.policy import Network
from sandbox.service.clock import now
from sandbox.service.fleet.creating import new_sandbox
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.bodies import CreateSandbox, UpdateSandbox
from sandbox.service.store.tables.volumes import VolumeRecord

from .volumes import CONTENT, OPTION

if TYPE_CHECKING:
    from sandbox.service.fleet.fleet import Fleet

PLACE = "/volume"
# How long it waits for another request, at least.
IDLE_SECONDS = 60.0
MEMORY_BYTES = 128 << 20


class Contents:
    """The sandboxes for contents. Each is one of the tenant's, and counts for its quotas; unused, it ends after a while."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._making: dict[str, asyncio.Task[LiveSandbox]] = {}

    async def of(self, record: VolumeRecord) -> LiveSandbox:
        """Return the sandbox for a volume, which is made if there is none. Raises Problem, SandboxError."""
        live = self._fleet.volumes.content(record.id)
        if live is None or live.record.state != "running":
            if record.id not in self._making:
                self._making[record.id] = task = self._fleet.spawn(self._made(record))
                task.add_done_callback(lambda _: self._making.pop(record.id, None))
            live = await asyncio.shield(self._making[record.id])
        if live.record.ends_at < now() + IDLE_SECONDS:
            body = UpdateSandbox.model_validate({"time_to_live_seconds": self._seconds(record.tenant)})
            await self._fleet.changes.update(live, body)
        return live

    def _seconds(self, tenant: str) -> float:
        return min(2 * IDLE_SECONDS, self._fleet.tenants.find(tenant).ceiling.most_time_to_live_seconds)

    async def _made(self, record: VolumeRecord) -> LiveSandbox:
        fleet, tenant = self._fleet, record.tenant
        settings, ceiling = fleet.settings, fleet.tenants.active(tenant).ceiling
        memory = min(MEMORY_BYTES, int(ceiling.largest.get("memory_bytes", MEMORY_BYTES)))
        limits: dict[str, Any] = {"memory_bytes": memory, "cpus": min(1.0, ceiling.largest.get("cpus", 1.0)), "disk": "memory"}
        asked = CreateSandbox.model_validate(
            {"image": fleet.volumes.image, "limits": limits, "track_changes": False, "time_to_live_seconds": self._seconds(tenant)}
        )
        allowed = ceiling.model_copy(update={"images": (*ceiling.images, fleet.volumes.image), "profiles": (asked.profile,)})
        spec = replace(asked.spec(settings, allowed), profile=VOLUME.name, network=Network.none())
        async with fleet.volumes.used(tenant, {PLACE: record.id}, over_quota=True):
            provision = await fleet.provisions.for_new(tenant, asked)
            # Its commands are the service's own, which counts before it writes: the guest must not end one that sets an owner.
            provision = replace(provision, volume_bytes=None, options={OPTION: {PLACE: record.id}, CONTENT: record.id})
            made = await fleet.create_new(new_sandbox(tenant, spec, provision, {}, self._seconds(tenant)))
            return fleet.find(tenant, str(made["id"]))
