"""Unpacking a tar stream into a folder. The archive is hostile: nothing is made outside the roots."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator

from ..protocol.chunks import ChunkReader
from ..protocol.faults import Fault
from .roots import Roots, printable
from .tree_walk import DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

ENTRIES = 200_000
HEADER_BYTES = 1 << 20  # the longest extended header: tarfile holds it in memory
CHUNK = 1 << 18
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
EXTENDED = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


def unpack(roots: Roots, path: str, body: Iterator[bytes], limit: int) -> dict[str, Any]:
    """Unpack at most ``limit`` bytes into the folder ``path``, which is made if missing and merged with its contents otherwise.

    Raises Fault ``unsafe_archive`` for names that lead out, devices and the like, and invalid archives. What was unpacked before
    stays (effects "partial", the counts in the result).
    """
    unpacking = _Unpacking(roots, path, limit)
    try:
        unpacking.run(ChunkReader(body))
    except Fault as fault:
        raise unpacking.add_effects(fault) from None
    except (tarfile.TarError, ValueError, LookupError, ArithmeticError, EOFError) as error:
        raise unpacking.add_effects(Fault("unsafe_archive", path=roots.display(path), problem=str(error))) from None
    except OSError as error:
        raise unpacking.add_effects(roots.fault_for(error, unpacking.at)) from None
    finally:
        unpacking.close()
    return unpacking.result()


class _Member(tarfile.TarInfo):
    """A header with bounded extensions: tarfile would read them into memory, as long as the archive says they are."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        if self.type in EXTENDED and self.size > HEADER_BYTES:
            raise tarfile.ReadError("an extended header is too long")
        made: Self = super()._proc_member(archive)  # type: ignore[misc]
        return made


class _Unpacking:
    def __init__(self, roots: Roots, path: str, limit: int) -> None:
        self._roots, self._path, self._limit = roots, path, limit
        self.at = path
        self._folder: tuple[bytes, int] | None = None
        self._modes: list[tuple[str, int]] = []
        self._changed = False
        self._files = self._size = 0

    def result(self) -> dict[str, Any]:
        return {"path": self._roots.display(self._path), "files": self._files, "size_bytes": self._size}

    def add_effects(self, fault: Fault) -> Fault:
        """Add to a fault what was unpacked before it."""
        if self._changed:
            fault.effects, fault.result = "partial", self.result()
        return fault

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder[1])
            self._folder = None

    def run(self, stream: ChunkReader) -> None:
        self._enter(b"")
        with tarfile.open(
            fileobj=stream,
            mode="r|",
            tarinfo=_Member,
            encoding="utf-8",
            errors="surrogateescape",  # type: ignore[call-overload]
        ) as archive:
            for count, member in enumerate(archive):
                if count >= ENTRIES:
                    raise self._unsafe(f"it has more than {ENTRIES} entries")
                archive.members = []  # or it would hold every header in memory
                self._unpack_member(archive, member)
        while stream.read(CHUNK):  # the padding at its end
            pass
        self.close()
        for path, mode in reversed(self._modes):
            fd = self._roots.open(path, DIRECTORY & ~os.O_NOFOLLOW)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def _unpack_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if not parts:
            return
        self.at = os.path.join(self._path, b"/".join(parts).decode("utf-8", "surrogateescape"))
        self._changed = True
        if member.type == tarfile.DIRTYPE:
            self._enter(b"/".join(parts))
            self._modes.append((self.at, member.mode & 0o777))
            return
        folder, name = self._enter(b"/".join(parts[:-1])), parts[-1]
        if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) and not member.issparse():
            self._write_file(archive, member, folder, name)
        elif member.type == tarfile.SYMTYPE:
            target = member.linkname.encode("utf-8", "surrogateescape")
            _unlink_if_there(folder, name)
            os.symlink(target, name, dir_fd=folder)
        elif member.type == tarfile.LNKTYPE:
            self._link_file(member, folder, name)
        else:
            raise self._unsafe(f"{printable(b'/'.join(parts))} is neither a file nor a folder nor a link")

    def _parts(self, name: str) -> list[bytes]:
        raw = name.encode("utf-8", "surrogateescape")
        parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
        if raw.startswith(b"/") or b".." in parts or b"\0" in raw:
            raise self._unsafe(f"the name {printable(raw[:200])!r} leads out of the folder")
        return parts

    def _unsafe(self, problem: str) -> Fault:
        return Fault("unsafe_archive", path=self._roots.display(self._path), problem=problem)

    def _enter(self, below: bytes) -> int:
        """Open the folder ``below`` beneath the target, made if missing. Links on the way are followed only inside the roots."""
        if self._folder is None or self._folder[0] != below:
            fd, made = self._roots.make_dirs(os.path.join(self._path, below.decode("utf-8", "surrogateescape")))
            self._changed = self._changed or made > 0
            self.close()
            self._folder = (below, fd)
        return self._folder[1]

    def _write_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: bytes) -> None:
        if member.size < 0:
            raise self._unsafe("it has a file of negative size")
        if self._size + member.size > self._limit:
            size = self._size + member.size
            raise Fault("file_too_large", path=self._roots.display(self._path), size_bytes=size, limit=self._limit)
        source = archive.extractfile(member)
        if source is None:
            raise self._unsafe(f"{member.name[:200]!r} has no content")
        _unlink_if_there(folder, name)
        fd = os.open(name, NEW, 0o600, dir_fd=folder)
        try:
            while chunk := source.read(CHUNK):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view) :]
            os.fchmod(fd, member.mode & 0o777)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(fd)
        self._files += 1
        self._size += member.size

    def _link_file(self, member: tarfile.TarInfo, folder: int, name: bytes) -> None:
        """Make another name of a file of this archive; tar makes such entries for files with two names."""
        parts = self._parts(member.linkname)
        if not parts:
            raise self._unsafe(f"the hard link {member.name[:200]!r} leads nowhere")
        source = os.path.join(self._path, b"/".join(parts).decode("utf-8", "surrogateescape"))
        source_dir, source_name = self._roots.open_parent(source)
        try:
            if not stat.S_ISREG(os.stat(source_name, dir_fd=source_dir, follow_symlinks=False).st_mode):
                raise self._unsafe(f"the hard link {member.name[:200]!r} leads to no file")
            _unlink_if_there(folder, name)
            os.link(source_name, name, src_dir_fd=source_dir, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source_dir)
        self._files += 1


def _unlink_if_there(folder: int, name: bytes) -> None:
    """Delete a file or link if there is one. Raises OSError for a folder, which stays."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
