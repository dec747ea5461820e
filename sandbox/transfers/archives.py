"""Pack folders of the host into tar streams, and unpack hostile tar streams into new folders."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sandbox.errors import ErrorCode, OperationError
from sandbox.readers import limit as limit_words
from sandbox.readers import phrased

from . import folders
from .tars import GuardedFile, UnsafeTarError, each_member, open_tar

CHUNK = 256 * 1024
BLOCK = tarfile.BLOCKSIZE
MAX_ENTRIES = 200_000
SHOWN_NAMES = 100
MOST_PATH_BYTES, MOST_NAME_BYTES = 4096, 255  # of Linux
MOST_LINK_PARTS = 200


def file_chunks(path: Path, limit: int) -> Iterator[bytes]:
    """Yield the bytes of a file. Raises OperationError ``file_too_large`` past ``limit`` bytes."""
    sent = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sent += len(chunk)
            if sent > limit:
                raise _too_large(path, limit)
            yield chunk


def tree_chunks(root: Path, limit: int) -> Iterator[bytes]:
    """Yield a tar of what is below ``root``: files, folders and links as they are, but no devices, pipes and sockets."""
    sent = 0
    top = os.path.join(root, "")
    for entry in folders.walk(top):
        for chunk in entry_chunks(entry.path, entry.path[len(top) :]):
            sent += len(chunk)
            if sent > limit:
                raise _too_large(root, limit)
            yield chunk
    yield bytes(2 * BLOCK)


def entry_chunks(path: str, name: str, *, date: int | None = None) -> Iterator[bytes]:
    """Yield one file, folder or link as it is in a tar under ``name``, and nothing for other things. ``date`` replaces its own."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise folders.too_long(path) from error
        raise
    info = tarfile.TarInfo(name)
    info.mode = status.st_mode & 0o777
    info.mtime = int(status.st_mtime) if date is None else date
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        info.size = status.st_size
    else:
        return
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    if info.size:
        yield from _padded(Path(path), info.size)


def _padded(path: Path, size: int) -> Iterator[bytes]:
    """Yield exactly ``size`` bytes of the file, zeros if it has shrunk meanwhile, and the padding to a whole block."""
    left = size
    with path.open("rb") as file:
        while left > 0:
            chunk = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
            left -= len(chunk)
            yield chunk
    if size % BLOCK:
        yield bytes(BLOCK - size % BLOCK)


def unpack(archive: BinaryIO, target: Path, limit: int) -> tuple[int, int, list[str]]:
    """Unpack a hostile tar, a file that can seek, into the new folder ``target``. Returns (files, bytes, names that were skipped).

    Nothing is written outside ``target``: links are made only after every file, and only those that stay inside. Devices, pipes
    and set-id bits are dropped. Raises OperationError ``unsafe_archive`` for ``..``, absolute names and too many entries or bytes,
    after removing ``target``.
    """
    target.mkdir(mode=0o755)
    try:
        with _in_words(target):
            return _unpack(archive, target, limit)
    except BaseException:
        folders.remove(target)
        raise


def _unpack(archive: BinaryIO, target: Path, limit: int) -> tuple[int, int, list[str]]:
    files = total = count = 0
    made = _Folders(target)
    links: list[tuple[Path, str]] = []
    skipped: list[str] = []
    with open_tar(GuardedFile(archive), errorlevel=2) as tar:
        for member in each_member(tar):
            count += 1
            if count > MAX_ENTRIES:
                raise _unsafe(f"it has more than {MAX_ENTRIES} entries")
            path = _inside(target, member.name)
            if member.isdir():
                made.make(path)
            elif member.issym() and _is_short(member.linkname):
                links.append((path, member.linkname))
            elif member.isreg():
                total += member.size
                if total > limit:
                    raise _unsafe(f"it unpacks to more than {limit} bytes")
                made.make(path.parent)
                _write(tar, member, path)
                files += 1
            else:
                skipped.append(member.name[:500])
    return files, total, (skipped + _make_links(made, links))[:SHOWN_NAMES]
@contextmanager
def _in_words(target: Path) -> Iterator[None]:
    """Raise as OperationError what a hostile tar makes tarfile and the host's file system raise."""
    try:
        yield
    except UnsafeTarError as error:
        raise _unsafe(str(error)) from error
    except (tarfile.TarError, ValueError, FileExistsError, NotADirectoryError, IsADirectoryError, EOFError) as error:
        raise _unsafe(f"it is damaged or contradicts itself ({type(error).__name__})") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise folders.too_long(str(target)) from error
        raise


class _Folders:
    """Makes the folders of one archive below ``target``: a name may have two thousand of them, which count as its entries do."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._known = {target}

    def make(self, folder: Path) -> None:
        """Make it, and those above it. Raises OperationError, OSError."""
        missing: list[Path] = []
        while folder not in self._known:
            missing.append(folder)
            folder = folder.parent
        if len(self._known) + len(missing) > MAX_ENTRIES:
            raise _unsafe(f"it has more than {MAX_ENTRIES} folders")
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
        self._known.update(missing)


def _is_short(target: str) -> bool:
    """Return whether the target of a link is one that is looked at: each part of it costs some microseconds."""
    return len(os.fsencode(target)) < MOST_PATH_BYTES and target.count("/") <= MOST_LINK_PARTS


def _inside(target: Path, name: str) -> Path:
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or not parts:
        raise _unsafe(f"the name {name[:200]!r} leads out of it")
    if len(os.fsencode(name)) >= MOST_PATH_BYTES or any(len(os.fsencode(part)) > MOST_NAME_BYTES for part in parts):
        raise _unsafe(f"the name {name[:200]!r}... is longer than a file may have")
    return target.joinpath(*parts)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, member.mode & 0o777 | 0o200), "wb") as file:
        if source is not None:
            shutil.copyfileobj(source, file, CHUNK)


def _make_links(folders_made: _Folders, links: list[tuple[Path, str]]) -> list[str]:
    """Make the links that stay inside, directly and through each other. Returns the names of the others.

    Their folders come first: a folder that is made through a link would be one elsewhere on this host.
    """
    target = folders_made.target
    skipped: list[str] = []
    made: list[Path] = []
    root = os.path.realpath(target)
    wanted: list[tuple[Path, str]] = []
    for path, destination in links:
        try:
            folders_made.make(path.parent)
            wanted.append((path, destination))
        except OSError:  # its folder is a file
            skipped.append(str(path.relative_to(target)))
    for path, destination in wanted:
        try:
            path.symlink_to(destination)
            made.append(path)
        except (OSError, ValueError):
            skipped.append(str(path.relative_to(target)))
    while out := {p for p in made if os.path.isabs(os.readlink(p)) or not _stays(root, p)}:
        for path in out:
            path.unlink()
        skipped += sorted(str(path.relative_to(target)) for path in out)
        made = [path for path in made if path not in out]
    return skipped


def _stays(root: str, path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a chain of more than 40 links: following it here would take for ever
            return False
    real = os.path.realpath(path)
    return real == root or real.startswith(root + os.sep)


def _unsafe(problem: str) -> OperationError:
    return OperationError(
        ErrorCode.unsafe_archive,
        f"The archive was refused: {problem}.",
        "Nothing was kept; copy fewer or plainer files.",
    )


def _too_large(path: Path, limit: int) -> OperationError:
    return OperationError(
        ErrorCode.file_too_large,
        f"{path} is larger than the transfer limit of {limit} bytes.",
        phrased("Copy a part of it, or raise {limit}.", limit=limit_words("transfer_bytes")),
    )
