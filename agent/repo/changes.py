"""What changed between the copy that went in and what came back, and its diff in git's form."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .snapshot import FileState, Snapshot, states_under

# difflib is quadratic where much changed; beyond this a diff is nothing a person reads.
MAX_DIFF_BYTES = 2 << 20
MAX_DIFF_LINES = 20_000


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
    """The changes as one diff that ``git apply`` takes; binary and huge files are only named."""
    return "".join(_diff(change, snapshot.copy / change.path, folder / change.path) for change in found)


def _diff(change: Change, old: Path, new: Path) -> str:
    a, b = _quoted(f"a/{change.path}"), _quoted(f"b/{change.path}")
    head = f"diff --git {a} {b}\n"
    if change.before is None and change.after is not None:
        head += f"new file mode {_mode(change.after)}\n"
    elif change.after is None and change.before is not None:
        head += f"deleted file mode {_mode(change.before)}\n"
    elif change.before and change.after and _mode(change.before) != _mode(change.after):
        head += f"old mode {_mode(change.before)}\nnew mode {_mode(change.after)}\n"
    if change.before and change.after and change.before.digest == change.after.digest:
        return head
    before, after = _text(change.before, old), _text(change.after, new)
    if before is None or after is None:
        return f"{head}Binary files {a} and {b} differ\n"
    names = ("/dev/null" if change.before is None else a, "/dev/null" if change.after is None else b)
    return head + _hunks(before, after, *names)


def _hunks(before: str, after: str, a: str, b: str) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), a, b, lineterm="\n")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines end at a line feed and nowhere else, as in git."""
    parts = text.split("\n")
    return [f"{p}\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _text(state: FileState | None, path: Path) -> str | None:
    """The content, or None where a diff makes no sense."""
    if state is None:
        return ""
    if state.link:
        return state.digest
    if path.stat().st_size > MAX_DIFF_BYTES:
        return None
    data = path.read_bytes()
    if b"\0" in data or data.count(b"\n") > MAX_DIFF_LINES:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _mode(state: FileState) -> str:
    return "120000" if state.link else "100755" if state.executable else "100644"


def _quoted(name: str) -> str:
    """A name as git writes it: quoted, with octal bytes, if it holds anything but printable text."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return name
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
