"""Archives that tenants upload for their builds: sized while they come, and kept by the hash that their clients have given them."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from sandbox.client.http.codes import ProblemCode
from sandbox.docker.builds.archives import ArchiveStore
from sandbox.service.http.problems import Problem
from sandbox.service.settings import Settings
from sandbox.service.tenants.tenants import Tenants
from sandbox.text.wording import size

FOLDER = "uploads"
HASH = re.compile(r"[0-9a-f]{64}")
PIECE_BYTES = 1 << 20
_GZIP, _TAR_AT, _TAR = b"\x1f\x8b", 257, b"ustar"


class Archives:
    """The archives of all tenants, in folders of their own below the service's."""

    def __init__(self, settings: Settings, tenants: Tenants) -> None:
        self._folder, self._settings, self._tenants = settings.data / FOLDER, settings, tenants
        self._stores: dict[str, ArchiveStore] = {}
        self._coming: Counter[str] = Counter()

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

    def used_bytes(self, tenant: str) -> int:
        """Return what the archives of a tenant take, with those that are being received."""
        return self._coming[tenant] + (self.of(tenant).bytes_used() if (self._folder / tenant).is_dir() else 0)

    async def receive(self, tenant: str, digest: str, body: AsyncIterator[bytes], length: int | None) -> None:
        """Keep what comes, in the place of the archive with the same hash, if it is whole. Raises Problem."""
        store, room = self.of(tenant), self._room(tenant)
        self._check(length or 0, room)
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, taken = self._incoming / secrets.token_hex(16), 0
        try:
            with path.open("xb") as file:
                async for data in body:
                    taken += len(data)
                    self._coming[tenant] += len(data)
                    self._check(taken, room)
                    await asyncio.to_thread(file.write, data)
            if length is not None and taken != length:
                raise _invalid(f"{taken} of {length} bytes were received")
            with path.open("rb") as file:
                head = file.read(_TAR_AT + len(_TAR))
            if not (head.startswith(_GZIP) or head[_TAR_AT:] == _TAR or (head and not head.strip(b"\0"))):
                raise _invalid("It is not a tar")
            await asyncio.to_thread(store.put, _pieces(path), name=digest)
        finally:
            path.unlink(missing_ok=True)
            self._coming[tenant] -= taken
            if not self._coming[tenant]:
                del self._coming[tenant]

    def _room(self, tenant: str) -> int | None:
        most = self._tenants.active(tenant).quota.template_upload_bytes
        return None if most is None else most - self.used_bytes(tenant)

    def _check(self, wanted: int, room: int | None) -> None:
        most = self._settings.template_upload_bytes
        if wanted > most:
            detail = f"The archive has more than {size(most)}, the most that one may have."
            raise Problem(413, ProblemCode.body_too_large, detail, "Copy fewer files, or leave some out with .dockerignore.")
        if room is not None and wanted > room:
            raise Problem(
                429,
                ProblemCode.quota_exceeded,
                f"The archive does not fit into the {size(max(0, room))} that are left of the tenant's quota for uploads.",
                "Archives that no build uses go after some days; the operator sets template_upload_bytes.",
                quota="template_upload_bytes",
            )

    def tenants(self) -> list[str]:
        """Return the tenants that have had something built, or have uploaded something for that."""
        if not self._folder.is_dir():
            return []
        return sorted(each.name for each in self._folder.iterdir() if each.is_dir() and not each.name.startswith("."))

    def prune(self, tenant: str) -> None:
        """Remove archives that no build has used for long. It blocks."""
        if (self._folder / tenant).is_dir():
            self.of(tenant).prune(self._settings.template_unused_seconds)

    def forget(self, tenant: str) -> None:
        """Remove all archives of a tenant. It blocks."""
        self._stores.pop(tenant, None)
        shutil.rmtree(self._folder / tenant, ignore_errors=True)


def checked_hash(text: str) -> str:
    """Return the hash of an archive. Raises Problem."""
    if not HASH.fullmatch(text):
        raise Problem(400, ProblemCode.invalid_query, f"{text[:80]!r} is not a hash.", "Give 64 hexadecimal digits.")
    return text


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield data


def _invalid(what: str) -> Problem:
    return Problem(400, ProblemCode.invalid_body, f"The archive is invalid: {what}.", "Upload a whole tar, plain or with gzip.")
