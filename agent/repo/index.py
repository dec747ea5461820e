"""Read git's index (gitformat-index, versions 2 to 4): the paths of the tracked files, from hostile bytes."""

from __future__ import annotations

import hashlib
import os

from sandbox.frozen import dataclass

from .beneath import UnsafePathError, leads_into_git, split

_FIXED = 40  # times, device, inode, mode, owner and size, before the object's name
_MODE_AT = 24
_EXTENDED = 0x4000
_SUBMODULE, _FOLDER = 0o160000, 0o040000
_KIND = 0o170000
MOST_INDEX_BYTES = 256 << 20
# A million entries take about 6 seconds of a processor and 0.3 GiB.
MOST_ENTRIES = 1_000_000
MOST_PATH_BYTES = 4096
MOST_BYTES_OF_PATHS = 256 << 20


class IndexUnreadableError(ValueError):
    """An index whose paths cannot be known; the text says why."""


@dataclass(frozen=True, slots=True)
class Index:
    """``files`` are the paths of tracked files and links, ``submodules`` folders of other repositories. ``refused`` is how many
    paths lead out of the repository or into .git, and are in neither.
    """

    files: frozenset[str] = frozenset()
    submodules: frozenset[str] = frozenset()
    refused: int = 0


def parse_index(data: bytes) -> Index:
    """Return what the index names. Raises IndexUnreadableError for a damaged or split one."""
    if data[:4] != b"DIRC" or len(data) < 12:
        raise IndexUnreadableError("it does not begin like an index")
    version = int.from_bytes(data[4:8], "big")
    if version not in (2, 3, 4):
        raise IndexUnreadableError(f"its version is {version}, and only 2, 3 and 4 are supported")
    return _parse(data, version, _digest_bytes(data))


def _digest_bytes(data: bytes) -> int:
    """Return the length of its object names. Only the config has it, which is not read, but the last digest shows it
    too.
    """
    for digest in (hashlib.sha1, hashlib.sha256):
        length = digest().digest_size
        if data[-length:] == digest(data[:-length], usedforsecurity=False).digest():
            return length
    if not any(data[-20:]):  # index.skipHash
        return 20 if any(data[-32:]) else 32
    raise IndexUnreadableError("its checksum is wrong")


def _parse(data: bytes, version: int, digest_bytes: int) -> Index:
    count, end = int.from_bytes(data[8:12], "big"), len(data) - digest_bytes
    if count > MOST_ENTRIES:
        raise IndexUnreadableError(f"it has {count} entries, and at most {MOST_ENTRIES} are read")
    if count * (_FIXED + digest_bytes + 2) > end:
        raise IndexUnreadableError("it is damaged")
    at, name, total = 12, b"", 0
    files: set[str] = set()
    submodules: set[str] = set()
    refused = 0
    for _ in range(count):
        kind, name, at = _entry(data, at, end, _FIXED + digest_bytes + 2, version, name)
        total += len(name)
        if total > MOST_BYTES_OF_PATHS:
            raise IndexUnreadableError("its paths are too long")
        path = os.fsdecode(name)
        if kind == _FOLDER:  # of a sparse index: not in the work tree
            continue
        if not _is_safe(path):
            refused += 1
        else:
            (submodules if kind == _SUBMODULE else files).add(path)
    _check_extensions(data, at, end)
    return Index(frozenset(files), frozenset(submodules), refused)


def _entry(data: bytes, start: int, end: int, fixed: int, version: int, previous: bytes) -> tuple[int, bytes, int]:
    """Return kind and name of the entry at ``start``, whose fixed part has ``fixed`` bytes, and where the next one
    begins.
    """
    at = start + fixed
    if at > end:
        raise IndexUnreadableError("it is damaged")
    kind = int.from_bytes(data[start + _MODE_AT : start + _MODE_AT + 4], "big") & _KIND
    if int.from_bytes(data[at - 2 : at], "big") & _EXTENDED:
        at += 2
    kept = 0
    if version == 4:
        removed, at = _number(data, at, end)
        kept = len(previous) - removed
        if kept < 0:
            raise IndexUnreadableError("it is damaged")
    stop = data.find(b"\0", at, min(end, at + MOST_PATH_BYTES + 1))
    if stop < 0 or stop - at + kept > MOST_PATH_BYTES:
        raise IndexUnreadableError(f"it is damaged, or a path in it is longer than {MOST_PATH_BYTES} bytes")
    after = stop + 1 if version == 4 else start + (stop - start + 8) // 8 * 8
    return kind, previous[:kept] + data[at:stop], after


def _is_safe(path: str) -> bool:
    try:
        split(path)
    except UnsafePathError:
        return False
    return not leads_into_git(path)


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number of variable length, as in the offsets of packs."""
    value = -1
    for position in range(at, min(at + 5, end)):
        value = (value + 1) << 7 | data[position] & 0x7F
        if not data[position] & 0x80:
            return value, position + 1
    raise IndexUnreadableError("it is damaged")


def _check_extensions(data: bytes, at: int, end: int) -> None:
    """Check that the blocks behind the entries fill the rest exactly: otherwise the entries were read wrongly."""
    while at < end:
        if at + 8 > end:
            raise IndexUnreadableError("it is damaged")
        if data[at : at + 4] == b"link":
            raise IndexUnreadableError("it is split into two files")
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "big")
    if at != end:
        raise IndexUnreadableError("it is damaged")
