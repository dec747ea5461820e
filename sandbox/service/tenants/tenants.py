"""All tenants, in memory as in the store, and what each of them has in use."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from sandbox.docker.builds.engine_images import repository
from sandbox.service.clock import now
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import DEFAULT_TENANT
from sandbox.service.requests.spill import SpillRoom
from sandbox.service.settings import Settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import tenants as rows
from sandbox.service.store.tables.tenants import TenantRecord

from .account import Account
from .host_share import measure_host
from .ledger import Ledger
from .pace import Pace
from .rules import Ceiling, Quota

MOST_TENANTS = 10_000
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Tenants:
    """The tenants by their ids. ``ledger`` has what their sandboxes take."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._accounts: dict[str, Account] = {}
        self._default_quota = settings.default_quota(measure_host(settings.data))
        self._output = SpillRoom(settings.data / "output")
        self.pace = Pace()
        self.ledger = Ledger(lambda tenant: self.find(tenant).quota, settings.disk_factor)

    async def load(self) -> None:
        """Read the tenants from the store."""
        for record in await self._database.call(rows.every):
            self._keep(record)
        if DEFAULT_TENANT not in self._accounts:
            await self._add(TenantRecord(id=DEFAULT_TENANT, created_at=now(), name="The operator's own"))

    def find(self, ident: str) -> Account:
        """Return a tenant that is known to exist: it has a key, or a sandbox."""
        return self._accounts[ident]

    def get(self, ident: str) -> Account:
        """Return a tenant. Raises Problem if there is none."""
        found = self._accounts.get(ident)
        if found is None:
            raise Problem(
                404, ProblemCode.tenant_not_found, f"There is no tenant {ident!r:.80}.", "List them: GET /v1/tenants."
            )
        return found

    def active(self, ident: str) -> Account:
        """Return a tenant that may have something new. Raises Problem for one that is being deleted."""
        found = self.get(ident)
        if found.is_deleting:
            raise _deleting(ident)
        return found

    def every(self) -> list[Account]:
        """Return all tenants, the oldest first."""
        return list(self._accounts.values())

    async def create(self, ident: str, name: str, ceiling: Mapping[str, Any], quota: Mapping[str, Any]) -> Account:
        """Add a tenant. Raises Problem."""
        if not _ID.fullmatch(ident):
            raise Problem(
                422,
                ProblemCode.invalid_body,
                f"id is {ident!r:.80}.",
                "Use up to 63 lower-case letters, digits, '-' and '_', starting with a letter or digit.",
            )
        if ident in self._accounts:
            raise _exists(ident)
        if len(self._accounts) >= MOST_TENANTS:
            raise Problem(409, ProblemCode.wrong_state, f"There are already {MOST_TENANTS} tenants, the most.", "Delete one.")
        return await self._add(TenantRecord(id=ident, created_at=now(), name=name, ceiling=ceiling, quota=quota))

    async def update(
        self, ident: str, name: str | None, ceiling: Mapping[str, Any] | None, quota: Mapping[str, Any] | None
    ) -> Account:
        """Change what is set for a tenant; None leaves it as it is. Raises Problem."""
        account = self.active(ident)
        old = account.record
        record = replace(
            old,
            name=old.name if name is None else name,
            ceiling=old.ceiling if ceiling is None else ceiling,
            quota=old.quota if quota is None else quota,
        )
        ceilings = self._rules(record)
        await self._database.call(lambda connection: rows.update(connection, record))
        account.set(record, *ceilings)
        return account

    async def begin_delete(self, ident: str) -> None:
        """Have a tenant make nothing new from now on. Raises Problem."""
        account = self.get(ident)
        if ident == DEFAULT_TENANT:
            raise Problem(
                409,
                ProblemCode.wrong_state,
                "The tenant 'default' is the operator's own and stays.",
                "Delete its sandboxes and revoke its keys one by one.",
            )
        if not account.is_deleting:
            record = replace(account.record, deleting_at=now())
            account.record = record
            await self._database.call(lambda connection: rows.update(connection, record))

    async def forget(self, ident: str) -> None:
        """Forget a tenant that has no sandboxes any more."""
        await self._database.call(lambda connection: rows.delete(connection, ident))
        self._accounts.pop(ident, None)

    def note_transfers(self) -> None:
        """Have written down what was transferred since the last time; call it now and then."""
        for account in self._accounts.values():
            if account.transfers_changed:
                account.transfers_changed = False
                tenant, level, at = account.id, account.transfers.level, account.transfers.at
                self._database.note(_transferred(tenant, level, at))

    async def _add(self, record: TenantRecord) -> Account:
        self._rules(record)
        try:
            await self._database.call(lambda connection: rows.insert(connection, record))
        except sqlite3.IntegrityError as error:
            raise _exists(record.id) from error
        return self._keep(record)

    def _keep(self, record: TenantRecord) -> Account:
        ceiling, quota = self._rules(record)
        room = SpillRoom(self._output.folder, within=self._output)
        made = self._accounts[record.id] = Account(record, ceiling, quota, room)
        return made

    def _rules(self, record: TenantRecord) -> tuple[Ceiling, Quota]:
        """Return what holds for a tenant: what is set for it, and the settings of the service for the rest. Raises Problem."""
        try:
            ceiling = Ceiling.model_validate({**self._settings.ceiling.model_dump(), **record.ceiling})
            built = repository(owner_of(self._database.service_id, record.id))
            return ceiling.with_built(built), quota_of(record, self._settings, self._default_quota)
        except ValidationError as error:
            words = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
            raise Problem(422, ProblemCode.invalid_body, f"The body is invalid: {words[:500]}.", "Correct that.") from error


def owner_of(service: str, tenant: str) -> str:
    """Return the owner of the images that a tenant of a service has had built: an engine may have those of several services."""
    return f"{service}-{tenant}"


def quota_of(record: TenantRecord, settings: Settings, default: Quota) -> Quota:
    """Return the quota of a tenant: what is set for it, and for the rest the default; the operator's own has no share of the host.

    Raises ValidationError.
    """
    rest = settings.quota if record.id == DEFAULT_TENANT else default
    return Quota.model_validate({**rest.model_dump(), **record.quota})


def _transferred(tenant: str, level: float, at: float) -> Any:
    return lambda connection: rows.note_transferred(connection, tenant, level, at)


def _exists(ident: str) -> Problem:
    return Problem(409, ProblemCode.tenant_exists, f"The tenant {ident!r} already exists.", "Change it: PATCH /v1/tenants/{id}.")


def _deleting(ident: str) -> Problem:
    return Problem(409, ProblemCode.wrong_state, f"The tenant {ident!r} is being deleted.", "Create one with another id.")
