"""What changed between the copy that went in and what came back, and its diff in git's format."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from sandbox.frozen import dataclass
from sandbox.patches.git import EXECUTABLE, MAX_BINARY_BYTES, REGULAR, SYMLINK, Version, file_patch

from .beneath import Folder
from .snapshot import FileState, Snapshot, states_under


@dataclass(frozen=True, slots=True)
class Change:
    """One file that differs; ``before`` is None for a new one, ``after`` for a deleted one."""

    path: str
    before: FileState | None
    after: FileState | None

    @property
    def kind(self) -> str:
        """added, deleted, or modified."""
        return "added" if self.before is None else "deleted" if self.after is None else "modified"


def changes(snapshot: Snapshot, folder: Path, skipped: Collection[str] = ()) -> list[Change]:
    """Return what differs in ``folder``, sorted by path, without new files that the repository ignores or the image
    brought (``snapshot.laid``), and without ``skipped``.
    """
    now = states_under(folder)
    laid = tuple(f"{path}/" for path in snapshot.laid)
    new = [p for p in now if p not in snapshot.files and not f"{p}/".startswith(laid)]
    ignored = snapshot.rules.ignored(new)
    unknown = tuple(f"{s.rstrip('/')}/" for s in skipped)
    found = [Change(p, None, now[p]) for p in new if p not in ignored]
    for path, before in snapshot.files.items():
        if now.get(path) != before and not f"{path}/".startswith(unknown):
            found.append(Change(path, before, now.get(path)))
    return sorted(found, key=lambda c: c.path)


def diff_text(snapshot: Snapshot, folder: Path, found: Collection[Change]) -> str:
    """Return the changes as one diff that ``git apply`` accepts. Bytes that are not UTF-8 appear as surrogate escapes.

    A file larger than MAX_BINARY_BYTES is represented by one line that says so, which ``git apply`` skips.
    """
    with Folder(snapshot.copy) as before, Folder(folder) as after:
        return "".join(
            file_patch(
                change.path, _version(change.before, before, change.path), _version(change.after, after, change.path)
            )
            for change in found
        )


def _version(state: FileState | None, folder: Folder, path: str) -> Version | None:
    if state is None:
        return None
    if state.link:
        return Version(SYMLINK, os.fsencode(state.digest))
    mode = EXECUTABLE if state.executable else REGULAR
    with folder.open(path) as file:
        size = os.fstat(file.fileno()).st_size
        return Version(mode, size if size > MAX_BINARY_BYTES else file.read(), state.digest)
