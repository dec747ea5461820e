"""Streaming files and trees of folders into the sandbox and out of it."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator

from ..loop.context import Call
from ..protocol.faults import Fault
from .replacement import Replacement
from .roots import Roots, printable, readable_roots_of, roots_of
from .tree_walk import DIRECTORY, Item, walk
from .unpacking import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 18
SKIPPED_NAMES = 100


def upload(call: Call) -> dict[str, Any]:
    """Handle ``upload``: put a file in place in one step, or unpack a tar stream into a folder. Raises Fault."""
    path: str = call.args["path"]
    limit = int(call.place.limits["transfer_bytes"])
    if call.args.get("kind") == "tree":
        return unpack(roots_of(call.place), path, call.body(), limit)
    size = 0
    with Replacement(call.place, path, call.args.get("mode")) as new:
        for chunk in call.body():
            size += len(chunk)
            if size > limit:
                raise Fault("file_too_large", path=new.displayed, size_bytes=size, limit=limit, effects=new.effects)
            new.write(chunk)
        new.set_attributes(call.args.get("attributes") or {})
        new.commit()
    return {"path": new.displayed, "files": 1, "size_bytes": size}


def download(call: Call) -> dict[str, Any]:
    """Handle ``download``: send the bytes of a file, or a tar stream of a folder; ``kind`` says which. Raises Fault."""
    path: str = call.args["path"]
    roots = readable_roots_of(call.place)
    limit = int(call.place.limits["transfer_bytes"])
    try:
        fd, status = roots.open_regular(path)
    except Fault as fault:
        if fault.code != "is_a_directory":
            raise
        without = frozenset(name.encode("utf-8", "surrogateescape") for name in call.args.get("without") or ())
        return _Tree(call, roots, path, limit, without).send()
    try:
        if status.st_size > limit:
            raise Fault("file_too_large", path=roots.display(path), size_bytes=status.st_size, limit=limit)
        sent = 0
        for chunk in chunks_of(fd, status.st_size or limit):  # those of /proc say that they are empty
            call.send(chunk)
            sent += len(chunk)
    except OSError as error:
        raise roots.fault_for(error, path) from None
    finally:
        os.close(fd)
    return {"path": roots.display(path), "kind": "file", "files": 1, "size_bytes": sent, "skipped": []}


def chunks_of(fd: int, size: int) -> Iterator[bytes]:
    """Yield at most ``size`` bytes of a file from its current offset; fewer if it ends before."""
    while size > 0 and (chunk := os.read(fd, min(CHUNK, size))):
        yield chunk
        size -= len(chunk)


class _Tree:
    """Sends a folder as a tar archive of at most ``limit`` bytes, valid whatever happens to the files meanwhile.

    Names in ``without`` are left out.
    """

    def __init__(self, call: Call, roots: Roots, path: str, limit: int, without: frozenset[bytes]) -> None:
        self._without = without
        self._call, self._roots, self._path, self._limit = call, roots, path, limit
        self._top = roots.open(path, DIRECTORY & ~os.O_NOFOLLOW)
        self._streamed = 0
        self._skipped: list[str] = []
        self._files = self._size = 0

    def write(self, block: bytes) -> int:
        """Send a block of the archive; tarfile calls this."""
        self._streamed += len(block)
        if self._streamed > self._limit + tarfile.RECORDSIZE:  # the end of an archive is padded
            raise self._too_large(self._streamed)
        self._call.send(bytes(block))
        return len(block)

    def send(self) -> dict[str, Any]:
        """Stream the archive. Returns the result of the operation."""
        items = walk(self._top, on_skip=self._skip, accept=lambda name: name not in self._without)
        try:
            with tarfile.open(
                fileobj=self, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
            ) as archive:  # type: ignore[call-overload]
                for item in items:
                    self._add(archive, item)
        except OSError as error:
            raise self._roots.fault_for(error, self._path) from None
        finally:
            items.close()
        return self._result()

    def _result(self) -> dict[str, Any]:
        path = self._roots.display(self._path)
        return {"path": path, "kind": "tree", "files": self._files, "size_bytes": self._size, "skipped": self._skipped}

    def _skip(self, path: bytes) -> None:
        if len(self._skipped) < SKIPPED_NAMES:
            self._skipped.append(printable(path))

    def _too_large(self, size: int) -> Fault:
        path = self._roots.display(self._path)
        return Fault("file_too_large", path=path, size_bytes=size, limit=self._limit, result=self._result())

    def _add(self, archive: tarfile.TarFile, item: Item) -> None:
        member = tarfile.TarInfo(item.path.decode("utf-8", "surrogateescape"))
        member.mode, member.mtime = stat.S_IMODE(item.status.st_mode) & 0o777, int(item.status.st_mtime)
        mode = item.status.st_mode
        if stat.S_ISDIR(mode):
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        elif stat.S_ISREG(mode):
            self._add_file(archive, item, member)
        elif stat.S_ISLNK(mode):
            self._add_link(archive, item, member)
        else:
            self._skip(item.path)

    def _add_link(self, archive: tarfile.TarFile, item: Item, member: tarfile.TarInfo) -> None:
        try:
            target = os.readlink(item.name, dir_fd=item.folder_fd)
        except OSError:  # no longer a link
            self._skip(item.path)
            return
        member.type, member.linkname = tarfile.SYMTYPE, target.decode("utf-8", "surrogateescape")
        archive.addfile(member)

    def _add_file(self, archive: tarfile.TarFile, item: Item, member: tarfile.TarInfo) -> None:
        try:
            fd = os.open(
                item.name,
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
                dir_fd=item.folder_fd,
            )
        except OSError:  # unreadable, or gone
            self._skip(item.path)
            return
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                self._skip(item.path)
                return
            if before.st_size > self._limit - self._streamed:
                raise self._too_large(self._streamed + before.st_size)
            member.size = before.st_size
            archive.addfile(member, _Padded(fd))
            after = os.fstat(fd)
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                self._skip(item.path)
        finally:
            os.close(fd)
        self._files += 1
        self._size += member.size


class _Padded(io.RawIOBase):
    """A file that never ends: if it is truncated while it is read, zeros follow, so that the archive stays valid."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def read(self, size: int = -1, /) -> bytes:
        """Exactly ``size`` bytes."""
        parts = []
        try:
            for chunk in chunks_of(self._fd, size):
                parts.append(chunk)
                size -= len(chunk)
        except OSError:  # unreadable now: zeros follow
            pass
        return b"".join([*parts, bytes(size)])
