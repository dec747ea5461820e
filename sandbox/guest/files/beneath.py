"""Opening files so that nothing outside the roots is ever touched, whatever links and races the sandbox sets up.

No path is checked and then opened by its name. The kernel resolves it beneath a held root (openat2 with
RESOLVE_BENEATH, Linux 5.6); where it refuses (an absolute link that leads into a root, `..` from one root into another)
or is not allowed to try, a walk with O_NOFOLLOW resolves component by component on held descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from functools import lru_cache

from ..loop.context import Place
from ..protocol.faults import Fault, fault_of

RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS = 0x08, 0x02
SYS_OPENAT2 = 437  # the same on x86_64 and aarch64
PATH_MAX, NAME_MAX = 4096, 255
LINK_BUDGET = 40  # what Linux follows (path_resolution(7))
RESTART_BUDGET = 256  # how often the walk may start anew for a `..`; each costs the components before it
SAFE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(dir_fd: int, path: bytes, flags: int) -> int:
    """Open ``path`` beneath ``dir_fd``. Raises OSError: EXDEV where it leads out, ENOSYS or EPERM if barred."""
    how = _OpenHow(flags, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    while True:
        fd: int = _libc.syscall(SYS_OPENAT2, dir_fd, path, ctypes.byref(how), ctypes.sizeof(how))
        number = ctypes.get_errno()
        if fd >= 0:
            return fd
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def encoded(path: str) -> bytes:
    """The path as the kernel's bytes. Raises Fault ``path_invalid`` for what no file can be called."""
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Fault("path_invalid", path=ascii(path), problem="it is not valid Unicode") from None
    if not raw:
        raise Fault("path_invalid", path=path, problem="it is empty")
    if b"\0" in raw:
        raise Fault("path_invalid", path=path.replace("\0", "\\0"), problem="it contains a NUL character")
    longest = max(raw.split(b"/"), key=len)
    if len(longest) > NAME_MAX:
        problem = f"a name in it has {len(longest)} bytes, and the limit is {NAME_MAX}"
        raise Fault("path_invalid", path=shown(raw[:60]) + "...", problem=problem)
    if len(raw) >= PATH_MAX:
        problem = f"it has {len(raw)} bytes, and the limit is {PATH_MAX - 1}"
        raise Fault("path_invalid", path=shown(raw[:60]) + "...", problem=problem)
    return raw


def shown(path: bytes) -> str:
    """A path as text that is valid Unicode: bytes that are not UTF-8 are replaced."""
    return path.decode("utf-8", "replace")


