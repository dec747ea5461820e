"""The volumes of all tenants: made, found, mounted and deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sandbox.docker.container.disks import volumes as engine
from sandbox.docker.container.profiles import DEFAULT, E2B
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.clock import now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.snapshots.snapshots import new_id
from sandbox.service.store.database import Database
from sandbox.service.store.tables import volumes as rows
from sandbox.service.store.tables.volumes import VolumeRecord
from sandbox.service.tenants.ledger import over_quota
from sandbox.service.tenants.tenants import Tenants
from sandbox.text.wording import size

if TYPE_CHECKING:
    from sandbox.service.fleet.admission.workers import Workers

T = TypeVar("T")
log = logging.getLogger(__name__)

# Of the options of a sandbox: the ids of its volumes by their paths, and the volume whose content it is for.
OPTION, CONTENT = "volumes", "volume_content"
# When the engine counts the sizes again, for which it reads every folder; and when after a file was written.
SIZE_SECONDS, WRITTEN_SECONDS = 15.0, 2.0
MOST_MOUNTS = 16
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_PATH = re.compile(r"(/[A-Za-z0-9_.@+-]+){1,16}")
# Nothing is mounted at, above or below these: they are the system's and ours, or have a disk of their own.
RESERVED = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr", "/var"),
    *("/root", "/tmp", "/workspace", "/volume", E2B.home, DEFAULT.home, "/.gamebox"),  # noqa: S108
)


class Volumes:
    """The volumes, in memory as they are in the store. ``sandboxes`` returns those that are not over."""

    def __init__(
        self, database: Database, tenants: Tenants, workers: Workers, image: str, sandboxes: Callable[[], list[LiveSandbox]]
    ) -> None:
        self._database, self._tenants, self._workers, self.image = database, tenants, workers, image
        self._sandboxes = sandboxes
        self._known: dict[str, VolumeRecord] = {}
        self._users: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        self._count_at = float("-inf")
        self._counting = False

    async def load(self) -> None:
        """Read the volumes from the store; what was being made or deleted is removed."""
        self._known = {each.id: each for each in await self._database.call(rows.every)}
        for tenant in {each.tenant for each in self._known.values()}:
            self._note(tenant)
        self._workers.spawn(self.tidy())
        if self._known:
            self._recount()

    async def tidy(self) -> None:
        """Remove what is left of volumes that are not there for anybody."""
        for record in [each for each in self._known.values() if each.state != "ready" and not self._users[each.id]]:
            with contextlib.suppress(SandboxError):
                await self._clear(record)
        known, owner = set(self._known), self._database.service_id
        with contextlib.suppress(SandboxError):
            await self._workers.in_engine(lambda: engine.remove_others(owner, known))

    def _note(self, tenant: str) -> None:
        """Have the quota say what there is now."""
        mine = [each.id for each in self._known.values() if each.tenant == tenant]
        volumes = self._tenants.ledger.volumes
        volumes[tenant] = (len(mine), sum(self._sizes.get(each, 0) for each in mine))
        if not mine:
            del volumes[tenant]

    # What there is

    def of(self, tenant: str) -> list[VolumeRecord]:
        """Return the volumes of a tenant, the latest first."""
        found = [each for each in self._known.values() if each.tenant == tenant and each.state == "ready"]
        return sorted(found, key=lambda each: (-each.created_at, each.id))

    def find(self, tenant: str, ident: str) -> VolumeRecord:
        """Return a volume of a tenant by its id. Raises Problem."""
        found = self._known.get(ident)
        if found is None or found.tenant != tenant or found.state != "ready":
            detail, hint = f"There is no volume {ident!r:.80}.", "List yours with GET /volumes."
            raise Problem(404, ProblemCode.route_not_found, detail, hint)
        return found

    def mounts(self, tenant: str, asked: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the ids of volumes by the paths at which they are wanted; ``asked`` are names and paths. Raises Problem."""
        found: dict[str, str] = {}
        by_name = {each.name: each.id for each in self.of(tenant)}
        for name, path in asked:
            if name not in by_name:
                raise _wrong(f"There is no volume {name!r:.150}.", "List yours with GET /volumes, or make it with POST /volumes.")
            found[checked_path(path, found)] = by_name[name]
        return found

    # Make

    async def create(self, tenant: str, name: str) -> VolumeRecord:
        """Make a volume. Raises Problem, SandboxError; nothing is left of it then."""
        if not _NAME.fullmatch(name):
            raise _wrong(f"The name of a volume is {name!r:.150}.", "Use 1 to 128 letters, digits, '-' and '_'.")
        quota = self._tenants.active(tenant).quota
        have = sum(each.tenant == tenant for each in self._known.values())
        if quota.volumes is not None and have + 1 > quota.volumes:
            raise over_quota("volumes", quota.volumes, have, 1)
        record = VolumeRecord(id=new_id(), tenant=tenant, name=name, created_at=now())
        self._known[record.id] = record
        try:
            await self._database.call(lambda connection: rows.insert(connection, record))
        except BaseException as error:
            del self._known[record.id]
            if isinstance(error, sqlite3.IntegrityError):
                raise _wrong(f"There is a volume {name!r} already.", "Use another name, or delete it first.", 409) from error
            raise
        return await asyncio.shield(self._workers.spawn(self._made(record)))

    async def _made(self, record: VolumeRecord) -> VolumeRecord:
        owner = self._database.service_id
        made = replace(record, state="ready")
        self._users[record.id] += 1
        try:
            await self._workers.in_engine(lambda: engine.make(record.id, owner, self.image), record.tenant)
            await self._database.call(lambda connection: rows.set_state(connection, record.id, "ready"))
        except BaseException:
            self._workers.spawn(self._clear(record))
            raise
        finally:
            self._release(record.id)
        self._known[record.id] = made
        self._note(record.tenant)
        return made

    # Use

    @asynccontextmanager
    async def used(self, tenant: str, mounts: Mapping[str, str], *, over_quota: bool = False) -> AsyncIterator[None]:
        """Keep volumes from being deleted during the block, in which a sandbox with them is made.

        Raises Problem, SandboxError, also if they have too much already, unless that does not matter.
        """
        idents = [self.find(tenant, ident).id for ident in mounts.values()]
        self._users.update(idents)
        try:
            if idents and not over_quota:
                self.check_room(tenant)
            yield
        finally:
            for ident in idents:
                self._release(ident)

    def _release(self, ident: str) -> None:
        self._users[ident] -= 1
        if not self._users[ident]:
            del self._users[ident]

    def check_room(self, tenant: str) -> None:
        """Raise Problem if the volumes of a tenant have more than its quota, as the engine has counted them of late.

        Nobody waits for the next count: it lasts as long as the tenant with the most files likes.
        """
        most = self._tenants.active(tenant).quota.volume_bytes
        if most is None:
            return
        self._recount()
        have = self._tenants.ledger.volumes.get(tenant, (0, 0))[1]
        if have > most:
            detail = f"The volumes of this tenant have {size(have)}, and the quota volume_bytes is {size(most)}."
            hint = "Delete files of a volume, or a volume; what was deleted counts for some seconds more."
            raise Problem(429, ProblemCode.quota_exceeded, detail, hint, quota="volume_bytes", limit=most, used=have)

    def note_write(self) -> None:
        """Have the sizes be counted again soon: something was written."""
        self._count_at = min(self._count_at, time.monotonic() + WRITTEN_SECONDS)

    def _recount(self) -> None:
        if time.monotonic() >= self._count_at and not self._counting:
            self._counting = True
            self._workers.spawn(self._count())

    async def _count(self) -> None:
        began, self._count_at = time.monotonic(), float("inf")
        try:
            self._sizes = await _in_own_thread(engine.sizes)
            for tenant in {each.tenant for each in self._known.values()}:
                self._note(tenant)
        except SandboxError as error:
            log.warning("the sizes of volumes could not be counted: %s", error.message)
        finally:
            ended = time.monotonic()
            # At most half of the time is spent on it.
            self._count_at = max(min(self._count_at, ended + SIZE_SECONDS), ended + (ended - began))
            self._counting = False

    def users(self, ident: str) -> list[LiveSandbox]:
        """Return the sandboxes that have a volume, but for the one that its content is read and written through."""
        found = [each for each in self._sandboxes() if ident in dict(each.record.options.get(OPTION, {})).values()]
        return [each for each in found if each.record.options.get(CONTENT) is None]

    def content(self, ident: str) -> LiveSandbox | None:
        """Return the sandbox that the content of a volume is read and written through, if there is one."""
        return next((each for each in self._sandboxes() if each.record.options.get(CONTENT) == ident), None)

    # Delete

    async def delete(self, record: VolumeRecord, end: Callable[[LiveSandbox], Any]) -> None:
        """Delete a volume that no sandbox has; ``end`` ends a sandbox. Raises Problem."""
        if users := self.users(record.id):
            hint = f"Kill the sandbox {users[0].record.id} first."
            raise _wrong(f"The volume {record.name!r} is in use by {len(users)} sandboxes.", hint, 409)
        if self._users[record.id]:
            raise _wrong(f"The volume {record.name!r} is about to be used.", "Try again in a moment.", 409)
        deleting = self._known[record.id] = replace(record, state="deleting")
        await self._database.call(lambda connection: rows.set_state(connection, record.id, "deleting"))
        if (content := self.content(record.id)) is not None:
            await end(content)
        with contextlib.suppress(SandboxError):  # what the engine does not remove now is removed later
            await self._clear(deleting)

    async def delete_all(self, tenant: str) -> None:
        """Remove the volumes of a tenant whose sandboxes are gone. Raises SandboxError."""
        for record in [each for each in self._known.values() if each.tenant == tenant]:
            await self._clear(record)
            if record.id in self._known:
                raise SandboxError(
                    ErrorCode.engine_unavailable, f"The volume {record.id} is still in use.", "The service tries again."
                )

    async def _clear(self, record: VolumeRecord) -> None:
        if await self._workers.in_engine(lambda: engine.remove(record.id), record.tenant):
            await self._database.call(lambda connection: rows.delete(connection, record.id))
            self._known.pop(record.id, None)
            self._sizes.pop(record.id, None)
            self._note(record.tenant)


