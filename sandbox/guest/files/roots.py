"""Opening files beneath the roots, so that nothing outside is ever touched, whatever links and races the sandbox sets up.

No path is checked first and then opened by its name. The kernel resolves it beneath a root held open (openat2 with
RESOLVE_BENEATH, Linux 5.6). Where it refuses (an absolute link that leads into a root, `..` from one root into another) or the call
is not allowed, a walk with O_NOFOLLOW resolves component by component on held descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from functools import lru_cache

from ..loop.context import Place
from ..protocol.faults import Fault, fault_of
from ..system_calls import OPENAT2

RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS = 0x08, 0x02
PATH_MAX, NAME_MAX = 4096, 255
LINK_BUDGET = 40  # as many as Linux follows (path_resolution(7))
RESTART_BUDGET = 256  # how often the walk may restart for a `..`; each restart costs the components before it
SAFE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(dir_fd: int, path: bytes, flags: int) -> int:
    """Open ``path`` beneath ``dir_fd``. Raises OSError: EXDEV if it leads out, ENOSYS or EPERM if the call is not available."""
    how = _OpenHow(flags, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    while True:
        fd: int = _libc.syscall(OPENAT2, dir_fd, path, ctypes.byref(how), ctypes.sizeof(how))
        number = ctypes.get_errno()
        if fd >= 0:
            return fd
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def encode_path(path: str) -> bytes:
    """Return the path as the kernel's bytes. Raises Fault ``path_invalid`` for a path that no file can have."""
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
        raise Fault("path_invalid", path=printable(raw[:60]) + "...", problem=problem)
    if len(raw) >= PATH_MAX:
        problem = f"it has {len(raw)} bytes, and the limit is {PATH_MAX - 1}"
        raise Fault("path_invalid", path=printable(raw[:60]) + "...", problem=problem)
    return raw


def printable(path: bytes) -> str:
    """Return a path as valid Unicode text: bytes that are not UTF-8 are replaced."""
    return path.decode("utf-8", "replace")


