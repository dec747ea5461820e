"""Sandboxes that are stopped: nothing of them runs or is in memory, and they start again with their files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sandbox.aio import AsyncEnvironment
from sandbox.docker.environment import DockerEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.service.fleet import engine
from sandbox.service.fleet.admission.workers import Workers
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.provision import Provision
from sandbox.service.store.database import Database
from sandbox.service.store.tables import sandboxes as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord, stopped_at
from sandbox.service.tenants.ledger import Ledger

from .snapshots import Snapshots

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stopping:
    """Stops sandboxes and starts them. Both are called while nothing else changes the sandbox.

    ``change`` writes another record of one down, ``remove`` removes its container, and ``provision`` returns what it gets
    beside its spec.
    """

    database: Database
    snapshots: Snapshots
    workers: Workers
    ledger: Ledger
    change: Callable[[LiveSandbox, SandboxRecord], Awaitable[None]]
    remove: Callable[[LiveSandbox], Awaitable[bool]]
    provision: Callable[[SandboxRecord], Provision]

    async def stop(self, live: LiveSandbox) -> None:
        """Keep the files of a sandbox, and end everything else of it. Raises SandboxError, Problem; it runs on then.

        A kill of the service at any moment leaves it running, or stopped: what is written down decides.
        """
        snapshot = await self.snapshots.take(live, "stop")
        options = {**live.record.options, "stopped": snapshot.id, "root_image": snapshot.image}
        try:
            await self.change(live, replace(live.record, state="paused", options=options))
        except BaseException:
            await self.snapshots.delete(snapshot)
            raise
        self.ledger.pause(live.record.id, stopped=True)
        live.beside.clear()
        await self.remove(live)  # if the engine does not answer, it is removed later

    async def start(self, live: LiveSandbox) -> AsyncEnvironment:
        """Start a stopped sandbox with its files, in another container. Raises SandboxError; it stays stopped then.

        The new container is written down before it is made, and removed before another one is.
        """
        record = live.record
        snapshot = self.snapshots.known(stopped_at(record.options) or "")
        if not await self.workers.in_engine(lambda: engine.remove(record.ident, may_appear=True), record.tenant):
            raise SandboxError(ErrorCode.engine_unavailable, "Its last container is still being removed.", "Try again later.")
        provision = self.provision(record)
        environment, ident = engine.prepared(live.spec, provision)
        engine.mark(environment, self.database.service_id)
        begun = replace(record, ident=ident)
        await self.database.call(lambda connection: rows.update(connection, begun))
        live.record = begun
        try:
            async with self.snapshots.used(snapshot):
                async with self.workers.creation(record.tenant):
                    await self.workers.in_engine(environment.start, record.tenant)
                await self.snapshots.fill(environment, snapshot)
            options = {name: value for name, value in record.options.items() if name != "stopped"}
            description = environment.lasting_description()
            await self.change(live, replace(begun, state="running", options=options, description=description))
        except BaseException:
            await self._abandon(environment, record.tenant)
            raise
        await self.snapshots.delete(snapshot)
        return AsyncEnvironment(environment)

    async def settle(self, live: LiveSandbox) -> None:
        """Remove the container that a stopped sandbox has left."""
        await self.workers.in_engine(lambda: engine.remove(live.record.ident), live.record.tenant)

    async def forget(self, live: LiveSandbox) -> None:
        """Remove the files of a stopped sandbox, which will not start again."""
        if (ident := stopped_at(live.record.options)) is not None:
            with contextlib.suppress(SandboxError):
                await self.snapshots.delete(self.snapshots.known(ident))

    async def _abandon(self, environment: DockerEnvironment, tenant: str) -> None:
        with contextlib.suppress(SandboxError):
            await self.workers.in_engine(environment.remove, tenant)
