"""Change a sandbox that is there, within the ceiling and the quota of its tenant: pause it, let it go on, give it other rules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from sandbox.aio import AsyncEnvironment
from sandbox.errors import SandboxError
from sandbox.service.clock import now
from sandbox.service.http.bodies import UpdateSandbox
from sandbox.service.snapshots.stopping import Stopping
from sandbox.service.store.tables.sandboxes import SandboxRecord, stopped_at
from sandbox.service.tenants import ceiling as under
from sandbox.service.tenants.tenants import Tenants

from .admission.admission import narrowed_record
from .admission.workers import Workers
from .ceilings import Ceilings
from .live_sandbox import LiveSandbox

log = logging.getLogger(__name__)


class Changes:
    """Changes the sandboxes of a fleet, which are those that are not over.

    ``attach`` reaches one, ``change`` writes another record of it down, and ``tell_end`` has its guest know when it ends.
    ``started`` notes the environment of one that was stopped.
    """

    def __init__(
        self,
        workers: Workers,
        tenants: Tenants,
        ceilings: Ceilings,
        sandboxes: Callable[[], list[LiveSandbox]],
        attach: Callable[[LiveSandbox], asyncio.Task[AsyncEnvironment]],
        change: Callable[[LiveSandbox, SandboxRecord], Awaitable[None]],
        tell_end: Callable[[LiveSandbox], Awaitable[None]],
        stopping: Stopping,
        started: Callable[[LiveSandbox, AsyncEnvironment], None],
    ) -> None:
        self._stopping, self._started = stopping, started
        self._workers, self._tenants, self._ceilings, self._sandboxes = workers, tenants, ceilings, sandboxes
        self._attach, self._change, self._tell_end = attach, change, tell_end

    async def narrow(self, tenant: str) -> None:
        """Have all sandboxes of a tenant keep within its ceiling, which was changed: their networks and times to live are cut."""
        for live in [each for each in self._sandboxes() if each.record.tenant == tenant]:
            async with live.changing:
                try:
                    if live.environment is not None:
                        live.environment.ceiling = self._ceilings.of(tenant)
                    await self.cut(live)
                    if live.record.state == "running":
                        await self._tell_end(live)
                except SandboxError as error:  # it is about to be lost, or attached again, which cuts it, too
                    log.warning("the ceiling of %s is told to the sandbox later: %s", live.record.id, error)

    async def cut(self, live: LiveSandbox) -> None:
        """Have the record of a sandbox, and its network, keep within the ceiling of its tenant. Raises SandboxError."""
        cut = narrowed_record(self._tenants.find(live.record.tenant).ceiling, live.record)
        if cut != live.record:
            await self._change(live, cut)
            live.set_deadline()
            if live.environment is not None:
                live.environment.network = live.spec.network

    async def pause(self, live: LiveSandbox) -> SandboxRecord:
        """Pause a sandbox; does nothing if it is paused. Raises SandboxError."""
        async with live.changing:
            if live.record.state != "paused":
                environment = await live.ready()
                async with self._workers.calls.turn(live.record.tenant):
                    await environment.pause()
                self._tenants.ledger.pause(live.record.id)
                try:
                    await self._change(live, replace(live.record, state="paused"))
                except SandboxError:  # it is not acknowledged, so the sandbox goes on
                    self._tenants.ledger.resume(live.record.id, forced=True)
                    await environment.resume()
                    raise
            return live.record

    async def stop(self, live: LiveSandbox) -> SandboxRecord:
        """Keep the files of a sandbox until it is resumed, and nothing else; does nothing if it is paused. Raises SandboxError."""
        async with live.changing:
            if live.record.state != "paused":
                await self._stopping.stop(live)
            return live.record

    async def pause_for_long(self, live: LiveSandbox, *, memory: bool = True) -> SandboxRecord:
        """Pause a sandbox, or stop it, and let it wait as long as its tenant may have one. Raises SandboxError, Problem."""
        await (self.pause(live) if memory else self.stop(live))
        most = self._tenants.find(live.record.tenant).ceiling.most_time_to_live_seconds
        return await self.update(live, UpdateSandbox.model_validate({"time_to_live_seconds": most}))

    async def resume(self, live: LiveSandbox) -> SandboxRecord:
        """Let a sandbox go on; does nothing if it runs. Raises SandboxError."""
        async with live.changing:
            if live.record.state == "paused":
                under.check_running(self._tenants.active(live.record.tenant).ceiling, live.spec)
                await self.cut(live)
                self._tenants.ledger.resume(live.record.id)
                stopped = stopped_at(live.record.options) is not None
                try:
                    if stopped:
                        self._started(live, await self._stopping.start(live))
                        await self._tell_end(live)
                        return live.record
                    if live.environment is None:
                        await self._attach(live)
                    else:
                        async with self._workers.calls.turn(live.record.tenant):
                            await live.environment.resume()
                        await self._tell_end(live)
                except BaseException:
                    self._tenants.ledger.pause(live.record.id, stopped=stopped)
                    raise
                await self._change(live, replace(live.record, state="running"))
            elif live.record.state != "running":
                raise live.loss()
            return live.record

    async def note_options(self, live: LiveSandbox, options: Mapping[str, Any]) -> None:
        """Replace some of the options of a sandbox, which say how it is shown and what happens at its end."""
        async with live.changing:
            await self._change(live, replace(live.record, options={**live.record.options, **options}))

    async def update(self, live: LiveSandbox, body: UpdateSandbox) -> SandboxRecord:
        """Change the time to live, metadata or network. Raises Problem, SandboxError."""
        async with live.changing:
            if live.record.state not in ("running", "paused"):
                raise live.loss()
            record, ceiling = live.record, self._tenants.active(live.record.tenant).ceiling
            if body.time_to_live_seconds is not None:
                seconds = under.chosen_life(ceiling, body.time_to_live_seconds, 0.0)
                record = replace(record, time_to_live_seconds=seconds, ends_at=now() + seconds)
            if body.metadata is not None:
                record = replace(record, metadata=body.metadata)
            if body.network is not None:
                spec = live.spec.from_data({**live.record.spec, "network": body.network.data()})
                under.check_network(ceiling, spec.network)
                self._ceilings.of(record.tenant).check(spec.network)
                record = replace(record, spec=spec.to_data())
                if live.record.state == "running" or live.environment is not None:
                    environment = live.environment or await live.ready()
                    environment.network = spec.network
            await self._change(live, record)
            live.set_deadline()
            if body.time_to_live_seconds is not None and record.state == "running":
                await live.ready()
                await self._tell_end(live)
            return live.record
