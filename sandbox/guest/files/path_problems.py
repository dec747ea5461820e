"""Explaining why a path could not be used: a link that leads out, a mode that forbids it, a part that is missing, similar names.

This runs only after the kernel has refused, as the sandbox's user, on held descriptors, with bounds on names and time. Its findings
may have changed since the refusal: they explain, and decide nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .. import kernel
from .tree_walk import DIRECTORY, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .roots import Roots  # which loads this module only after an error

STEPS = 100  # links and `..` that are followed
NAMES = 5000  # names of one folder that are compared
MOST_SIMILAR = 3
SECONDS = 0.1
LEAST_SIMILARITY = 0.65
BELOW = 2000  # entries that are examined of a folder that could not be deleted

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def explain(roots: Roots, number: int, path: str, *, entry: bool = False) -> dict[str, Any]:
    """Return what explains the error ``number`` on ``path``, as fields of its fault; {} if nothing does.

    ``entry`` says that the path's folder was to be changed (a name in it made, moved or deleted), not the file itself.
    """
    try:
        raw = path.encode("utf-8", "surrogateescape")
        trail = _Trail(roots, raw)
    except (OSError, ValueError):
        return {}
    try:
        if number == errno.EXDEV:
            return trail.explain_way_out(raw)
        if number == errno.ENOENT:
            return trail.explain_missing()
        if number == errno.ENOTDIR:
            return trail.explain_not_a_folder()
        if number in _DENIED:
            return trail.explain_denied(number, entry)
        if number == errno.ELOOP:
            return trail.link_fields()
        if number == errno.EAGAIN:
            return trail.explain_lease()
    except (OSError, ValueError):  # it changed meanwhile
        pass
    finally:
        trail.close()
    return {}


class _Trail:
    """How far a path leads: ``folder`` is a descriptor of the last folder reached, ``where`` its path, ``rest`` what follows."""

    def __init__(self, roots: Roots, raw: bytes) -> None:
        """Follow the path. Raises OSError if not even its root can be opened."""
        self._roots = roots
        self.folder = -1
        self.where = b""
        self.rest: list[bytes] = []
        self.link: tuple[bytes, bytes] | None = None
        self.leads_out = False  # of the roots
        self.error = 0
        for _ in range(STEPS):
            try:
                root, rest = roots.resolve_root(raw)
            except OSError:
                self.leads_out = True
                return
            again = self._follow(root, [part for part in rest.split(b"/") if part not in (b"", b".")])
            if again is None:
                return
            raw = again

    def close(self) -> None:
        """Close the folder."""
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def _follow(self, root: bytes, parts: list[bytes]) -> bytes | None:
        """Follow the parts from a root. Returns the path with which to continue after a link or `..`, None at the end."""
        self.close()
        self.folder = os.dup(self._roots.root_fd(root))
        self.where, self.rest = root, list(parts)
        while self.rest:
            part = self.rest[0]
            if part == b"..":
                return os.path.join(os.path.dirname(self.where), *self.rest[1:])
            try:
                mode = os.stat(part, dir_fd=self.folder, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    target = os.readlink(part, dir_fd=self.folder)
                    self.link = (os.path.join(self.where, part), target)
                    return os.path.join(self.where, target, *self.rest[1:])
                if not stat.S_ISDIR(mode):
                    return None
                below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.folder)
            except OSError as error:
                self.error = error.errno or 0
                return None
            os.close(self.folder)
            self.folder, self.where, self.rest = below, os.path.join(self.where, part), self.rest[1:]
        return None

    def _display(self, *parts: bytes) -> str:
        return self._roots.display(os.path.join(self.where, *parts))

    def link_fields(self) -> dict[str, Any]:
        """Return the last link on the way."""
        if self.link is None:
            return {}
        return {"link": self._roots.display(self.link[0]), "target": self.link[1].decode("utf-8", "replace")}

    def explain_way_out(self, raw: bytes) -> dict[str, Any]:
        """Return the link that leads out; or, for an absolute path, the same path in the workspace if it exists."""
        if self.link is not None:
            return self.link_fields()
        inside = os.path.normpath(raw).lstrip(b"/")
        if raw.startswith(b"/") and inside and self._roots.exists(inside):
            return {"near": [self._roots.display(inside)]}
        return {}

    def explain_missing(self) -> dict[str, Any]:
        """Return the first missing part, the folder that lacks it, and similar names."""
        found = self.link_fields()
        if self.leads_out or not self.rest or self.error != errno.ENOENT:
            return found
        part = self.rest[0]
        if b".." in self.rest:
            return {**found, "missing": self._display(part), **self._without_dots()}
        names = self._names()
        similar = _similar_names(part, names)
        near = [path for name in similar if self._exists(path := os.path.join(name, *self.rest[1:]))]
        near = near or similar or self._one_level_down(names)
        return {
            **found,
            "missing": self._display(part),
            "folder": self._display(),
            "parts_left": len(self.rest) - 1,
            "near": [self._display(path) for path in near[:MOST_SIMILAR]],
        }

    def _without_dots(self) -> dict[str, Any]:
        """Return where the path would lead if the folders before ``..`` were there: None outside of the roots, which are named."""
        direct = os.path.normpath(os.path.join(self.where, *self.rest))
        try:
            self._roots.resolve_root(direct)
        except OSError:
            return {"direct": None, "roots": self._roots.displayed_names()}
        return {"direct": self._roots.display(direct)}

    def _exists(self, path: bytes) -> bool:
        return self._roots.exists(os.path.join(self.where, path))

    def _names(self) -> list[bytes]:
        try:
            fd = os.open(b".", DIRECTORY, dir_fd=self.folder)
        except OSError:  # unreadable
            return []
        names = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    names.append(os.fsencode(entry.name))
                    if len(names) == NAMES:
                        break
        finally:
            os.close(fd)
        return names

    def _one_level_down(self, names: list[bytes]) -> list[bytes]:
        """Return the same path one folder further down: "src/invoicer/pricing.py" for "invoicer/pricing.py"."""
        deadline = time.monotonic() + SECONDS
        found: list[bytes] = []
        for name in sorted(names):
            path = os.path.join(name, *self.rest)
            if time.monotonic() > deadline or len(found) == MOST_SIMILAR:
                break
            if self._exists(path):
                found.append(path)
        return found

    def explain_not_a_folder(self) -> dict[str, Any]:
        """Return the part that is a file but would have to be a folder."""
        return {"part": self._display(self.rest[0]), "parts_left": len(self.rest) - 1} if self.rest else {}

    def explain_lease(self) -> dict[str, Any]:
        """Return the process that holds a lease (fcntl F_SETLEASE) on the file, if the kernel lists it."""
        found: dict[str, Any] = {"leased": True, "lease_break_seconds": _lease_break_seconds()}
        inode = os.stat(self.rest[0], dir_fd=self.folder, follow_symlinks=False).st_ino if self.rest else 0
        with open("/proc/locks", encoding="ascii", errors="replace") as lines:
            for words in map(str.split, lines):
                if len(words) > 5 and words[1] == "LEASE" and words[5].endswith(f":{inode}") and words[4].isdigit():
                    found |= {"holder": int(words[4]), "program": _program(words[4])}
        return found

    def explain_denied(self, number: int, entry: bool) -> dict[str, Any]:
        """Return the file or folder whose mode forbids the operation."""
        if number == errno.EROFS:
            return {"read_only": True}
        user = kernel.files_user()
        own = os.fstat(self.folder)
        if self.error in _DENIED:
            return _denied_fields(self._display(), own, "enter", user)
        if not self.rest:
            lacks = None if entry else _missing_right(own, user, "read", "enter", "write")
            return _denied_fields(self._display(), own, lacks, user) if lacks else self._search_below_and_above(user)
        if not self.error and not entry:  # an existing file
            status = os.stat(self.rest[0], dir_fd=self.folder, follow_symlinks=False)
            if lacks := _missing_right(status, user, "read", "write"):
                return _denied_fields(self._display(self.rest[0]), status, lacks, user)
        lacks = _missing_right(own, user, "write", "enter")
        return _denied_fields(self._display(), own, lacks, user) if lacks else {}

    def _search_below_and_above(self, user: tuple[int, int]) -> dict[str, Any]:
        """Return the folder whose mode forbids to move or delete this one: the one above it, itself, or one below it."""
        if self.where not in self._roots.names:
            above = os.stat(b"..", dir_fd=self.folder)
            if lacks := _missing_right(above, user, "write", "enter"):
                return _denied_fields(self._roots.display(os.path.dirname(self.where)), above, lacks, user)
        own = os.fstat(self.folder)
        if lacks := _missing_right(own, user, "write", "enter", "read"):
            return _denied_fields(self._display(), own, lacks, user)
        items = walk(os.open(b".", DIRECTORY, dir_fd=self.folder))
        try:
            for count, item in enumerate(items):
                if count == BELOW:
                    break
                if not stat.S_ISDIR(item.status.st_mode):
                    continue
                if lacks := _missing_right(item.status, user, "write", "enter", "read"):
                    return _denied_fields(self._display(item.path), item.status, lacks, user)
        finally:
            items.close()
        return {}


def _lease_break_seconds() -> int | None:
    """Return after how many seconds the kernel breaks a lease that blocks others; 0 for never, None if unknown."""
    try:
        with open("/proc/sys/fs/lease-break-time", encoding="ascii") as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None


def _program(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:  # it has ended
        return ""


_BITS = {"read": 4, "write": 2, "enter": 1}


def _missing_right(status: os.stat_result, user: tuple[int, int], *wanted: str) -> str | None:
    """Return the first of the wanted rights that the mode does not give the user, or None."""
    shift = 6 if status.st_uid == user[0] else 3 if status.st_gid == user[1] else 0
    return next((right for right in wanted if not status.st_mode >> shift & _BITS[right]), None)


def _denied_fields(path: str, status: os.stat_result, lacks: str, user: tuple[int, int]) -> dict[str, Any]:
    return {
        "part": path,
        "lacks": lacks,
        "is_folder": stat.S_ISDIR(status.st_mode),
        "mode": f"{stat.S_IMODE(status.st_mode):03o}",
        "owner": status.st_uid,
        "owned": status.st_uid == user[0],
    }


def _similar_names(wanted: bytes, names: list[bytes]) -> list[bytes]:
    """Return the names most similar to the wanted one, best first; if names differ only in case, only those."""
    from difflib import SequenceMatcher

    lower = wanted.lower()
    same = [name for name in names if name.lower() == lower]
    if same:
        return sorted(same)[:MOST_SIMILAR]
    deadline = time.monotonic() + SECONDS
    stem = _stem(lower).decode("latin-1")
    matcher = SequenceMatcher(autojunk=False, b=stem)
    found: list[tuple[float, bytes]] = []
    for name in names:
        if time.monotonic() > deadline:
            break
        other = _stem(name.lower()).decode("latin-1")
        if min(len(stem), len(other)) < 3:  # short names are similar by chance
            continue
        matcher.set_seq1(other)
        if (
            matcher.real_quick_ratio() >= LEAST_SIMILARITY
            and matcher.quick_ratio() >= LEAST_SIMILARITY
            and (ratio := matcher.ratio()) >= LEAST_SIMILARITY
        ):
            found.append((-ratio, name))
    return [name for _, name in sorted(found)[:MOST_SIMILAR]]


def _stem(name: bytes) -> bytes:
    return (os.path.splitext(name)[0] or name)[:100]
