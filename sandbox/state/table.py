"""The entry of every path at one moment, as the guest reported it: checked, compressed, compared."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from sandbox.frozen import dataclass
from sandbox.guest.protocol.records import ENTRY, FILE, FOLDER, HOME, LINK, SPECIAL, UNREAD, WORKSPACE
from sandbox.messages.faults import violation

Key = tuple[int, bytes]
Kind = Literal["created", "modified", "deleted"]
_KINDS = frozenset((FILE, FOLDER, LINK, SPECIAL, UNREAD))


class Entry(NamedTuple):
    """One path. Times are in ns, sizes in bytes; ``kind`` is a letter of ``guest.records``."""

    root: int
    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    ctime: int
    device: int
    inode: int
    names: int
    path: bytes
    target: bytes

    @property
    def key(self) -> Key:
        """Root and path."""
        return self.root, self.path

    def same_content(self, other: Entry) -> bool:
        """Return whether nothing was written in between, going by the kernel's change times, which no user can set."""
        return self[1:2] + self[5:10] == other[1:2] + other[5:10] and self.target == other.target

    def same(self, other: Entry) -> bool:
        """Return whether nothing changed. Times of folders do not count: what is in them has entries of its own."""
        if self.kind == FOLDER == other.kind:
            return self[2:5] == other[2:5]
        return self[1:10] == other[1:10] and self.target == other.target


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of one scan, compressed in ``packed``.

    ``clock`` is the sandbox's time in ns when the scan began, ``quiet`` says that no command ran meanwhile.
    """

    packed: bytes
    clock: int
    quiet: bool

    def entries(self) -> dict[Key, Entry]:
        """Return the entries by root and path, a folder before what is in it."""
        return {entry.key: entry for entry in parse(zlib.decompress(self.packed))}


def table_of(data: bytes, clock: int, quiet: bool, roots: Iterable[int] = ()) -> tuple[Table, dict[Key, Entry]]:
    """Return the table in what the guest streamed, and its entries, which are as expensive to parse again as to scan.

    Raises SandboxUnavailableError for a table that no honest guest sends, such as one without an entry for each of ``roots``.
    """
    entries = list(parse(data))
    check_entries(entries)
    by_key = {entry.key: entry for entry in entries}
    if not all((root, b"") in by_key for root in roots):
        raise violation("scan")
    return Table(zlib.compress(data, 1), clock, quiet), by_key


def pack(entries: Iterable[Entry]) -> bytes:
    """Return the entries compressed for a table."""
    return zlib.compress(
        b"".join(ENTRY.pack(*e[:11], len(e.path), len(e.target)) + e.path + e.target for e in entries), 1
    )


def parse(data: bytes) -> Iterator[Entry]:
    """Yield the entries in ``data``. Raises SandboxUnavailableError if it is truncated."""
    at, size, end = 0, ENTRY.size, len(data)
    while at < end:
        if at + size > end:
            raise violation("scan")
        *fields, length, more = ENTRY.unpack_from(data, at)
        at += size
        path, target = data[at : at + length], data[at + length : at + length + more]
        at += length + more
        if at > end:
            raise violation("scan")
        yield Entry._make((*fields, path, target))


def check_entries(entries: list[Entry]) -> None:
    """Raise SandboxUnavailableError unless every path is below a root, in a folder that came before it, and occurs once."""
    folders: set[Key] = {(WORKSPACE, b""), (HOME, b"")}
    known: set[Key] = set()
    for entry in entries:
        if entry.kind == UNREAD:  # comes after the entry of the folder itself
            continue
        if not entry.path and entry.kind == FOLDER and entry.key not in known:  # a root itself
            known.add(entry.key)
            continue
        above, _, name = entry.path.rpartition(b"/")
        wrong = name in (b"", b".", b"..") or b"\0" in entry.path or b"\0" in entry.target
        if wrong or entry.kind not in _KINDS or (entry.root, above) not in folders or entry.key in known:
            raise violation("scan")
        if (entry.kind == LINK) != bool(entry.target):
            raise violation("scan")
        known.add(entry.key)
        if entry.kind == FOLDER:
            folders.add(entry.key)


class Difference(NamedTuple):
    """A path that differs between two moments."""

    kind: Kind
    before: Entry | None
    after: Entry | None

    @property
    def entry(self) -> Entry:
        """The present entry, or the former one of a deleted path."""
        found = self.after or self.before
        assert found is not None  # noqa: S101 - one of them is
        return found


def differences(before: Mapping[Key, Entry], after: Mapping[Key, Entry]) -> list[Difference]:
    """Return what differs, by path. Leaves out what could not be read in one of them, with everything below it."""
    blind = {key for table in (before, after) for key, entry in table.items() if entry.kind == UNREAD}
    found = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if not key[1] and (old is None or new is None):  # a root is always there
            continue
        if (old is not None and new is not None and old.same(new)) or (blind and is_below(key, blind)):
            continue
        kind: Kind = "created" if old is None else "deleted" if new is None else "modified"
        found.append(Difference(kind, old, new))
    return sorted(found, key=lambda d: d.entry.key)


def is_below(key: Key, tops: set[Key]) -> bool:
    """Return whether a path is one of ``tops`` or below one of them."""
    if not tops:
        return False
    root, path = key
    parts = path.split(b"/")
    return any((root, b"/".join(parts[:end])) in tops for end in range(len(parts) + 1))


def as_text(value: object) -> str:
    """Return a string of a guest as valid Unicode."""
    return str(value).encode("utf-8", "replace").decode()


def display_path(entry: Entry) -> str:
    """Return a path as an agent would write it: relative to the workspace, or as ~/... in the home."""
    path = entry.path.decode("utf-8", "replace") or "."
    return path if entry.root == WORKSPACE else f"~/{path}"


def unreadable_paths(entries: Iterable[Entry]) -> list[str]:
    """Return the paths that could not be read."""
    return [display_path(entry) for entry in entries if entry.kind == UNREAD]