class Roots:
    """The folders that file operations may touch, each held by a descriptor opened once."""

    def __init__(self, workspace: bytes, roots: tuple[bytes, ...]) -> None:
        self.workspace = os.path.normpath(workspace)
        self.names = tuple(os.path.normpath(root) for root in roots)
        self._held: dict[bytes, int] = {}
        self._real: dict[bytes, bytes] = {}

    def __del__(self) -> None:
        for fd in self._held.values():
            os.close(fd)

    def open(self, path: str, flags: int) -> int:
        """Open what is there (O_CREAT is for ``parent``). Raises Fault with the code of what the kernel refused."""
        raw = encoded(path)
        try:
            return self._open(raw, flags | os.O_CLOEXEC)
        except OSError as error:
            raise self.fault(error, path) from None

    def regular(self, path: str, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
        """Open a regular file and say what it is; FIFOs, sockets and devices are refused and never block."""
        raw = encoded(path)
        try:
            fd = self._open(raw, flags | SAFE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket; a FIFO opened for writing that nobody reads
                raise Fault("not_a_regular_file", path=self.display(path), kind="socket or fifo") from None
            raise self.fault(error, path) from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise self.irregular(path, status)
        return fd, status

    def parent(self, path: str, *, follow: bool) -> tuple[int, bytes]:
        """A descriptor of the folder that holds ``path``, and the name in it, which may not exist yet.

        With ``follow`` links at the end of the path are followed to their end; else the name is the link's own.
        """
        raw = encoded(path)
        try:
            for _ in range(LINK_BUDGET):
                head, name = os.path.split(raw.rstrip(b"/") or b"/")
                if name in (b"", b".", b".."):
                    raise Fault(
                        "path_invalid",
                        path=self.display(path),
                        problem="it does not end in the name of a file or folder",
                    )
                if self._is_root(raw):
                    raise Fault("path_invalid", path=self.display(path), problem="it is a root of the sandbox's files")
                fd = self._open(head or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                link = _link_at(fd, name) if follow else None
                if link is None:
                    return fd, name
                os.close(fd)
                raw = os.path.join(head, link)
            raise OSError(errno.ELOOP, "too many links")
        except OSError as error:
            raise self.fault(error, path) from None

    def make_dirs(self, path: str) -> tuple[int, int]:
        """A descriptor of the folder ``path``, made with its parents where missing, and how many were made."""
        raw = encoded(path)
        missing: list[bytes] = []
        made = 0
        try:
            while (fd := self._open_dir_if_there(raw or b".")) is None:
                raw, name = os.path.split(raw.rstrip(b"/"))
                missing.append(name)
            if b".." in missing:
                os.close(fd)
                raise OSError(errno.ENOENT, "a folder before .. is missing")
            for name in reversed(missing):
                fd, new = _make_and_enter(fd, name)
                made += new
        except OSError as error:
            raise self.fault(error, path, effects="partial" if made else "none") from None
        return fd, made

    def display(self, path: str | bytes) -> str:
        """The path as the agent would write it: relative to the workspace when beneath it, else absolute."""
        raw = path if isinstance(path, bytes) else _as_bytes(path)
        full = os.path.normpath(os.path.join(self.workspace, raw))
        if full == self.workspace:
            return "."
        return shown(full.removeprefix(self.workspace + b"/"))

    def is_there(self, raw: bytes) -> bool:
        """Whether the path leads to something inside the roots."""
        try:
            os.close(self._open(raw, os.O_PATH | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    def is_missing(self, path: str) -> bool:
        """Whether nothing is at the path, without looking for why: for those who ask often. Raises Fault as ``encoded`` does."""
        try:
            os.close(self._open(encoded(path), os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR)
        return False

    def fault(self, error: OSError, path: str, effects: str = "none", *, entry: bool = False) -> Fault:
        """The fault for what the kernel refused on ``path``, with what explains it; for ``entry`` see ``obstacles.explain``."""
        from .obstacles import explain  # only where something was refused

        outside = {"roots": [shown(root) for root in self.names]} if error.errno == errno.EXDEV else {}
        fields = {**outside, **explain(self, error.errno or 0, path, entry=entry)}
        if error.errno == errno.EAGAIN:  # of an open that does not wait; where processes run out it means something else
            fault = Fault("io_error", path=self.display(path), errno="EAGAIN", **fields)
        else:
            fault = fault_of(error, self.display(path), **fields)
        fault.effects = effects
        return fault

    def irregular(self, path: str, status: os.stat_result) -> Fault:
        """The fault for a path that is something else than a regular file."""
        if stat.S_ISDIR(status.st_mode):
            return Fault("is_a_directory", path=self.display(path))
        return Fault("not_a_regular_file", path=self.display(path), kind=kind_of(status.st_mode))

    def resolve_root(self, raw: bytes) -> tuple[bytes, bytes]:
        """The root that a path begins in, and the rest of it. Raises OSError EXDEV where it begins in none."""
        if not raw.startswith(b"/"):
            return self.workspace, raw
        before: list[bytes] = []
        parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
        for i, part in enumerate(parts):
            if part == b"..":
                del before[-1:]
            else:
                before.append(part)
            root = self._root_called(b"/" + b"/".join(before))
            if root is not None:
                return root, b"/".join(parts[i + 1 :])
        if b"/" in self.names:
            return b"/", b"/".join(parts)
        raise OSError(errno.EXDEV, "outside the roots")

    def _root_called(self, name: bytes) -> bytes | None:
        if name in self.names:
            return name
        return next((root for root, real in self._real.items() if real == name), None)

    def _is_root(self, raw: bytes) -> bool:
        return self._root_called(os.path.normpath(os.path.join(self.workspace, raw))) is not None

    def hold(self, root: bytes) -> int:
        """The descriptor of a root. Raises OSError where it is gone."""
        fd = self._held.get(root)
        if fd is None:
            fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._real[root] = os.path.realpath(root)
            if self._held.setdefault(root, fd) != fd:  # another thread was faster
                os.close(fd)
        return self._held[root]

    def _open_dir_if_there(self, raw: bytes) -> int | None:
        try:
            return self._open(raw, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if raw in (b".", b"/") or self._is_root(raw):
                raise
            return None

    def _open(self, raw: bytes, flags: int) -> int:
        root, rest = self.resolve_root(raw)
        if raw.endswith((b"/", b"/.")):
            flags |= os.O_DIRECTORY
        try:
            return openat2(self.hold(root), rest or b".", flags)
        except OSError as error:
            # EAGAIN: something was renamed while a `..` was resolved
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EAGAIN):
                raise
        return self.walk(raw, flags)

    def walk(self, raw: bytes, flags: int) -> int:
        """What openat2 does, with links and `..` that cross from one root into another allowed."""
        links = restarts = 0
        while links <= LINK_BUDGET and restarts <= RESTART_BUDGET:
            root, rest = self.resolve_root(raw)
            if raw.endswith((b"/", b"/.")):
                flags |= os.O_DIRECTORY
            step = self._walk_once(root, [p for p in rest.split(b"/") if p not in (b"", b".")], flags)
            if isinstance(step, int):
                return step
            raw, was_link = step
            links, restarts = links + was_link, restarts + 1
        raise OSError(errno.ELOOP, "too many links")

    def _walk_once(self, root: bytes, parts: list[bytes], flags: int) -> int | tuple[bytes, bool]:
        """A descriptor; or the path to go on with, after a link (True) or a `..`."""
        here = os.dup(self.hold(root))
        try:
            for i, part in enumerate(parts):
                rest = parts[i + 1 :]
                if part == b"..":
                    done = (root, *parts[: i - 1]) if i else (os.path.dirname(self._real[root]),)
                    return os.path.join(*done, *rest), False
                link = _link_at(here, part)
                if link is not None:
                    return os.path.join(root, *parts[:i], link, *rest), True
                if i == len(parts) - 1:
                    return _open_last(here, part, flags)
                child = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = child
                if not stat.S_ISDIR(os.fstat(here).st_mode):
                    # a file; or a link that was set up this very moment
                    raise OSError(errno.ENOTDIR, "not a folder")
            return os.open(b".", flags, dir_fd=here)
        finally:
            os.close(here)


@lru_cache(maxsize=8)
def _roots(workspace: bytes, roots: tuple[bytes, ...]) -> Roots:
    return Roots(workspace, roots)


def roots_of(place: Place) -> Roots:
    """The roots of a place; the same object for the same place, so that its descriptors are opened once."""
    return _roots(place.workspace, place.roots)


def readable_roots_of(place: Place) -> Roots:
    """The roots of a place with those that may only be read."""
    return _roots(place.workspace, (*place.roots, *place.read_roots))


def _as_bytes(path: str) -> bytes:
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no path at all; it is only shown
        return path.encode("utf-8", "replace")


def kind_of(mode: int) -> str:
    """What a file is, in a word, by its mode."""
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "file"


def _link_at(dir_fd: int, name: bytes) -> bytes | None:
    """Where the link ``name`` points to; None where it is no link or not there."""
    try:
        return os.readlink(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _open_last(dir_fd: int, name: bytes, flags: int) -> int:
    fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=dir_fd)
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(fd).st_mode):  # became a link after we looked
        os.close(fd)
        raise OSError(errno.ESTALE, "changed while it was opened")
    return fd


def _make_and_enter(dir_fd: int, name: bytes) -> tuple[int, int]:
    """The folder ``name`` of ``dir_fd``, which is closed, and 1 if it was made."""
    try:
        try:
            os.mkdir(name, 0o777, dir_fd=dir_fd)
            made = 1
        except FileExistsError:  # made by another at the same time; anything else fails as "not a folder"
            made = 0
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd), made
    finally:
        os.close(dir_fd)
