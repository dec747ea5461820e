"""Checkpoints as files of the host: a tar of ``workspace/`` and ``home/`` that any tar program can read, and the sessions."""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from sandbox.errors import ErrorCode, OperationError, SandboxUnavailableError
from sandbox.guest.protocol.chunks import ChunkReader
from sandbox.guest.protocol.records import FILE, FOLDER, HOME, LINK, PART, WORKSPACE, check_sessions
from sandbox.readers import limit, phrased
from sandbox.text.wording import size
from sandbox.transfers.tars import GuardedFile, UnsafeTarError, each_member, open_tar

from .checkpoint import Checkpoint, summary
from .store import Store, content_reader, parts_of
from .table import Entry, Key, Table, check_entries, pack

NAMES = {WORKSPACE: "workspace", HOME: "home"}
ABOUT = "gamebox.json"
VERSION = 1
CHUNK = 1 << 18
MOST_ENTRIES = 500_000
# Exceptions that reading a damaged or malicious file can raise.
UNSOUND = (
    tarfile.TarError,
    KeyError,
    ValueError,
    TypeError,
    EOFError,
    OverflowError,
    RecursionError,
    struct.error,
    SandboxUnavailableError,
)


def save(checkpoint: Checkpoint, store: Store, path: str | os.PathLike[str], most: int) -> int:
    """Write a checkpoint to a new file and return its size in bytes. Removes the file if it fails.

    Raises OSError, OperationError ``file_too_large`` if the files have more than ``most`` bytes: holes are zeros in a tar.
    """
    if checkpoint.result.size_bytes > most:
        raise OperationError(
            ErrorCode.file_too_large,
            f"The files of {checkpoint.result.id!r} have {size(checkpoint.result.size_bytes)}, more than {size(most)}.",
            phrased("Delete what is not needed, or raise {limit}.", limit=limit("checkpoint_bytes")),
        )
    with open(path, "xb") as file:  # noqa: PTH123
        try:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
                about = json.dumps({"version": VERSION, "sessions": dict(checkpoint.sessions)}).encode()
                member = tarfile.TarInfo(ABOUT)
                member.size = len(about)
                archive.addfile(member, io.BytesIO(about))
                firsts: dict[tuple[int, int, int], str] = {}
                for entry in checkpoint.table.entries().values():
                    _add(archive, entry, checkpoint.digests.get(entry.key), store, firsts)
            file.flush()  # a full disk is reported here, not when the file is closed
            return file.tell()
        except BaseException:
            os.unlink(path)  # noqa: PTH108
            raise


def _add(
    archive: tarfile.TarFile, entry: Entry, digest: bytes | None, store: Store, firsts: dict[tuple[int, int, int], str]
) -> None:
    name = f"{NAMES[entry.root]}/{entry.path.decode('utf-8', 'surrogateescape')}".rstrip("/")
    member = tarfile.TarInfo(name)
    member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
    member.mtime = entry.mtime // 10**9
    member.pax_headers = {"mtime": f"{entry.mtime // 10**9}.{entry.mtime % 10**9:09d}"}
    if entry.kind == FOLDER:
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif entry.kind == LINK:
        member.type, member.linkname = tarfile.SYMTYPE, entry.target.decode("utf-8", "surrogateescape")
        archive.addfile(member)
    elif entry.kind == FILE and digest is not None:
        group = (entry.root, entry.device, entry.inode)
        if entry.names > 1 and firsts.setdefault(group, name) != name:
            member.type, member.linkname = tarfile.LNKTYPE, firsts[group]
            archive.addfile(member)
            return
        member.size = entry.size
        archive.addfile(member, ChunkReader(_with_holes(store.pieces(digest))))