class Roots:
    """The folders that file operations may touch; each is held by a descriptor that is opened once.

    ``folders`` are the folders themselves, in the order of ``roots``, if these are only the paths by which callers know them.
    """

    def __init__(self, workspace: bytes, roots: tuple[bytes, ...], folders: tuple[bytes, ...] = ()) -> None:
        self.workspace = os.path.normpath(workspace)
        self.names = tuple(os.path.normpath(root) for root in roots)
        self._folders = dict(zip(self.names, folders, strict=False))
        self._held: dict[bytes, int] = {}
        self._real: dict[bytes, bytes] = {}

    def __del__(self) -> None:
        for fd in self._held.values():
            os.close(fd)

    def open(self, path: str, flags: int) -> int:
        """Open an existing path; to create a file, use ``open_parent``. Raises the Fault for the kernel's error."""
        raw = encode_path(path)
        try:
            return self._open(raw, flags | os.O_CLOEXEC)
        except OSError as error:
            raise self.fault_for(error, path) from None

    def open_regular(self, path: str, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
        """Open a regular file. Returns its descriptor and status. Raises Fault; FIFOs, sockets and devices never block."""
        raw = encode_path(path)
        try:
            fd = self._open(raw, flags | SAFE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a FIFO opened for writing that has no reader
                raise Fault("not_a_regular_file", path=self.display(path), kind="socket or fifo") from None
            raise self.fault_for(error, path) from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise self.irregular_fault(path, status)
        return fd, status

    def open_parent(self, path: str) -> tuple[int, bytes]:
        """Open the folder that contains ``path``. Returns its descriptor and the name in it, which need not exist. Raises Fault."""
        head, name = self._split(encode_path(path), path)
        try:
            return self._open_dir(head), name
        except OSError as error:
            raise self.fault_for(error, path) from None

    def follow(self, path: str) -> tuple[int, bytes]:
        """Return what ``open_parent`` does, for what a link at ``path`` leads to in the end. Raises Fault."""
        raw = encode_path(path)
        try:
            for _ in range(LINK_BUDGET):
                head, name = self._split(raw, path)
                fd = self._open_dir(head)
                link = _link_at(fd, name)
                if link is None:
                    return fd, name
                os.close(fd)
                raw = os.path.join(head, link)
            raise OSError(errno.ELOOP, "too many links")
        except OSError as error:
            raise self.fault_for(error, path) from None

    def make_parent(self, path: str) -> tuple[int, bytes, int]:
        """Do as ``open_parent``, and make the folder and its parents if they are missing. Returns also how many were made."""
        folder = os.path.dirname(path)
        if not folder:
            return *self.open_parent(path), 0
        name = self._split(encode_path(path), path)[1]  # no folder is made for an impossible name
        fd, made = self.make_dirs(folder)
        return fd, name, made

    def make_dirs(self, path: str) -> tuple[int, int]:
        """Open the folder ``path``, made with its parents if missing. Returns its descriptor and how many were made."""
        raw = encode_path(path)
        missing: list[bytes] = []
        made = 0
        try:
            while (fd := self._open_dir_if_there(raw)) is None:
                raw, name = os.path.split(raw.rstrip(b"/"))
                missing.append(name)
            if b".." in missing:
                os.close(fd)
                raise OSError(errno.ENOENT, "a folder before .. is missing")
            for name in reversed(missing):
                fd, new = _make_and_enter(fd, name)
                made += new
        except OSError as error:
            raise self.fault_for(error, path, effects="partial" if made else "none") from None
        return fd, made

    def display(self, path: str | bytes) -> str:
        """Return the path as the agent would write it: relative if it is in the workspace, otherwise absolute."""
        raw = path if isinstance(path, bytes) else _display_bytes(path)
        full = os.path.normpath(os.path.join(self.workspace, raw))
        if full == self.workspace:
            return "."
        return printable(full.removeprefix(self.workspace + b"/"))

    def displayed_names(self) -> list[str]:
        """Return the absolute paths of the roots as text."""
        return [printable(root) for root in self.names]

    def exists(self, raw: bytes) -> bool:
        """Return whether the path leads to something inside the roots."""
        try:
            os.close(self._open(raw, os.O_PATH | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    def is_missing(self, path: str) -> bool:
        """Return whether nothing is at the path; cheap, as it does not look for the reason. Raises Fault as ``encode_path``."""
        try:
            os.close(self._open(encode_path(path), os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR)
        return False

    def fault_for(self, error: OSError, path: str, effects: str = "none", *, entry: bool = False) -> Fault:
        """Return the fault for the kernel's error on ``path``, with the fields that explain it (see ``path_problems.explain``)."""
        from .path_problems import explain  # loaded only after an error

        outside = {"roots": self.displayed_names()} if error.errno == errno.EXDEV else {}
        fields = {**outside, **explain(self, error.errno or 0, path, entry=entry)}
        if error.errno == errno.EAGAIN:  # from an open that does not wait; from a fork it would mean too many processes
            fault = Fault("io_error", path=self.display(path), errno="EAGAIN", **fields)
        else:
            fault = fault_of(error, self.display(path), **fields)
        fault.effects = effects
        return fault

    def irregular_fault(self, path: str, status: os.stat_result) -> Fault:
        """Return the fault for a path that is not a regular file."""
        if stat.S_ISDIR(status.st_mode):
            return Fault("is_a_directory", path=self.display(path))
        return Fault("not_a_regular_file", path=self.display(path), kind=file_kind(status.st_mode))

    def resolve_root(self, raw: bytes) -> tuple[bytes, bytes]:
        """Return the root in which a path begins, and the rest of the path. Raises OSError EXDEV if it begins in none."""
        if not raw.startswith(b"/"):
            return self.workspace, raw
        before: list[bytes] = []
        parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
        for i, part in enumerate(parts):
            if part == b"..":
                del before[-1:]
            else:
                before.append(part)
            root = self._root_named(b"/" + b"/".join(before))
            if root is not None:
                return root, b"/".join(parts[i + 1 :])
        if b"/" in self.names:
            return b"/", b"/".join(parts)
        raise OSError(errno.EXDEV, "outside the roots")

    def _root_named(self, name: bytes) -> bytes | None:
        if name in self.names:
            return name
        return next((root for root, real in self._real.items() if real == name), None)

    def _is_root(self, raw: bytes) -> bool:
        return self._root_named(os.path.normpath(os.path.join(self.workspace, raw))) is not None

    def root_fd(self, root: bytes) -> int:
        """Return the descriptor of a root. Raises OSError if the root is gone."""
        fd = self._held.get(root)
        if fd is None:
            fd = os.open(self._folders.get(root, root), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._real[root] = root if root in self._folders else os.path.realpath(root)
            if self._held.setdefault(root, fd) != fd:  # another thread was faster
                os.close(fd)
        return self._held[root]

    def _split(self, raw: bytes, path: str) -> tuple[bytes, bytes]:
        """Return the folder and the name of ``raw``, to which ``path`` led. Raises Fault if nothing can be made at that place."""
        head, name = os.path.split(raw.rstrip(b"/") or b"/")
        if name in (b"", b".", b".."):
            problem = "it does not end in the name of a file or folder"
        elif self._is_root(raw):
            problem = "it is a root of the sandbox's files"
        else:
            return head, name
        raise Fault("path_invalid", path=self.display(path), problem=problem)

    def _open_dir(self, raw: bytes) -> int:
        if not raw:
            return os.dup(self.root_fd(self.workspace))
        return self._open(raw, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _open_dir_if_there(self, raw: bytes) -> int | None:
        try:
            return self._open_dir(raw)
        except FileNotFoundError:
            if raw in (b"", b".", b"/") or self._is_root(raw):
                raise
            return None

    def _open(self, raw: bytes, flags: int) -> int:
        root, rest = self.resolve_root(raw)
        if raw.endswith((b"/", b"/.")):
            flags |= os.O_DIRECTORY
        try:
            fd = openat2(self.root_fd(root), rest or b".", flags)
        except OSError as error:
            # EAGAIN: something was renamed while a `..` was resolved
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EAGAIN):
                raise
            fd = self.walk(raw, flags)
        if b"/" in self.names:
            _check_not_of_guest(fd)
        return fd

    def walk(self, raw: bytes, flags: int) -> int:
        """Open as openat2 does, but allow links and `..` that cross from one root into another. Raises OSError."""
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
        """Return a descriptor; or the path with which to continue, and whether that is due to a link (not a `..`)."""
        here = os.dup(self.root_fd(root))
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
                    # a file, or a link that was made this very moment
                    raise OSError(errno.ENOTDIR, "not a folder")
            return os.open(b".", flags, dir_fd=here)
        finally:
            os.close(here)


def _check_not_of_guest(fd: int) -> None:
    """Close ``fd`` and raise OSError EACCES if it is of what /proc says of this process, or of a thread of it.

    The kernel lets every process read its own, its memory map for one, also in a thread that acts as the user.
    """
    try:
        if os.fstat(fd).st_dev != _device_of_proc():
            return
        of = os.readlink(f"/proc/self/fd/{fd}").removeprefix("/proc/").partition("/")[0]
        if not of.isdecimal() or not os.path.exists(f"/proc/self/task/{of}"):
            return
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise OSError(errno.EACCES, "of the guest itself")


@lru_cache(maxsize=1)
def _device_of_proc() -> int:
    return os.stat("/proc").st_dev


@lru_cache(maxsize=8)
def _roots(workspace: bytes, roots: tuple[bytes, ...], folders: tuple[bytes, ...]) -> Roots:
    return Roots(workspace, roots, folders)


def roots_of(place: Place) -> Roots:
    """Return the roots of a place: always the same object, so that its descriptors are opened once."""
    return _roots_with(place, ())


def readable_roots_of(place: Place) -> Roots:
    """Return the roots of a place, those that may only be read included."""
    return _roots_with(place, place.read_roots)


def _roots_with(place: Place, more: tuple[bytes, ...]) -> Roots:
    names = place.root_names
    if names:
        return _roots(names[0], (*names, *more), place.roots)
    return _roots(place.workspace, (*place.roots, *more), ())


def _display_bytes(path: str) -> bytes:
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # not a valid path, but it must be displayed
        return path.encode("utf-8", "replace")


def file_kind(mode: int) -> str:
    """Return the kind of a file by its mode, in a word."""
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "file"


def _link_at(dir_fd: int, name: bytes) -> bytes | None:
    """Return the target of the link ``name``, or None if it is missing or not a link."""
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
    """Open the folder ``name`` of ``dir_fd``, made if missing. Returns its descriptor, and 1 if it was made. Closes ``dir_fd``."""
    try:
        try:
            os.mkdir(name, 0o777, dir_fd=dir_fd)
            made = 1
        except FileExistsError:  # made by someone else at the same time; anything else fails as "not a folder"
            made = 0
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd), made
    finally:
        os.close(dir_fd)
