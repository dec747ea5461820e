"""The steps of a rollback, in the order in which the guest takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sandbox.guest.protocol.records import (
    ATTRIBUTES,
    END,
    FILE,
    FOLDER,
    LINK,
    MAKE,
    PART,
    POINT,
    PUT,
    REMOVE,
    SAME,
    SPECIAL,
    STEP,
    UNREAD,
)

from .table import Entry, Key, is_below

Table = Mapping[Key, Entry]


@dataclass(slots=True)
class Plan:
    """The steps, and the paths that cannot be restored (``impossible``: devices, pipes, what could not be read)."""

    remove: list[Entry] = field(default_factory=list)
    make: list[Entry] = field(default_factory=list)
    put: list[Entry] = field(default_factory=list)
    same: list[tuple[Entry, Entry]] = field(default_factory=list)
    attributes: list[Entry] = field(default_factory=list)
    impossible: list[Entry] = field(default_factory=list)

    def sizes(self) -> list[int]:
        """Return the bytes that are written into each root."""
        return [sum(e.size + 4096 for e in self.put if e.root == root) for root in (0, 1)]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.remove or self.make or self.put or self.same or self.attributes)

    def stream(self, content: Callable[[Entry], Iterator[bytes]]) -> Iterator[bytes]:
        """Yield the steps as the guest's ``restore`` takes them; ``content`` returns that of a file."""
        for entry in self.remove:
            yield _step(REMOVE, entry)
        for entry in self.make:
            yield _step(MAKE, entry)
        for entry in self.put:
            if entry.kind == LINK:
                yield _step(POINT, entry, entry.target)
            else:
                yield _step(PUT, entry)
                yield from content(entry)
        for entry, first in self.same:
            yield _step(SAME, entry, first.path)
        for entry in self.attributes:
            yield _step(ATTRIBUTES, entry, LINK if entry.kind == LINK else b"")
        yield STEP.pack(0, END, 0, 0, 0, 0, 0, 0)


def empty_content() -> Iterator[bytes]:
    """Yield the content of an empty file."""
    yield PART.pack(0, 0)


def _step(kind: bytes, entry: Entry, more: bytes = b"") -> bytes:
    head = STEP.pack(entry.root, kind, entry.mode, entry.uid, entry.gid, entry.mtime, len(entry.path), len(more))
    return head + entry.path + more


def plan(
    now: Table, then: Table, same_content: Callable[[Entry, Entry], bool], is_stored: Callable[[Entry], bool]
) -> Plan:
    """Return the steps from ``now`` to ``then``.

    ``same_content(now, then)`` says whether a file need not be written, ``is_stored(then)`` whether its content is in the
    store. Folders that could not be read when the checkpoint was made are left as they are, with everything below them.
    """
    made = Plan()
    untouched = {key for key, entry in then.items() if entry.kind == UNREAD}
    gone: set[Key] = set()
    for key, entry in now.items():
        if is_below(key, gone) or is_below(key, untouched) or not key[1]:
            continue
        was = then.get(key)
        if was is None or was.kind != entry.kind:
            if was is not None and was.kind == FILE and not is_stored(was):
                made.impossible.append(was)
                continue
            gone.add(key)
            made.remove.append(entry)
    there = {key: entry for key, entry in now.items() if not is_below(key, gone)} if gone else now
    made.impossible += [then[key] for key in untouched if key not in there]
    _files(made, there, then, untouched, same_content, is_stored)
    _folders(made, there, then, untouched)
    return made


def _files(
    made: Plan,
    there: Table,
    then: Table,
    untouched: set[Key],
    same_content: Callable[[Entry, Entry], bool],
    is_stored: Callable[[Entry], bool],
) -> None:
    firsts: dict[tuple[int, int, int], tuple[Entry, bool]] = {}
    for key, entry in then.items():
        if entry.kind not in (FILE, LINK, SPECIAL) or is_below(key, untouched):
            continue
        now = there.get(key)
        if entry.kind == SPECIAL or (entry.kind == FILE and not is_stored(entry)):
            made.impossible += [entry] if now is None or not now.same(entry) else []
        elif entry.kind == LINK:
            if now is None or now.target != entry.target or _final_attributes(now) != _final_attributes(entry):
                made.put.append(entry)
        else:
            intact = now is not None and now.names == entry.names and same_content(now, entry)
            first = firsts.setdefault((entry.root, entry.device, entry.inode), (entry, intact))
            if entry.names > 1 and first[0] is not entry:
                if not (intact and first[1] and now == there[first[0].key]._replace(path=entry.path)):
                    made.same.append((entry, first[0]))
            elif not intact:
                made.put.append(entry)
            elif now is not None and _final_attributes(now) != _final_attributes(entry):
                made.attributes.append(entry)


def _final_attributes(entry: Entry) -> tuple[int, int, int, int]:
    """Return mode, owner and mtime, which are applied last. Symlinks have no mode."""
    return 0 if entry.kind == LINK else entry.mode, entry.uid, entry.gid, entry.mtime


def _folders(made: Plan, there: Table, then: Table, untouched: set[Key]) -> None:
    touched = {(e.root, e.path.rpartition(b"/")[0]) for e in (*made.remove, *made.put, *(e for e, _ in made.same))}
    staged = {(e.root, b"") for e in made.put}  # files are staged in a folder there
    folders = []
    for key, entry in then.items():
        if entry.kind != FOLDER or is_below(key, untouched):
            continue
        now = there.get(key)
        if now is None:
            if key[1]:
                made.make.append(entry)
                touched.add((entry.root, entry.path.rpartition(b"/")[0]))
            folders.append(entry)
        elif _final_attributes(now) != _final_attributes(entry):
            folders.append(entry)
    chosen = {e.key for e in folders}
    folders += [
        e
        for key, e in then.items()
        if e.kind == FOLDER and key not in chosen and (key in touched or key in staged) and not is_below(key, untouched)
    ]
    made.attributes += sorted(folders, key=lambda e: (bool(e.path), e.path.count(b"/")), reverse=True)