def _with_holes(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file from its content, zeros for holes."""
    reader, end = content_reader(pieces), 0
    for at, length in parts_of(reader):
        while end < at:
            piece = bytes(min(CHUNK, at - end))
            end += len(piece)
            yield piece
        while length:
            piece = reader.read_some(min(CHUNK, length))
            length, end = length - len(piece), end + len(piece)
            yield piece


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OperationError ``not_a_regular_file`` for anything else, OSError.

    Does not wait for a writer of a named pipe.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OperationError(
            ErrorCode.not_a_regular_file,
            f"{os.fspath(path)!r} is not a regular file.",
            "Give a file that save_checkpoint made.",
        )
    return os.fdopen(fd, "rb")


def load(file: BinaryIO, path: str, ident: str, store: Store) -> Checkpoint:
    """Load the checkpoint in a file that ``save`` made, at ``path``.

    Raises OperationError ``unsafe_archive`` for other files, OSError.
    """
    entries: dict[Key, Entry] = {}
    digests: dict[Key, bytes] = {}
    about: Mapping[str, Any] = {}
    try:
        with open_tar(GuardedFile(file), errors="surrogateescape") as archive:
            for number, member in enumerate(each_member(archive)):
                if number > MOST_ENTRIES:
                    raise _unusable(path, f"it has more than {MOST_ENTRIES} entries")
                if number == 0:
                    about = _about(archive, member)
                    continue
                entry = _entry(member, number, entries)
                entries[entry.key] = entry
                if entry.kind == FILE:
                    known = digests.get(_key(member.linkname)) if member.islnk() else None
                    if known is None:
                        known, _ = store.add(_content(archive, member))
                    else:
                        store.keep([known])
                    digests[entry.key] = known
        _count_names(entries)
        check_entries(list(entries.values()))
        sessions = check_sessions(about["sessions"])
        # No file of the sandbox can be known to be the same: no change time equals this one.
        table = Table(pack(entries.values()), 0, False)
    except UNSOUND as error:
        store.drop(digests.values())
        problem = f"it is damaged or contradicts itself ({type(error).__name__})"
        raise _unusable(path, str(error) if isinstance(error, UnsafeTarError) else problem) from error
    except BaseException:
        store.drop(digests.values())
        raise
    made = Checkpoint(summary(ident, entries, digests, store.used_bytes), table, digests, sessions)
    return replace(made, result=made.result.model_copy(update={"read_files": len(digests)}))


def _about(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Mapping[str, Any]:
    source = archive.extractfile(member) if member.name == ABOUT and member.size < 64 << 20 else None
    about = json.loads(source.read()) if source is not None else {}
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise ValueError("it is not a checkpoint of this version")
    return about


def _key(name: str) -> Key:
    top, _, path = name.partition("/")
    roots = {value: key for key, value in NAMES.items()}
    return roots[top], path.encode("utf-8", "surrogateescape")


def _entry(member: tarfile.TarInfo, number: int, known: Mapping[Key, Entry]) -> Entry:
    root, path = _key(member.name)
    seconds, _, rest = str(member.pax_headers.get("mtime", member.mtime)).partition(".")
    mtime = int(seconds) * 10**9 + int(rest[:9].ljust(9, "0"))
    kind = FOLDER if member.isdir() else LINK if member.issym() else FILE
    if kind == FILE and not (member.isreg() or member.islnk()):
        raise ValueError(f"{member.name!r} is neither a file nor a folder nor a link")
    target = member.linkname.encode("utf-8", "surrogateescape") if kind == LINK else b""
    first = known[_key(member.linkname)] if member.islnk() else None
    inode, length = (first.inode, first.size) if first else (number, member.size)
    return Entry(root, kind, member.mode & 0o7777, member.uid, member.gid, length, mtime, 0, 0, inode, 1, path, target)


def _count_names(entries: dict[Key, Entry]) -> None:
    names = Counter(entry.inode for entry in entries.values())
    for key, entry in entries.items():
        if names[entry.inode] > 1:
            entries[key] = entry._replace(names=names[entry.inode])


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    source = archive.extractfile(member)
    if member.size and source is not None:
        yield PART.pack(0, member.size)
        while piece := source.read(CHUNK):
            yield piece
    yield PART.pack(member.size, 0)


def _unusable(path: str | os.PathLike[str], problem: str) -> OperationError:
    return OperationError(
        ErrorCode.unsafe_archive,
        f"{os.fspath(path)} cannot be used as a checkpoint: {problem}.",
        "Give a file that save_checkpoint made.",
    )
