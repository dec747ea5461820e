"""What the cache keeps in its directory: pages, and files by the hash of their bytes. Many processes may share it.

Whatever stands there under its own name is whole: it was written beside it, checked, and renamed. It is checked again when it is
read for the first time in a process, and thrown away where it has changed: disks and people do that.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
# Locks are shared by all keys with the same beginning of their hash, so that their number is bounded.
_LOCK_CHARS = 3
_LOCK_LOOK_SECONDS = 0.02
# A file that nobody has written to for so long was left by a process that died.
LEFT_SECONDS = 3600.0
# So much goes at least when there is too much, so that not every new file looks through all.
KEPT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Page:
    """What an upstream answered; ``checked`` is when it last said that this is current (Unix time)."""

    body: bytes
    kind: str
    etag: str
    modified: str
    checked: float

    def is_fresh(self, seconds: float) -> bool:
        """Whether it need not be asked for again."""
        return 0 <= time.time() - self.checked < seconds


class Store:
    """One directory that ``PackageCache.place`` made; for any thread. Methods block on the disk and raise OSError."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._folder = folder
        self._lock = threading.Lock()
        self._trusted: dict[str, tuple[int, int, int]] = {}

    # --- pages ------------------------------------------------------------------
    def page(self, key: str) -> Page | None:
        """The page kept under ``key``; None where there is none, or it is damaged."""
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
            log.warning("a damaged page of the package cache is thrown away: %s: %s", path, error)
            path.unlink(missing_ok=True)
            return None
        _touch(path)
        return page

    def keep_page(self, key: str, page: Page) -> None:
        """Keep it under ``key``, in place of what is there."""
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

    # --- files ------------------------------------------------------------------
    def open(self, digest: str) -> BinaryIO | None:
        """The file with that digest ("sha256-..."), opened; None where there is none, or it is damaged."""
        path = self._folder / "files" / digest
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        signature = _signature(os.fstat(file.fileno()))
        if self._trusted.get(digest) != signature:
            if digest_of(file, digest.partition("-")[0]) != digest:
                file.close()
                log.warning("a damaged file of the package cache is thrown away: %s", path)
                path.unlink(missing_ok=True)
                return None
            self._trusted[digest] = signature
            file.seek(0)
        _touch(path)
        return file

    def keep_file(self, part: Path, digest: str) -> None:
        """Keep a file from ``incoming`` whose bytes have that digest, as whoever wrote it knows."""
        path = self._folder / "files" / digest
        self._trusted[digest] = _signature(part.stat())
        part.replace(path)
        self._prune(path)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[BinaryIO]:
        """A new file that is gone afterwards, unless it was moved."""
        name = self._folder / "incoming" / secrets.token_hex(8)
        with name.open("xb") as file:
            try:
                yield file
            finally:
                name.unlink(missing_ok=True)

    # --- locks, room ------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def locked(self, key: str) -> AsyncIterator[None]:
        """Alone with ``key``, among all threads and processes; waits without holding up the loop."""
        name = hashlib.sha256(key.encode()).hexdigest()[:_LOCK_CHARS]
        with (self._folder / "locks" / name).open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_LOOK_SECONDS)
            yield

    def _prune(self, newest: Path) -> None:
        """Throw away what was not used for longest, where there is too much; never ``newest``."""
        with self._lock:
            now = time.time()
            for part in (self._folder / "incoming").iterdir():
                with contextlib.suppress(OSError):
                    if now - part.stat().st_mtime > LEFT_SECONDS:
                        part.unlink()
            found = []
            for path in (*(self._folder / "pages").iterdir(), *(self._folder / "files").iterdir()):
                with contextlib.suppress(OSError):  # another process throws away, too
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
def store_of(folder: Path, max_bytes: int) -> Store:
    """The same one for all sandboxes of this process: what one has checked, the next need not."""
    return Store(folder, max_bytes)


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def digest_of(file: BinaryIO, kind: str) -> str:
    """The digest of what is left of ``file``, as in "sha256-0123..."."""
    digest = hashlib.new(kind)
    while piece := file.read(READ_BYTES):
        digest.update(piece)
    return f"{kind}-{digest.hexdigest()}"


def _touch(path: Path) -> None:
    """Note that it was used: many disks are mounted without access times."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
