"""Archives that tenants upload for their builds: sized while they come, and kept by the hash that their clients have given them."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.client.http.codes import ProblemCode
from sandbox.docker.builds.archives import ArchiveStore
from sandbox.service.http.problems import Problem
from sandbox.service.settings import Settings
from sandbox.service.tenants.tenants import Tenants
from sandbox.text.wording import size

FOLDER = "uploads"
HASH = re.compile(r"[0-9a-f]{64}")
# Small ones count too: each is a file, and all files of a tenant are looked at when they are counted.
LEAST_BYTES = 4096
MOST_OF_TENANT = 10_000
_GZIP, _TAR_AT, _TAR = b"\x1f\x8b", 257, b"ustar"


@dataclass(slots=True)
class _Used:
    """What a tenant has: what is kept, as it was counted and has changed since then, and what is being received."""

    kept_bytes: int = 0
    kept: int = 0
    coming_bytes: int = 0
    coming: int = 0
    counted: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def count(self, store: ArchiveStore) -> None:
        """Count what is kept, unless that is known."""
        async with self.lock:
            if self.counted:
                return
            self.counted = True  # before it is done: what is pruned meanwhile has it be counted again
            try:
                sizes = await asyncio.to_thread(store.sizes)
            except BaseException:
                self.counted = False
                raise
            self.kept_bytes, self.kept = sum(map(_charge, sizes)), len(sizes)


class Archives:
    """The archives of all tenants, in folders of their own below the service's."""

    def __init__(self, settings: Settings, tenants: Tenants) -> None:
        self._folder, self._settings, self._tenants = settings.data / FOLDER, settings, tenants
        self._stores: dict[str, ArchiveStore] = {}
        self._used: dict[str, _Used] = {}

    def begin(self) -> None:
        """Remove what a service before this one did not receive to its end."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    @property
    def _incoming(self) -> Path:
        return self._folder / ".incoming"

    def of(self, tenant: str) -> ArchiveStore:
        """Return the archives of a tenant."""
        found = self._stores.get(tenant)
        if found is None:
            folder = self._folder / tenant
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self._stores[tenant] = ArchiveStore(folder, most_bytes=self._settings.template_upload_bytes)
        return found

    def has(self, tenant: str, digest: str) -> bool:
        """Return whether there is an archive with that hash. Raises Problem for what is no hash."""
        return self.of(tenant).has(checked_hash(digest))

    async def receive(self, tenant: str, digest: str, body: AsyncIterator[bytes], length: int | None) -> None:
        """Keep what comes, in the place of the archive with the same hash, if it is whole. Raises Problem."""
        most, store = self._tenants.active(tenant).quota.template_upload_bytes, self.of(tenant)
        used = self._used.setdefault(tenant, _Used())
        await used.count(store)
        if used.kept + used.coming >= MOST_OF_TENANT and not store.has(digest):
            raise _over_quota(f"There are already {MOST_OF_TENANT} archives, the limit.")
        self._check(length or 0, used.kept_bytes + used.coming_bytes + _charge(length or 0), most)
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, taken, charged = self._incoming / secrets.token_hex(16), 0, LEAST_BYTES
        used.coming += 1
        used.coming_bytes += charged
        try:
            with path.open("xb") as file:
                async for data in body:
                    taken += len(data)
                    used.coming_bytes += _charge(taken) - charged
                    charged = _charge(taken)
                    # Against all that has come by now: others may have begun together with this one.
                    self._check(taken, used.kept_bytes + used.coming_bytes, most)
                    await asyncio.to_thread(file.write, data)
            if length is not None and taken != length:
                raise _invalid(f"{taken} of {length} bytes were received")
            with path.open("rb") as file:
                head = file.read(_TAR_AT + len(_TAR))
            if not (head.startswith(_GZIP) or head[_TAR_AT:] == _TAR or (head and not head.strip(b"\0"))):
                raise _invalid("It is not a tar")
            async with used.lock:  # not while they are counted
                before = store.take(path, digest)
                used.kept_bytes += charged - (0 if before is None else _charge(before))
                used.kept += before is None
        finally:
            path.unlink(missing_ok=True)
            used.coming -= 1
            used.coming_bytes -= charged

    def _check(self, taken: int, together: int, quota: int | None) -> None:
        """Raise Problem if an archive is too large, or all archives together are."""
        most = self._settings.template_upload_bytes
        if taken > most:
            detail = f"The archive has more than {size(most)}, the most that one may have."
            raise Problem(413, ProblemCode.body_too_large, detail, "Copy fewer files, or leave some out with .dockerignore.")
        if quota is not None and together > quota:
            raise _over_quota(f"The archives of this tenant would take {size(together)}, of {size(quota)} that it may upload.")

    def tenants(self) -> list[str]:
        """Return the tenants that have had something built, or have uploaded something for that."""
        if not self._folder.is_dir():
            return []
        return sorted(each.name for each in self._folder.iterdir() if each.is_dir() and not each.name.startswith("."))

    def prune(self, tenant: str) -> None:
        """Remove archives that no build has used for long. It blocks."""
        if (self._folder / tenant).is_dir():
            self.of(tenant).prune(self._settings.template_unused_seconds)
            if (used := self._used.get(tenant)) is not None:
                used.counted = False

    def forget(self, tenant: str) -> None:
        """Remove all archives of a tenant. It blocks."""
        self._stores.pop(tenant, None)
        self._used.pop(tenant, None)
        shutil.rmtree(self._folder / tenant, ignore_errors=True)


def checked_hash(text: str) -> str:
    """Return the hash of an archive. Raises Problem."""
    if not HASH.fullmatch(text):
        raise Problem(400, ProblemCode.invalid_query, f"{text[:80]!r} is not a hash.", "Give 64 hexadecimal digits.")
    return text


def _charge(size_bytes: int) -> int:
    return max(LEAST_BYTES, size_bytes)


def _over_quota(detail: str) -> Problem:
    hint = "Archives that no build uses go after some days; the operator sets template_upload_bytes."
    return Problem(429, ProblemCode.quota_exceeded, detail, hint, quota="template_upload_bytes")


def _invalid(what: str) -> Problem:
    return Problem(400, ProblemCode.invalid_body, f"The archive is invalid: {what}.", "Upload a whole tar, plain or with gzip.")
