"""Admit new sandboxes: what they take is reserved for their tenant, and they are written down, or neither."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sandbox.docker.spec import SandboxSpec
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.clock import now
from sandbox.service.fleet.creating import NewSandbox, answer_of_first
from sandbox.service.http.problems import Problem, drains_first
from sandbox.service.store.database import Database
from sandbox.service.store.tables import requests as request_rows
from sandbox.service.store.tables import sandboxes as rows
from sandbox.service.store.tables.requests import Creation
from sandbox.service.store.tables.sandboxes import SandboxRecord
from sandbox.service.tenants import ceiling as under
from sandbox.service.tenants.amounts import DiskRoom, amounts_of
from sandbox.service.tenants.rules import Ceiling
from sandbox.service.tenants.tenants import Tenants

from .pools import Pools

# How old the measured free space may be.
ROOM_SECONDS = 1.0


class Measure(Protocol):
    """Measures the room for disks."""

    async def __call__(self, *, exactly: bool) -> DiskRoom | None:
        """Return it; None if the disk cannot be seen. Raises SandboxError."""


class Admission:
    """Lets sandboxes in, none if it ``drains``.

    ``room`` measures the engine's disk, with ``exactly`` also what sandboxes have written; None if it cannot be seen.
    """

    def __init__(
        self,
        database: Database,
        tenants: Tenants,
        pools: Pools,
        room: Measure,
        *,
        drains: bool = False,
    ) -> None:
        self._drains = drains
        self._database, self._tenants, self._pools, self._measure = database, tenants, pools, room
        self._room: DiskRoom | None = None
        self._measured_at, self._is_exact = 0.0, False
        self._measuring = asyncio.Lock()

    def restore(self, record: SandboxRecord, stored_bytes: int) -> None:
        """Reserve again what a sandbox takes that the store has, unless nothing is left of it, and what its checkpoints take."""
        if stored_bytes:
            self._tenants.ledger.store(record.tenant, record.id, stored_bytes, forced=True)
        if record.gone_at is None:
            amounts = amounts_of(SandboxSpec.from_data(record.spec))
            stopped = rows.stopped_at(record.options) is not None
            paused = record.state == "paused"
            self._tenants.ledger.restore(record.tenant, record.id, amounts, paused=paused, stopped=stopped)

    async def answer_to_first(self, tenant: str, key: str | None, digest: bytes) -> dict[str, Any] | None:
        """Return the answer to the first creation with an idempotency key, or None if there was none. Raises Problem."""
        found = None if key is None else await self._database.call(lambda c: request_rows.creation(c, tenant, key))
        return None if found is None else answer_of_first(found, digest, key or "")

    async def begin(self, tenant: str, made: Sequence[NewSandbox], key: str | None, digest: bytes) -> dict[str, Any] | None:
        """Write down what is about to be created, with its reservation; return the answer to the first creation with that key.

        Raises Problem if it does not fit into a quota of the tenant, or on the host's disk: nothing is reserved then.
        """
        try:
            await self._reserve_now(tenant, made)
        except BaseException as error:
            for each in made:
                if each.taken is not None:
                    each.taken.give_back()
            if not isinstance(error, Problem):
                raise
            if (answer := await self.answer_to_first(tenant, key, digest)) is not None:
                return answer
            raise
        try:
            found = await self._pools.hand_out(made, _beginning(tenant, made, key, digest))
        except asyncio.CancelledError:  # it may have been written: the next service finds out
            raise
        except BaseException:
            self._give_back(tenant, made)
            raise
        if found is None:
            return None
        self._give_back(tenant, made)
        return answer_of_first(found, digest, key or "")

    async def _reserve_now(self, tenant: str, made: Sequence[NewSandbox]) -> None:
        """Reserve what they take; what sandboxes have written is measured only where it decides, for the engine is asked."""
        try:
            self._reserve(tenant, made, await self._disk_room())
        except Problem as refused:
            if refused.code is not ErrorCode.capacity:
                raise
            self._reserve(tenant, made, await self._disk_room(exactly=True))

    def _reserve(self, tenant: str, made: Sequence[NewSandbox], room: DiskRoom | None) -> None:
        if self._drains:
            raise drains_first()
        account = self._tenants.active(tenant)
        account.create(len(made))
        try:
            wanted = {each.record.id: amounts_of(SandboxSpec.from_data(each.record.spec)) for each in made}
            self._tenants.ledger.reserve(tenant, wanted, room)
        except BaseException:
            account.creates.give_back(len(made))
            raise

    def _give_back(self, tenant: str, made: Sequence[NewSandbox]) -> None:
        self._tenants.find(tenant).creates.give_back(len(made))
        for each in made:
            self._tenants.ledger.release(each.record.id)

    async def _disk_room(self, *, exactly: bool = False) -> DiskRoom | None:
        async with self._measuring:
            if time.monotonic() - self._measured_at > ROOM_SECONDS or (exactly and not self._is_exact):
                try:
                    self._room = await self._measure(exactly=exactly)
                except SandboxError:  # what is to be started will say so
                    return None
                self._measured_at, self._is_exact = time.monotonic(), exactly
            return self._room


def narrowed_record(ceiling: Ceiling, record: SandboxRecord) -> SandboxRecord:
    """Return the record of a sandbox that is there with a network and an end that are allowed now."""
    latest = now() + ceiling.most_time_to_live_seconds
    if record.ends_at > latest:
        record = replace(record, ends_at=latest, time_to_live_seconds=ceiling.most_time_to_live_seconds)
    spec = SandboxSpec.from_data(record.spec)
    network = under.narrowed_network(ceiling, spec.network)
    return record if network == spec.network else replace(record, spec=replace(spec, network=network).to_data())


def _beginning(tenant: str, made: Sequence[NewSandbox], key: str | None, digest: bytes) -> Callable[[Any], Creation | None]:
    def begin(connection: Any) -> Creation | None:
        if key is not None:
            at, first = made[0].record.created_at, made[0].record.id
            if (found := request_rows.begin_creation(connection, tenant, key, digest, first, at)) is not None:
                return found
        for each in made:
            rows.insert(connection, each.record)
        return None

    return begin
