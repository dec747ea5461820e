"""What changed between the copy that went in and what came back, and its diff in git's form."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .binary import binary_patch, blob_name
from .snapshot import FileState, Snapshot, states_under

# difflib is quadratic where much changed; beyond this a diff is nothing a person reads, and the file is taken as binary.
MAX_TEXT_BYTES = 2 << 20
MAX_TEXT_LINES = 20_000
# A binary file is in the diff whole, as it was and as it is, a quarter larger, and in memory.
MAX_BINARY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """One file that is not as it was; ``before`` is None for a new one, ``after`` for one that is gone."""

    path: str
    before: FileState | None
    after: FileState | None

    @property
    def kind(self) -> str:
        """added, deleted, or modified."""
        return "added" if self.before is None else "deleted" if self.after is None else "modified"


def changes(snapshot: Snapshot, folder: Path, skipped: Collection[str] = ()) -> list[Change]:
    """What differs in ``folder``, by path. New files that the repository ignores do not count, nor does what was
    ``skipped``.
    """
    now = states_under(folder)
    new = [p for p in now if p not in snapshot.files]
    ignored = snapshot.rules.ignored(new)
    unknown = tuple(f"{s.rstrip('/')}/" for s in skipped)
    found = [Change(p, None, now[p]) for p in new if p not in ignored]
    for path, before in snapshot.files.items():
        if now.get(path) != before and not f"{path}/".startswith(unknown):
            found.append(Change(path, before, now.get(path)))
    return sorted(found, key=lambda c: c.path)


def diff_text(snapshot: Snapshot, folder: Path, found: Collection[Change]) -> str:
    """The changes as one diff that ``git apply`` takes. Bytes that are no UTF-8 stand in it as surrogate escapes.

    Of a file larger than MAX_BINARY_BYTES there is one line that says so, which ``git apply`` passes over.
    """
    return "".join(
        _diff(part, snapshot.copy / change.path, folder / change.path) for change in found for part in _parts(change)
    )


def _parts(change: Change) -> tuple[Change, ...]:
    """A file that became a link, or the other way round, goes and comes: no patch changes the type."""
    if change.before and change.after and change.before.link != change.after.link:
        return Change(change.path, change.before, None), Change(change.path, None, change.after)
    return (change,)


def _diff(change: Change, old: Path, new: Path) -> str:
    a, b = _quoted(f"a/{change.path}"), _quoted(f"b/{change.path}")
    head = _head(change, a, b)
    if change.before and change.after and change.before.digest == change.after.digest:
        return head
    before, after = _content(change.before, old), _content(change.after, new)
    if not isinstance(before, bytes | None) or not isinstance(after, bytes | None):
        return f"Not in this diff, too large: {a} ({_size(before)}) to {b} ({_size(after)})\n"
    kept_mode = f" {_mode(change.after)}" if change.after and change.before and "old mode" not in head else ""
    head += f"index {blob_name(before)}..{blob_name(after)}{kept_mode}\n"
    if not (_is_text(before or b"") and _is_text(after or b"")):
        return head + binary_patch(before, after)
    names = ("/dev/null" if before is None else a, "/dev/null" if after is None else b)
    old_text, new_text = ((data or b"").decode("utf-8", "surrogateescape") for data in (before, after))
    return head + _hunks(old_text, new_text, *names)


def _head(change: Change, a: str, b: str) -> str:
    head = f"diff --git {a} {b}\n"
    if change.before is None and change.after is not None:
        return f"{head}new file mode {_mode(change.after)}\n"
    if change.after is None and change.before is not None:
        return f"{head}deleted file mode {_mode(change.before)}\n"
    if change.before and change.after and _mode(change.before) != _mode(change.after):
        return f"{head}old mode {_mode(change.before)}\nnew mode {_mode(change.after)}\n"
    return head


def _hunks(before: str, after: str, a: str, b: str) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), a, b, lineterm="\n")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines end at a line feed and nowhere else, as in git."""
    parts = text.split("\n")
    return [f"{p}\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _content(state: FileState | None, path: Path) -> bytes | int | None:
    """The bytes as git has them (the target of a link), None for no file, or the size of one that is too large."""
    if state is None:
        return None
    if state.link:
        return os.fsencode(state.digest)
    size = path.stat().st_size
    return size if size > MAX_BINARY_BYTES else path.read_bytes()


def _is_text(data: bytes) -> bool:
    return len(data) <= MAX_TEXT_BYTES and b"\0" not in data and data.count(b"\n") <= MAX_TEXT_LINES


def _size(content: bytes | int | None) -> str:
    return "none" if content is None else f"{content if isinstance(content, int) else len(content)} bytes"


def _mode(state: FileState) -> str:
    return "120000" if state.link else "100755" if state.executable else "100644"


def _quoted(name: str) -> str:
    """A name as git writes it: quoted, with octal bytes, if it holds anything but printable text."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return name
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
