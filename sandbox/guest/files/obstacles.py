"""Explain why a path could not be used: the link that leads out, the folder or file whose mode forbids it, the part that is
missing, and what is called almost the same.

This looks only after the kernel has refused, as the sandbox's user, on held descriptors, with bounds on names and time. What it
finds may have changed since the refusal: it explains, and decides nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .. import kernel
from .walking import DIRECTORY, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .beneath import Roots

STEPS = 100  # links and `..` that are followed
NAMES = 5000  # of one folder that are compared
SHOWN = 3
SECONDS = 0.1
LEAST_ALIKE = 0.65
BELOW = 2000  # entries of a folder that could not be deleted that are looked at

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def explain(roots: Roots, number: int, path: str, *, entry: bool = False) -> dict[str, Any]:
    """Return what explains the error ``number`` on ``path`` as fields of its fault; {} where nothing does.

    ``entry`` says that the folder of the path was to be changed (a name in it made, moved or deleted), and not what is there.
    """
    try:
        raw = path.encode("utf-8", "surrogateescape")
        trail = _Trail(roots, raw)
    except (OSError, ValueError):
        return {}
    try:
        if number == errno.EXDEV:
            return trail.way_out(raw)
        if number == errno.ENOENT:
            return trail.missing()
        if number == errno.ENOTDIR:
            return trail.not_a_folder()
        if number in _DENIED:
            return trail.refusal(number, entry)
        if number == errno.ELOOP:
            return trail.link_fields()
        if number == errno.EAGAIN:
            return trail.lease()
    except (OSError, ValueError):  # it changed meanwhile
        pass
    finally:
        trail.close()
    return {}


class _Trail:
    """How far a path leads: ``folder`` is the last folder reached (held), called ``where``; ``rest`` the parts beyond it."""

    def __init__(self, roots: Roots, raw: bytes) -> None:
        """Raises OSError where not even its root can be opened."""
        self._roots = roots
        self.folder = -1
        self.where = b""
        self.rest: list[bytes] = []
        self.link: tuple[bytes, bytes] | None = None
        self.left = False  # whether it leads out of the roots
        self.error = 0
        for _ in range(STEPS):
            try:
                root, rest = roots.resolve_root(raw)
            except OSError:
                self.left = True
                return
            again = self._follow(root, [part for part in rest.split(b"/") if part not in (b"", b".")])
            if again is None:
                return
            raw = again

    def close(self) -> None:
        """Release the folder."""
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def _follow(self, root: bytes, parts: list[bytes]) -> bytes | None:
        """Go down from a root; the path to go on with after a link or `..`, None at the end."""
        self.close()
        self.folder = os.dup(self._roots.hold(root))
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

    def _shown(self, *parts: bytes) -> str:
        return self._roots.display(os.path.join(self.where, *parts))

    # --- what explains it ------------------------------------------------------------------
    def link_fields(self) -> dict[str, Any]:
        """The last link on the way."""
        if self.link is None:
            return {}
        return {"link": self._roots.display(self.link[0]), "target": self.link[1].decode("utf-8", "replace")}

    def way_out(self, raw: bytes) -> dict[str, Any]:
        """The link that leads out; or, of an absolute path, what is there in the workspace."""
        if self.link is not None:
            return self.link_fields()
        inside = os.path.normpath(raw).lstrip(b"/")
        if raw.startswith(b"/") and inside and self._roots.is_there(inside):
            return {"near": [self._roots.display(inside)]}
        return {}

    def missing(self) -> dict[str, Any]:
        """The first part that is not there, the folder it would be in, and what is called almost so."""
        found = self.link_fields()
        if self.left or not self.rest or self.error != errno.ENOENT:
            return found
        part = self.rest[0]
        names = self._names()
        alike = _alike(part, names)
        shown = [path for name in alike if self._leads(path := os.path.join(name, *self.rest[1:]))]
        shown = shown or alike or self._one_level_down(names)
        return {
            **found,
            "missing": self._shown(part),
            "folder": self._shown(),
            "parts_left": len(self.rest) - 1,
            "near": [self._shown(path) for path in shown[:SHOWN]],
        }

    def _leads(self, path: bytes) -> bool:
        return self._roots.is_there(os.path.join(self.where, path))

    def _names(self) -> list[bytes]:
        try:
            fd = os.open(b".", DIRECTORY, dir_fd=self.folder)
        except OSError:  # it may be entered and not read
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
        """The same path, one folder further down: "invoicer/pricing.py" where it is "src/invoicer/pricing.py"."""
        deadline = time.monotonic() + SECONDS
        found: list[bytes] = []
        for name in sorted(names):
            path = os.path.join(name, *self.rest)
            if time.monotonic() > deadline or len(found) == SHOWN:
                break
            if self._leads(path):
                found.append(path)
        return found

    def not_a_folder(self) -> dict[str, Any]:
        """The part that is a file, where a folder would have to be."""
        return {"part": self._shown(self.rest[0]), "parts_left": len(self.rest) - 1} if self.rest else {}

    def lease(self) -> dict[str, Any]:
        """The process that holds a lease (fcntl F_SETLEASE) on the file, as far as the kernel names it."""
        found: dict[str, Any] = {"leased": True, "lease_break_seconds": _lease_break_seconds()}
        inode = os.stat(self.rest[0], dir_fd=self.folder, follow_symlinks=False).st_ino if self.rest else 0
        with open("/proc/locks", encoding="ascii", errors="replace") as lines:
            for words in map(str.split, lines):
                if len(words) > 5 and words[1] == "LEASE" and words[5].endswith(f":{inode}") and words[4].isdigit():
                    found |= {"holder": int(words[4]), "program": _program(words[4])}
        return found

    def refusal(self, number: int, entry: bool) -> dict[str, Any]:
        """Whose mode forbids it."""
        if number == errno.EROFS:
            return {"read_only": True}
        user = kernel.files_user()
        own = os.fstat(self.folder)
        if self.error in _DENIED:
            return _blamed(self._shown(), own, "enter", user)
        if not self.rest:
            lacks = None if entry else _lacking(own, user, "read", "enter", "write")
            return _blamed(self._shown(), own, lacks, user) if lacks else self._below_or_above(user)
        if not self.error and not entry:  # a file that is there
            status = os.stat(self.rest[0], dir_fd=self.folder, follow_symlinks=False)
            if lacks := _lacking(status, user, "read", "write"):
                return _blamed(self._shown(self.rest[0]), status, lacks, user)
        lacks = _lacking(own, user, "write", "enter")
        return _blamed(self._shown(), own, lacks, user) if lacks else {}

    def _below_or_above(self, user: tuple[int, int]) -> dict[str, Any]:
        """A folder that could not be moved or deleted: the folder above it forbids that, or one in it."""
        if self.where not in self._roots.names:
            above = os.stat(b"..", dir_fd=self.folder)
            if lacks := _lacking(above, user, "write", "enter"):
                return _blamed(self._roots.display(os.path.dirname(self.where)), above, lacks, user)
        own = os.fstat(self.folder)
        if lacks := _lacking(own, user, "write", "enter", "read"):
            return _blamed(self._shown(), own, lacks, user)
        items = walk(os.open(b".", DIRECTORY, dir_fd=self.folder))
        try:
            for count, item in enumerate(items):
                if count == BELOW:
                    break
                lacks = (
                    _lacking(item.status, user, "write", "enter", "read") if stat.S_ISDIR(item.status.st_mode) else None
                )
                if lacks:
                    return _blamed(self._shown(item.path), item.status, lacks, user)
        finally:
            items.close()
        return {}


def _lease_break_seconds() -> int | None:
    """After how long the kernel takes a lease away that somebody else waits for; 0 for never, None where it does not say."""
    try:
        with open("/proc/sys/fs/lease-break-time", encoding="ascii") as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return None


def _program(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:  # it has ended meanwhile
        return ""


_BITS = {"read": 4, "write": 2, "enter": 1}


def _lacking(status: os.stat_result, user: tuple[int, int], *wanted: str) -> str | None:
    """The first of the wanted rights that the mode does not give the user."""
    shift = 6 if status.st_uid == user[0] else 3 if status.st_gid == user[1] else 0
    return next((right for right in wanted if not status.st_mode >> shift & _BITS[right]), None)


def _blamed(path: str, status: os.stat_result, lacks: str, user: tuple[int, int]) -> dict[str, Any]:
    return {
        "part": path,
        "lacks": lacks,
        "is_folder": stat.S_ISDIR(status.st_mode),
        "mode": f"{stat.S_IMODE(status.st_mode):03o}",
        "owner": status.st_uid,
        "owned": status.st_uid == user[0],
    }


def _alike(wanted: bytes, names: list[bytes]) -> list[bytes]:
    """The names most like the wanted one, best first: another case first of all."""
    from difflib import SequenceMatcher

    lower = wanted.lower()
    same = [name for name in names if name.lower() == lower]
    if same:
        return sorted(same)[:SHOWN]
    deadline = time.monotonic() + SECONDS
    stem = _stem(lower).decode("latin-1")
    matcher = SequenceMatcher(autojunk=False, b=stem)
    found: list[tuple[float, bytes]] = []
    for name in names:
        if time.monotonic() > deadline:
            break
        other = _stem(name.lower()).decode("latin-1")
        if min(len(stem), len(other)) < 3:  # short names are alike by chance
            continue
        matcher.set_seq1(other)
        if (
            matcher.real_quick_ratio() >= LEAST_ALIKE
            and matcher.quick_ratio() >= LEAST_ALIKE
            and (ratio := matcher.ratio()) >= LEAST_ALIKE
        ):
            found.append((-ratio, name))
    return [name for _, name in sorted(found)[:SHOWN]]


def _stem(name: bytes) -> bytes:
    return (os.path.splitext(name)[0] or name)[:100]
