"""Keys: who calls, and what they may do. A key is shown once; what is kept of it is its digest."""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
from collections import OrderedDict
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .clock import iso, now
from .http.problems import Problem, ProblemCode
from .listener import client_network
from .store.database import Database
from .store.tables import keys as rows
from .store.tables.keys import KeyRecord

DEFAULT_TENANT = "default"
PREFIX = "e2b_"
# A key is random: a caller that is wrong this often is guessing, not mistyping.
MOST_FAILURES, LOCK_SECONDS = 20, 60.0
# Addresses whose failures are counted; the oldest are forgotten.
MOST_ADDRESSES = 10_000


class Scope(IntEnum):
    """What a key allows; each scope allows what those before it do."""

    read = 1
    use = 2
    manage = 3
    admin = 4


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    tenant: str
    scope: Scope
    key: str


class Keys:
    """All keys, in memory as in the store; a revoked one is refused from that moment on."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._by_digest: dict[bytes, KeyRecord] = {}
        self._by_id: dict[str, KeyRecord] = {}
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def load(self) -> None:
        """Read the keys from the store."""
        for record in await self._database.call(rows.every):
            self._keep(record)

    def _keep(self, record: KeyRecord) -> None:
        self._by_digest[record.digest] = self._by_id[record.id] = record

    async def make(self, tenant: str, name: str, scope: Scope, expires_at: float | None = None) -> tuple[str, KeyRecord]:
        """Make a key; return it, which cannot be read again later, and what is kept of it."""
        key = PREFIX + secrets.token_hex(20)
        record = KeyRecord(
            id=f"k{secrets.token_hex(8)}",
            tenant=tenant,
            name=name,
            scope=scope.name,
            digest=_digest(key),
            shown=f"{key[:8]}…{key[-4:]}",
            created_at=now(),
            expires_at=expires_at,
        )
        await self._database.call(lambda connection: rows.insert(connection, record))
        self._keep(record)
        return key, record

    async def revoke(self, tenant: str, ident: str) -> None:
        """Revoke a key of a tenant. Raises Problem."""
        record = self._by_id.get(ident)
        if record is None or record.tenant != tenant or record.revoked_at is not None:
            raise Problem(404, ProblemCode.key_not_found, f"There is no key {ident!r:.80}.", "List them: GET /v1/keys.")
        at = now()
        await self._database.call(lambda connection: rows.revoke(connection, ident, at))
        self._keep(replace(record, revoked_at=at))

    async def revoke_all(self, tenant: str) -> list[str]:
        """Revoke all keys of a tenant, and forget them; return their ids."""
        found = [each for each in self._by_id.values() if each.tenant == tenant]
        at = now()

        def work(connection: sqlite3.Connection) -> None:
            for each in found:
                rows.revoke(connection, each.id, at)

        await self._database.call(work)
        for each in found:
            del self._by_digest[each.digest], self._by_id[each.id]
        return [each.id for each in found]

    def of(self, tenant: str) -> list[KeyRecord]:
        """Return the keys of a tenant that were not revoked."""
        return [each for each in self._by_digest.values() if each.tenant == tenant and each.revoked_at is None]

    def is_valid(self, caller: Caller) -> bool:
        """Return whether the key of a caller, which had one, is still valid."""
        record = self._by_id.get(caller.key)
        return record is not None and _is_valid(record)

    def is_valid_id(self, ident: str) -> bool:
        """Return whether the key of that id is valid."""
        record = self._by_id.get(ident)
        return record is not None and _is_valid(record)

    def is_valid_key(self, ident: str, tenant: str) -> bool:
        """Return whether the key of that id is a valid one of the tenant."""
        record = self._by_id.get(ident)
        return record is not None and record.tenant == tenant and _is_valid(record)

    def caller_by_id(self, ident: str) -> Caller | None:
        """Return who has the key of that id, as far as a token that was made with it goes; None if it is not valid."""
        record = self._by_id.get(ident)
        if record is None or not _is_valid(record):
            return None
        return Caller(record.tenant, min(Scope[record.scope], Scope.use), record.id)

    def caller(self, key: str | None, address: str) -> Caller:
        """Return who has the key. Raises Problem for a wrong one, another for an address that was wrong too often.

        A valid key is never locked out: others may share its address.
        """
        record = None if key is None else self._by_digest.get(_digest(key))
        if record is not None and _is_valid(record):
            return Caller(record.tenant, Scope[record.scope], record.id)
        address = client_network(address)  # of IPv6, somebody has 2**64
        failures, until = self._failures.get(address, (0, 0.0))
        if failures >= MOST_FAILURES and time.monotonic() < until:
            seconds = f"{max(1, round(until - time.monotonic()))}"
            raise Problem(
                429,
                ProblemCode.locked_out,
                "Too many requests from this address had no valid key.",
                f"Send a valid key, which works at once, or wait {seconds} s.",
                retryable=True,
                headers={"Retry-After": seconds},
            )
        self._count_failure(address, failures)
        raise Problem(
            401,
            ProblemCode.unauthorized,
            "The request has no key." if key is None else "The key is not valid.",
            "Send 'Authorization: Bearer KEY', or 'X-API-Key: KEY'.",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _count_failure(self, address: str, failures: int) -> None:
        self._failures[address] = (failures % MOST_FAILURES + 1, time.monotonic() + LOCK_SECONDS)
        self._failures.move_to_end(address)
        while len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)


def check_scope(caller: Caller, needed: Scope) -> None:
    """Raise Problem if the caller's key does not allow what it asks for."""
    if caller.scope < needed:
        raise Problem(
            403,
            ProblemCode.forbidden,
            f"This needs a key with the scope {needed.name}, and the key of this request has {caller.scope.name}.",
            "Ask an admin of your tenant, or the operator, for such a key.",
        )


def key_data(record: KeyRecord) -> dict[str, str | None]:
    """Return what is shown of a key."""
    return {
        "id": record.id,
        "name": record.name,
        "scope": record.scope,
        "key": record.shown,
        "created_at": iso(record.created_at),
        "expires_at": iso(record.expires_at),
    }


async def first_key(keys: Keys, folder: Path) -> Path | None:
    """Make the first key if there is none and write it to a file in ``folder``; return the file, or None. Raises SandboxError."""
    if keys.of(DEFAULT_TENANT):
        return None
    key, _ = await keys.make(DEFAULT_TENANT, "admin", Scope.admin)
    path = folder / "admin.key"
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{key}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed, f"{path} could not be written: {error.strerror}.", "Give another --data folder."
        ) from error
    return path


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_valid(record: KeyRecord) -> bool:
    return record.revoked_at is None and (record.expires_at is None or now() < record.expires_at)