def checked_path(path: str, others: Iterable[str] = ()) -> str:
    """Return a path at which a volume may be mounted. Raises Problem."""
    hint = "Use a path of its own, such as /mnt/data."
    if len(path) > 200 or not _PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        raise _wrong(f"A volume cannot be mounted at {path[:200]!r}.", hint)
    known_paths = tuple(others)
    for known in (*RESERVED, *known_paths):
        if path == known or path.startswith(f"{known}/") or known.startswith(f"{path}/"):
            raise _wrong(f"A volume cannot be mounted at {path!r}: {known} is there.", hint)
    if len(known_paths) >= MOST_MOUNTS:
        raise _wrong(f"A sandbox has at most {MOST_MOUNTS} volumes.", "Mount fewer.")
    return path


async def _in_own_thread(call: Callable[[], T]) -> T:
    """Call in a thread that takes none from anybody, and for which a service that stops does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def work() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # raised where it is awaited
            failed = error
        with contextlib.suppress(RuntimeError):  # the service has ended
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, name="gamebox-sizes", daemon=True).start()
    return await done


def _wrong(detail: str, hint: str, status: int = 400) -> Problem:
    code = ProblemCode.wrong_state if status == 409 else ProblemCode.invalid_body
    return Problem(status, code, detail, hint)
