"""Store pages, and files by the hash of their bytes, in a directory that several processes may share.

An entry under its final name is complete: it was written elsewhere, checked and renamed. Each process checks it again at the first
read, and removes it if it has changed, as disks and people may cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from sandbox.frozen import dataclass

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
# All keys whose hashes begin alike share a lock file, so that their number is bounded.
_LOCK_CHARS = 3
_LOCK_POLL_SECONDS = 0.02
# An incoming file that was not written to for this long belongs to a process that died.
ABANDONED_SECONDS = 3600.0
# A full store is reduced to this share of its size, so that not every new file searches all entries.
KEPT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Page:
    """A page of an upstream. ``checked`` is the Unix time at which the upstream last called it current."""

    body: bytes
    kind: str
    etag: str
    modified: str
    checked: float

    def is_fresh(self, seconds: float) -> bool:
        """Return whether the page was checked within the last ``seconds``."""
        return 0 <= time.time() - self.checked < seconds


class Store:
    """The directory that ``PackageCache.prepare_directory`` made. Safe for use by several threads.

    Its methods block on the disk and raise OSError.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._folder = folder
        self._lock = threading.Lock()
        self._trusted: dict[str, tuple[int, int, int]] = {}

    def page(self, key: str) -> Page | None:
        """Return the page stored under ``key``, or None if it is missing or damaged."""
        path = self._page_path(key)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            fields = json.loads(head)
            if fields.pop("key") != key or fields.pop("sha256") != hashlib.sha256(body).hexdigest():
                raise ValueError("its bytes have changed")
            page = Page(body=body, **fields)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a damaged page of the package cache is removed: %s: %s", path, error)
            path.unlink(missing_ok=True)
            return None
        _touch(path)
        return page

    def keep_page(self, key: str, page: Page) -> None:
        """Store ``page`` under ``key`` and replace what is there."""
        fields = asdict(page)
        body = fields.pop("body")
        fields |= {"key": key, "sha256": hashlib.sha256(body).hexdigest()}
        with self.incoming() as part:
            part.write(json.dumps(fields).encode() + b"\n" + body)
            part.flush()
            Path(part.name).replace(self._page_path(key))
        self._prune(self._page_path(key))

    def _page_path(self, key: str) -> Path:
        return self._folder / "pages" / hashlib.sha256(key.encode()).hexdigest()

    def open(self, digest: str) -> BinaryIO | None:
        """Open the file with that digest ("sha256-..."). Returns None if it is missing or damaged."""
        path = self._folder / "files" / digest
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        signature = _signature(os.fstat(file.fileno()))
        if self._trusted.get(digest) != signature:
            if hash_file(file, digest.partition("-")[0]) != digest:
                file.close()
                log.warning("a damaged file of the package cache is removed: %s", path)
                path.unlink(missing_ok=True)
                return None
            self._trusted[digest] = signature
            file.seek(0)
        _touch(path)
        return file

    def keep_file(self, part: Path, digest: str) -> None:
        """Store a file from ``incoming``. The caller has computed the digest of its bytes."""
        path = self._folder / "files" / digest
        self._trusted[digest] = _signature(part.stat())
        part.replace(path)
        self._prune(path)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[BinaryIO]:
        """Create a file that is removed at the end of the block, unless it was moved."""
        name = self._folder / "incoming" / secrets.token_hex(8)
        with name.open("xb") as file:
            try:
                yield file
            finally:
                name.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def locked(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of ``key`` against all threads and processes. Waits without blocking the loop."""
        name = hashlib.sha256(key.encode()).hexdigest()[:_LOCK_CHARS]
        with (self._folder / "locks" / name).open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_POLL_SECONDS)
            yield

    def _prune(self, newest: Path) -> None:
        """Remove the least recently used entries if the store is too large, but never ``newest``."""
        with self._lock:
            now = time.time()
            for part in (self._folder / "incoming").iterdir():
                with contextlib.suppress(OSError):
                    if now - part.stat().st_mtime > ABANDONED_SECONDS:
                        part.unlink()
            found = []
            for path in (*(self._folder / "pages").iterdir(), *(self._folder / "files").iterdir()):
                with contextlib.suppress(OSError):  # another process removes entries, too
                    status = path.stat()
                    found.append((status.st_atime_ns, status.st_size, path))
            total = sum(size for _, size, _ in found)
            if total <= self.max_bytes:
                return
            for _, size, path in sorted(found):
                if total <= self.max_bytes * KEPT_SHARE:
                    break
                if path != newest:
                    path.unlink(missing_ok=True)
                    total -= size


@functools.cache
def shared_store(folder: Path, max_bytes: int) -> Store:
    """Return the one store of this process for a folder, so that a file is checked once and not per sandbox."""
    return Store(folder, max_bytes)


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def hash_file(file: BinaryIO, kind: str) -> str:
    """Return the digest of the rest of ``file``, as in "sha256-0123..."."""
    digest = hashlib.new(kind)
    while piece := file.read(READ_BYTES):
        digest.update(piece)
    return f"{kind}-{digest.hexdigest()}"


def _touch(path: Path) -> None:
    """Set the access time: many disks are mounted without access times."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
