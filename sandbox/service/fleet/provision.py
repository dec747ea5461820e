"""What the service gives a sandbox beside its spec: a ceiling, the package cache, and the values that only it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlsplit

from sandbox.docker.spec import HostParts, SandboxSpec
from sandbox.environment.base import Environment
from sandbox.frozen import dataclass
from sandbox.network.ceiling import Ceiling
from sandbox.network.services.service import Service
from sandbox.packages.cache import PackageCache
from sandbox.service.http.bodies import CreateSandbox
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.settings import Settings
from sandbox.service.store.database import Database
from sandbox.service.store.sealing import Seal
from sandbox.service.store.tables import secrets as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord

from .ceilings import Ceilings


@dataclass(frozen=True, slots=True)
class Hidden:
    """Values that the store has sealed: of variables, of secret variables (with whether every command has them), and of headers."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, tuple[str, bool]] = field(default_factory=dict, repr=False)
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def data(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {"env": dict(self.env), "secrets": dict(self.secrets), "headers": dict(self.headers)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Hidden:
        """Read what ``data`` returned."""
        secrets = {name: (value, bool(always)) for name, (value, always) in data["secrets"].items()}
        return cls(data["env"], secrets, data["headers"])


@dataclass(frozen=True, slots=True)
class Provision:
    """What one sandbox gets. ``options`` is what is shown of that."""

    ceiling: Ceiling | None = None
    seal: Seal | None = None
    hidden: Hidden = field(default_factory=Hidden)
    cache: PackageCache | None = None
    volume_bytes: int | None = None
    """How much all volumes of the tenant may hold."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, spec: SandboxSpec) -> None:
        """Raise SandboxError for what the spec names and the operator does not open."""
        if self.ceiling is None:
            return
        self.ceiling.check(spec.network)
        for name, service in spec.services:
            if isinstance(service, Service):
                parts = urlsplit(service.upstream)
                self.ceiling.check_upstream(name, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))

    def parts(self, spec: SandboxSpec) -> HostParts:
        """Return the arguments of a new sandbox that its spec does not hold. Raises SandboxError for an impossible header."""
        whole: dict[str, Any] = {}
        if self.hidden.env:
            whole["env"] = dict(self.hidden.env)
        if spec.services:
            whole["services"] = {each.name: each for each in self.services(spec)}
        if self.cache is not None:
            whole["cache"] = self.cache
        return HostParts(whole)

    def services(self, spec: SandboxSpec) -> tuple[Service, ...]:
        """Return the services of the spec with their headers. Raises SandboxError."""
        found = [service for _, service in spec.services if isinstance(service, Service)]
        return tuple(replace(each, headers=self.hidden.headers.get(each.name, {})) for each in found)

    def give_secrets(self, environment: Environment) -> None:
        """Give the commands of an environment their secret variables, which it masks from now on. Raises SandboxError."""
        for name, (value, always) in self.hidden.secrets.items():
            environment.secret(name, value, always=always)

    def sealed_for(self, tenant: str, ident: str) -> bytes:
        """Return the values for the record of a sandbox, encrypted; nothing if there are none."""
        if self.seal is None or not (self.hidden.env or self.hidden.secrets or self.hidden.headers):
            return b""
        return self.seal.close(self.hidden.data(), sandbox_place(tenant, ident))


# What a sandbox gets before it is known whose it is.
NOTHING = Provision()


class Provisions:
    """Provides sandboxes with what is the operator's and what the store has sealed."""

    def __init__(self, settings: Settings, database: Database, ceilings: Ceilings) -> None:
        self._settings, self._database, self._ceilings = settings, database, ceilings

    async def for_new(self, tenant: str, body: CreateSandbox) -> Provision:
        """Return what a sandbox that is asked for gets. Raises Problem for a secret that the tenant does not have."""
        values = await self._values(tenant, body.secret_names())
        hidden = Hidden(
            dict(body.env),
            {name: (values[each.secret], each.always) for name, each in body.secret_variables().items()},
            {
                service.name: {name: f"{header.prefix}{values[header.secret]}" for name, header in service.headers.items()}
                for service in body.services
                if service.headers
            },
        )
        return self._provision(tenant, hidden, body.options())

    def of(self, record: SandboxRecord) -> Provision:
        """Return what a sandbox that was made before gets. Raises SandboxError if it cannot be read."""
        sealed = record.sealed
        data = self._database.seal.open(sealed, sandbox_place(record.tenant, record.id)) if sealed else Hidden().data()
        return self._provision(record.tenant, Hidden.of(data), record.options)

    def _provision(self, tenant: str, hidden: Hidden, options: Mapping[str, Any]) -> Provision:
        cache = self._settings.package_cache() if options.get("cache") and self._ceilings.packages(tenant) else None
        return Provision(
            self._ceilings.of(tenant), self._database.seal, hidden, cache, self._ceilings.volume_bytes(tenant), options
        )

    async def _values(self, tenant: str, names: frozenset[str]) -> dict[str, str]:
        if not names:
            return {}
        found = await self._database.call(lambda connection: rows.sealed_values(connection, tenant, names))
        if missing := sorted(names - set(found)):
            raise Problem(
                422,
                ProblemCode.secret_not_found,
                f"There is no secret {missing[0]!r}.",
                "List yours with GET /v1/secrets, or store it with PUT /v1/secrets/{secret_name}.",
            )
        seal = self._database.seal
        return {name: seal.open(sealed, secret_place(tenant, name))["value"] for name, sealed in found.items()}


def sandbox_place(tenant: str, ident: str) -> str:
    """Return where the values of a sandbox belong."""
    return json.dumps(["sandbox", tenant, ident])


def secret_place(tenant: str, name: str) -> str:
    """Return where the value of a secret belongs."""
    return json.dumps(["secret", tenant, name])
