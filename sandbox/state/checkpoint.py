"""A checkpoint: what is kept of the files at one moment, and how it is compared with another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox import operations as op
from sandbox.envelope import now as timestamp
from sandbox.frozen import dataclass
from sandbox.guest.protocol.records import FILE, FOLDER, LINK, SPECIAL, UNREAD

from .table import Entry, Key, Table, display_path, pack

# A file whose time is this close to the scan may have been written again within the same tick of the kernel's clock, which is
# 10 ms at most.
RACY_NS = 20_000_000
EMPTY = Table(pack(()), 0, True)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files at one moment. ``digests`` are those of the files whose content is in the store, by root and path."""

    result: op.CheckpointResult
    table: Table
    digests: Mapping[Key, bytes]
    sessions: Mapping[str, Any]


def surely_same(table: Table, before: Entry, entry: Entry) -> bool:
    """Return whether a file of ``table`` was certainly not written since, given the resolution of the kernel's clock."""
    return entry.same_content(before) and entry.ctime < table.clock - RACY_NS


def lacks(entry: Entry, digests: Mapping[Key, bytes]) -> bool:
    """Return whether a checkpoint could not keep ``entry``."""
    return entry.kind in (SPECIAL, UNREAD) or (entry.kind == FILE and entry.key not in digests)


def summary(
    ident: str, entries: Mapping[Key, Entry], digests: Mapping[Key, bytes], store_bytes: int
) -> op.CheckpointResult:
    """Return the description of a checkpoint with these entries and contents."""
    kinds = [e.kind for e in entries.values()]
    missing = [e for e in entries.values() if lacks(e, digests)]
    return op.CheckpointResult(
        id=ident,
        created_at=timestamp(),
        files=kinds.count(FILE),
        folders=kinds.count(FOLDER),
        links=kinds.count(LINK),
        size_bytes=sum(e.size for e in entries.values() if e.kind == FILE),
        store_bytes=store_bytes,
        skipped=tuple(display_path(e) for e in missing[:20]),
    )


def comparable(entries: Mapping[Key, Entry], owners: bool) -> dict[Key, Entry]:
    """Return the entries without what cannot be restored: inodes, devices, change times, sizes of folders, names elsewhere."""
    return {
        key: e._replace(
            ctime=0,
            device=0,
            inode=0,
            names=0,
            size=e.size if e.kind == FILE else 0,
            mode=0 if e.kind == LINK else e.mode,
            uid=e.uid if owners else 0,
            gid=e.gid if owners else 0,
        )
        for key, e in entries.items()
        if e.kind not in (SPECIAL, UNREAD)
    }
