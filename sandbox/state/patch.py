"""Make a patch of a sandbox's workspace: from its start, or a checkpoint, to now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol.leftovers import is_leftover
from sandbox.guest.protocol.records import FILE, FOLDER, LINK, WORKSPACE
from sandbox.patches.git import EXECUTABLE, MAX_BINARY_BYTES, REGULAR, SYMLINK, Version, file_patch
from sandbox.patches.lines import Budget
from sandbox.text.wording import size

from .checkpoint import Checkpoint
from .history import History
from .initial_workspace import InitialWorkspace
from .store import Store
from .table import Difference, Entry, Key, differences, unreadable_paths

# A patch is made in memory.
MOST_PATCH_BYTES = 128 << 20
LEFT_OUT = 200


@dataclass(slots=True)
class Patch:
    """A patch, the paths in it, and the paths that were left out, each with the reason."""

    parts: list[bytes] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    size: int = 0
    budget: Budget = field(default_factory=Budget)

    def leave_out(self, path: str, why: str) -> None:
        """Record why ``path`` is not in the patch, for the first LEFT_OUT paths."""
        if len(self.left_out) < LEFT_OUT:
            self.left_out[_shown(path)] = why


def export(history: History, since: str | None, leftovers: bool) -> Patch:
    """Return the patch since ``since``. Raises SandboxError."""
    before, base = _base(history, since)
    now = history.scan().entries
    found = [d for d in differences(before, now) if d.entry.root == WORKSPACE]
    patch = Patch()
    for path in dict.fromkeys(unreadable_paths(e for e in (*before.values(), *now.values()) if e.root == WORKSPACE)):
        patch.leave_out(path, "it could not be read")
    parents = {path.rpartition(b"/")[0] for _, path in now}
    found = [d for d in found if _belongs(d, patch, leftovers, parents)]
    sizes = [
        d.after for d in found if d.after is not None and d.after.kind == FILE and d.after.size <= MAX_BINARY_BYTES
    ]
    store = Store(max(history.limit, 64 << 20))
    try:
        contents = history.fetch(sizes, store)
        for difference in found:
            _add(patch, difference, base, store, contents.digests)
        patch.torn = [_shown(os.fsdecode(path)) for _, path in contents.torn]
    finally:
        store.release()
    return patch


def _base(history: History, since: str | None) -> tuple[dict[Key, Entry], _Base]:
    if since in (None, "start"):
        if history.start is None:
            raise OperationError(
                ErrorCode.checkpoint_not_found,
                "What the workspace was at the start is not known.",
                "Make a checkpoint first, and give its id as since.",
            )
        return history.start.entries(), _Base(history, history.base)
    if since in history.marks:
        raise OperationError(
            ErrorCode.checkpoint_not_found,
            f"The mark {since!r} has no contents to make a patch from.",
            "Give the id of a checkpoint, or none for the start.",
        )
    checkpoint = history.get(str(since))
    return checkpoint.table.entries(), _Base(history, checkpoint)


class _Base:
    def __init__(self, history: History, source: InitialWorkspace | Checkpoint | None) -> None:
        self._history, self._source = history, source

    def content(self, entry: Entry) -> bytes | int | None:
        """Return the former bytes of a file, only their number if there are too many, None if they were not kept."""
        if isinstance(self._source, Checkpoint):
            digest = self._source.digests.get(entry.key)
            return None if digest is None else self._history.store.read(digest, MAX_BINARY_BYTES)
        return None if self._source is None else self._source.content(entry.path, MAX_BINARY_BYTES)


def _belongs(difference: Difference, patch: Patch, leftovers: bool, parents: set[bytes]) -> bool:
    """Return whether a change can be in the patch; records one that matters and cannot."""
    entry, path = difference.entry, _text(difference.entry)
    if difference.kind == "created" and not leftovers and is_leftover(path):
        patch.leave_out(_top_leftover(path), "left behind by tools")
        return False
    if not leftovers and ".git" in path.split(
        "/"
    ):  # git writes there even when it only reads, and applies no patch to it
        return False
    kinds = {e.kind for e in (difference.before, difference.after) if e is not None}
    if kinds <= {FOLDER}:
        if difference.kind == "created" and entry.path not in parents:
            patch.leave_out(path, "an empty folder")
        return False
    if not kinds <= {FILE, LINK, FOLDER}:
        patch.leave_out(path, "neither a file nor a folder nor a link")
        return False
    return True


def _add(patch: Patch, difference: Difference, base: _Base, store: Store, digests: Mapping[Key, bytes]) -> None:
    path = _text(difference.entry)
    before = _version(difference.before, lambda e: base.content(e))
    after = _version(
        difference.after, lambda e: store.read(digests[e.key], MAX_BINARY_BYTES) if e.key in digests else None
    )
    for version, entry, when in (
        (before, difference.before, "it was not kept"),
        (after, difference.after, "it cannot be read"),
    ):
        if entry is not None and entry.kind in (FILE, LINK) and version is None:
            large = when == "it cannot be read" and entry.size > MAX_BINARY_BYTES
            patch.leave_out(path, f"too large ({size(entry.size)})" if large else when)
            return
        if version is not None and isinstance(version.data, int):
            patch.leave_out(path, f"too large ({size(version.data)})")
            return
    data = file_patch(path, before, after, patch.budget).encode("utf-8", "surrogateescape")
    if patch.size + len(data) > MOST_PATCH_BYTES:
        patch.leave_out(path, f"the patch would have more than {size(MOST_PATCH_BYTES)}")
        return
    if data:
        patch.size += len(data)
        patch.parts.append(data)
        patch.files.append(_shown(path))


def _version(entry: Entry | None, content: Callable[[Entry], bytes | int | None]) -> Version | None:
    if entry is None or entry.kind not in (FILE, LINK):
        return None
    if entry.kind == LINK:
        return Version(SYMLINK, entry.target)
    data = content(entry)
    return None if data is None else Version(EXECUTABLE if entry.mode & 0o100 else REGULAR, data)


def _text(entry: Entry) -> str:
    return entry.path.decode("utf-8", "surrogateescape")


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _top_leftover(path: str) -> str:
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        if is_leftover("/".join(parts[:end])):
            return "/".join(parts[:end])
    return path
