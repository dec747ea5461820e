"""The snapshots of all tenants: taken of sandboxes that run, and given to new ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import string
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.aio import AsyncEnvironment
from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.images import snapshots as images
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.clock import now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.database import Database
from sandbox.service.store.tables import snapshots as rows
from sandbox.service.store.tables.snapshots import Kind, SnapshotRecord
from sandbox.service.tenants.ledger import over_quota
from sandbox.service.tenants.tenants import Tenants

if TYPE_CHECKING:
    from sandbox.service.fleet.admission.workers import Workers

log = logging.getLogger(__name__)

FOLDER = "snapshots"
# What a snapshot is called as long as it is a checkpoint of its sandbox.
CHECKPOINT = "gamebox-snapshot"
MOST_OF_TENANT = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Snapshots:
    """The snapshots, in memory as they are in the store. Their files are in the folder ``data`` of the service."""

    def __init__(self, data: Path, database: Database, tenants: Tenants, workers: Workers) -> None:
        self._folder = data / FOLDER
        self._database, self._tenants, self._workers = database, tenants, workers
        self._known: dict[str, SnapshotRecord] = {}
        self._under_way: set[str] = set()
        self._users: Counter[str] = Counter()

    async def load(self, stopped: Callable[[str], str | None]) -> None:
        """Read the snapshots from the store, and remove what a service before this one has left half done.

        ``stopped`` returns the snapshot from which a sandbox is to start again, None if it is not stopped.
        """
        for record in await self._database.call(rows.every):
            unused = record.kind == "fork" or (record.kind == "stop" and stopped(record.sandbox) != record.id)
            if unused or (record.kind == "snapshot" and not (self._folder / record.id).exists()):  # a backup has none of them
                record = replace(record, deleting=True)
            self._known[record.id] = record
            self._tenants.ledger.keep(record.tenant, _place(record.id), record.bytes, forced=True)
        await asyncio.to_thread(self._remove_unknown_files)
        self._workers.spawn(self.tidy())

    def _remove_unknown_files(self) -> None:
        for path in self._folder.glob("*"):
            if path.name not in self._known:
                path.unlink(missing_ok=True)

    async def clear(self, tenant: str | None = None) -> None:
        """Remove what is left of snapshots that were deleted, of one tenant or of all, and that nothing needs any more."""
        for record in [each for each in self._known.values() if each.deleting and tenant in (None, each.tenant)]:
            with contextlib.suppress(SandboxError):
                await self._clear(record)

    async def tidy(self) -> None:
        """Remove what belongs to no snapshot."""
        await self.clear()
        owner = self._database.service_id
        with contextlib.suppress(SandboxError):
            await self._workers.in_engine(lambda: images.remove_others(owner, self._is_known))

    def _is_known(self, ident: str) -> bool:
        """Return whether a snapshot is there or under way. From any thread: one may be begun while the engine lists images."""
        return ident in self._under_way or ident in self._known  # in this order: what was under way is known before it is not

    # What there is

    def of(self, tenant: str) -> list[SnapshotRecord]:
        """Return the snapshots of a tenant, the latest first."""
        kept = [each for each in self._known.values() if each.tenant == tenant and each.kind == "snapshot" and not each.deleting]
        return sorted(kept, key=lambda each: (-each.created_at, each.id))

    def find(self, tenant: str, name: str) -> SnapshotRecord | None:
        """Return the snapshot of a tenant with an id or a name, with or without its tag and the tenant's name before it."""
        wanted = name.removeprefix(f"{tenant}/")
        ident, _, tag = wanted.partition(":")
        for each in self.of(tenant):
            if each.name == f"{ident}:{tag or 'default'}" or (each.id == ident and tag in ("", "default")):
                return each
        return None

    def known(self, ident: str) -> SnapshotRecord:
        """Return a snapshot of any kind. Raises SandboxError."""
        if (found := self._known.get(ident)) is None:
            raise _lost()
        return found

    def bases(self) -> set[str]:
        """Return the images of the sandboxes that snapshots were taken of: new ones need them, too. From any thread."""
        return {str(each.spec.get("image")) for each in tuple(self._known.values())}

    # Take

    async def take(self, live: LiveSandbox, kind: Kind, name: str = "") -> SnapshotRecord:
        """Keep the files of a sandbox that runs: workspace, home, and what it may change of the rest. Raises Problem, SandboxError.

        Nothing is left of one that fails.
        """
        tenant, ident = live.record.tenant, new_id()
        kept = "" if not name else checked_name(name)
        self._tenants.active(tenant)
        if len(self.of(tenant)) >= MOST_OF_TENANT:
            hint = "Delete some that are not needed any more."
            raise Problem(429, ProblemCode.quota_exceeded, f"There are already {MOST_OF_TENANT} snapshots, the limit.", hint)
        environment = await live.ready()
        record = SnapshotRecord(
            id=ident,
            tenant=tenant,
            sandbox=live.record.id,
            kind=kind,
            name=kept,
            created_at=now(),
            spec=live.record.spec,
        )
        self._under_way.add(ident)  # its image is there before anybody else knows of it
        return await asyncio.shield(self._workers.spawn(self._taken(record, environment)))

    async def _taken(self, record: SnapshotRecord, environment: AsyncEnvironment) -> SnapshotRecord:
        held = 0
        try:
            path, name = self._folder / record.id, f"{CHECKPOINT}-{record.id}"
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            size = (await environment.checkpoint(name)).unwrap().size_bytes
            try:
                self._reserve(record, size)
                held = size
                (await environment.save_checkpoint(name, path)).unwrap()
            finally:
                await environment.delete_checkpoint(name)
            length = path.stat().st_size
            image, more = await self._committed(record, environment)
            self._release(record, held)
            held = 0
            self._reserve(record, length + more)
            held = length + more
            record = replace(record, bytes=held, image=image)
            await self._database.call(lambda connection: rows.insert(connection, record))
        except BaseException:
            self._release(record, held)
            (self._folder / record.id).unlink(missing_ok=True)
            self._under_way.discard(record.id)
            self._workers.spawn(self.tidy())
            raise
        self._known[record.id] = record
        self._under_way.discard(record.id)
        for each in self.of(record.tenant):  # now: another one with the name may have been taken meanwhile
            if record.name and each.name == record.name and each.id != record.id:
                self._forget_soon(replace(each, deleting=True))
        return record

    async def _committed(self, record: SnapshotRecord, environment: AsyncEnvironment) -> tuple[str, int]:
        inner = environment.environment
        if not isinstance(inner, DockerEnvironment) or inner.profile.read_only_root:
            return "", 0
        base, owner = inner.spec.image, self._database.service_id
        return await self._workers.in_engine(lambda: images.commit(inner.container_id, base, record.id, owner), record.tenant)

    def _reserve(self, record: SnapshotRecord, size_bytes: int) -> None:
        ledger = self._tenants.ledger
        if not ledger.keep(record.tenant, _place(record.id), size_bytes):
            most = self._tenants.find(record.tenant).quota.checkpoint_bytes or 0
            raise over_quota("checkpoint_bytes", most, ledger.stored_bytes(record.tenant), size_bytes)

    def _release(self, record: SnapshotRecord, size_bytes: int) -> None:
        if size_bytes:
            self._tenants.ledger.unstore(record.tenant, _place(record.id), size_bytes)

    # Use

    @asynccontextmanager
    async def used(self, record: SnapshotRecord) -> AsyncIterator[None]:
        """Keep what a snapshot is made of during the block. Raises SandboxError if it was deleted."""
        if self.known(record.id).deleting:
            raise _lost()
        self._users[record.id] += 1
        try:
            yield
        finally:
            self._users[record.id] -= 1
            if not self._users[record.id]:
                del self._users[record.id]
                if self.known(record.id).deleting:
                    self._forget_soon(self.known(record.id))

    async def fill(self, environment: DockerEnvironment, record: SnapshotRecord) -> None:
        """Give a sandbox that was just started the files of a snapshot. Raises SandboxError."""
        path = self._folder / record.id

        def fill() -> None:
            environment.load_checkpoint(path, CHECKPOINT).unwrap()
            environment.rollback(CHECKPOINT, kill=True).unwrap()
            environment.delete_checkpoint(CHECKPOINT).unwrap()

        await self._workers.in_engine(fill, record.tenant)

    # Delete

    async def delete(self, record: SnapshotRecord) -> bool:
        """Have a snapshot be gone for everybody; return whether it was there. What uses it keeps what it needs."""
        found = await self._database.call(lambda connection: rows.mark_deleting(connection, record.id))
        if (known := self._known.get(record.id)) is not None and not known.deleting:
            self._forget_soon(replace(known, deleting=True))
        return found

    async def delete_all(self, tenant: str) -> None:
        """Remove the snapshots of a tenant whose sandboxes are gone. Raises SandboxError."""
        for record in [each for each in self._known.values() if each.tenant == tenant]:
            await self.delete(record)
            await self._clear(replace(record, deleting=True))
            if record.id in self._known:
                raise SandboxError(
                    ErrorCode.engine_unavailable, f"The snapshot {record.id} is still in use.", "The service tries again."
                )

    def _forget_soon(self, record: SnapshotRecord) -> None:
        self._known[record.id] = record
        self._workers.spawn(self._clear(record))

    async def _clear(self, record: SnapshotRecord) -> None:
        """Remove what a snapshot is made of, unless something needs it: then it still counts, and is tried again."""
        if self._users[record.id] or record.id not in self._known:
            return
        await asyncio.to_thread((self._folder / record.id).unlink, missing_ok=True)
        if record.image and not await self._workers.in_engine(lambda: images.remove(record.image), record.tenant):
            return
        await self._database.call(lambda connection: rows.delete(connection, record.id))
        if self._known.pop(record.id, None) is not None:
            self._release(record, record.bytes)


def checked_name(text: str) -> str:
    """Return a name with its tag. Raises Problem."""
    name, _, tag = text.partition(":")
    if not _NAME.fullmatch(name) or not _TAG.fullmatch(tag or "default"):
        raise Problem(
            400,
            ProblemCode.invalid_body,
            f"The name of a snapshot is {text!r:.150}.",
            "Use up to 128 letters, digits, '-' and '_', and a tag after a colon if you like, as in app:v2.",
        )
    return f"{name}:{tag or 'default'}"


def new_id() -> str:
    """Return an id for a snapshot: 20 letters and digits, a letter first. It is part of the names of a file and of an image."""
    rest = string.ascii_lowercase + string.digits
    return secrets.choice(string.ascii_lowercase) + "".join(secrets.choice(rest) for _ in range(19))


def _place(ident: str) -> str:
    """Return under what a snapshot's bytes are kept in the ledger; sandboxes are there under their ids."""
    return f"snapshot {ident}"


def _lost() -> SandboxError:
    return SandboxError(ErrorCode.checkpoint_not_found, "The snapshot is not there any more.", "Use another one, or a template.")
