"""Restoring the workspace and the home: new files are first written to a staging folder, then all is put in place at once.

The stream has the steps in order: removals, contents and links, then the rest. Nothing changes before the whole stream has
arrived, unless the file system has no room for old and new files together: then the removals come first.
"""

from __future__ import annotations

import errno
import os
import stat

from ..files.roots import printable
from ..files.tree import remove_tree
from ..files.tree_walk import DIRECTORY
from ..loop.context import StateCall
from ..protocol.chunks import ChunkReader
from ..protocol.faults import Fault, fault_of
from ..protocol.records import (
    ATTRIBUTES,
    END,
    HOME,
    LINK,
    MAKE,
    PART,
    POINT,
    PUT,
    REMOVE,
    SAME,
    STEP,
    WORKSPACE,
    check_sessions,
)
from .fetching import Folders
from .scanning import root_path, running_commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STEPS = 2_000_000
CHUNK = 1 << 18
BLOCK = 4096
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)


def restore(call: StateCall) -> dict[str, Any]:
    """Handle ``restore``. Raises Fault, ``commands_running`` while any command runs."""
    if ids := running_commands(call):
        raise Fault("commands_running", ids=ids[:10], count=len(ids))
    sessions = _parse_sessions(call)
    restoring = _Restoring(call)
    try:
        restoring.receive()
        restoring.apply()
    except OSError as error:
        fault = fault_of(error, restoring.at)
        fault.effects = restoring.effects
        raise fault from None
    except Fault as fault:
        fault.effects = restoring.effects
        raise
    finally:
        restoring.close()
    call.hand_over(lambda: call.processes.sessions.restore(sessions))
    return {"steps": restoring.steps, "running": running_commands(call)}


def _parse_sessions(call: StateCall) -> dict[str, Any]:
    """Return the states of sessions to restore. Raises Fault before anything is changed."""
    most = call.place.limits["sessions"]
    try:
        sessions = check_sessions(call.args.get("sessions"))
    except ValueError as error:
        raise Fault("invalid_arguments", problem=f"the states of sessions are invalid: {error}") from None
    if len(sessions) > most:
        raise Fault("too_many_commands", limit=most, what="sessions")
    return sessions


class Step:
    """One step of the restore; ``staged`` is the name of its file or link in the staging folder."""

    __slots__ = ("gid", "kind", "mode", "mtime", "path", "root", "staged", "target", "uid")

    def __init__(self, root: int, kind: bytes, mode: int, uid: int, gid: int, mtime: int, path: bytes, target: bytes):
        self.root, self.kind, self.mode, self.uid, self.gid, self.mtime = root, kind, mode, uid, gid, mtime
        self.path, self.target = path, target
        self.staged = b""


class _Restoring:
    def __init__(self, call: StateCall) -> None:
        self._call = call
        self._folders = Folders(call)
        self._stages: dict[int, int] = {}
        self._stage_name = b".gamebox-restore-" + os.urandom(8).hex().encode()
        self._pending: list[Step] = []
        self.effects = "none"
        self.at = "."
        self.steps = 0
        self._lacks_room = self._find_lack_of_room()

    def _find_lack_of_room(self) -> bool:
        """Return whether a root has no room for old and new files together."""
        for root in (WORKSPACE, HOME):
            state = os.statvfs(root_path(self._call, root))
            if int(self._call.args["sizes"][root]) > state.f_bavail * state.f_frsize - (1 << 20):
                return True
        return False

    def close(self) -> None:
        """Remove the staging folders and close all descriptors."""
        try:
            self._drop_stages()
        except OSError:
            pass
        self._folders.close()

    def _drop_stages(self) -> None:
        while self._stages:
            root, fd = self._stages.popitem()
            os.close(fd)
            remove_tree(self._folders.top(root), self._stage_name)

    def receive(self) -> None:
        """Read the stream: stage contents and links, and collect the steps."""
        stream = ChunkReader(self._call.body(), _ended_too_soon)
        while True:
            root, kind, mode, uid, gid, mtime, length, target = STEP.unpack(stream.read_exactly(STEP.size))
            if kind == END:
                break
            self.steps += 1
            if self.steps > STEPS:
                raise Fault("too_many_files", limit=STEPS)
            path = stream.read_exactly(length)
            step = Step(root, kind, mode, uid, gid, mtime, path, stream.read_exactly(target))
            self.at = printable(step.path)
            if kind == PUT:
                self._stage_file(step, stream)
            elif kind == POINT:
                self._stage_link(step)
            elif kind == REMOVE and self._lacks_room:
                self.effects = "partial"
                self._remove(step)
                continue
            self._pending.append(step)

    def _stage(self, root: int) -> int:
        if root not in self._stages:
            top = self._folders.top(root)
            self._make_writable(root, b"")
            os.mkdir(self._stage_name, 0o700, dir_fd=top)
            self._stages[root] = os.open(self._stage_name, DIRECTORY, dir_fd=top)
        return self._stages[root]

    def _stage_file(self, step: Step, stream: ChunkReader) -> None:
        stage = self._stage(step.root)
        step.staged = b"%d" % self.steps
        fd = os.open(step.staged, NEW, 0o600, dir_fd=stage)
        try:
            write_content(fd, stream)
            self._set_owner(fd, step)
            os.fchmod(fd, step.mode)
            os.utime(fd, ns=(step.mtime, step.mtime))
        finally:
            os.close(fd)

    def _stage_link(self, step: Step) -> None:
        stage = self._stage(step.root)
        step.staged = b"%d" % self.steps
        os.symlink(step.target, step.staged, dir_fd=stage)
        if self._call.place.uid == 0:
            os.chown(step.staged, step.uid, step.gid, dir_fd=stage, follow_symlinks=False)
        os.utime(step.staged, ns=(step.mtime, step.mtime), dir_fd=stage, follow_symlinks=False)

    def _set_owner(self, target: int, step: Step) -> None:
        if self._call.place.uid == 0:  # only root may give files away
            os.chown(target, step.uid, step.gid)

    def apply(self) -> None:
        """Carry out all steps; from here on files change. Raises OSError and Fault."""
        if ids := running_commands(self._call):
            raise Fault("commands_running", ids=ids[:10], count=len(ids))
        methods: dict[bytes, Callable[[Step], None]] = {
            REMOVE: self._remove,
            MAKE: self._make_folder,
            PUT: self._move_into_place,
            POINT: self._move_into_place,
            SAME: self._link,
            ATTRIBUTES: self._set_attributes_at,
        }
        for step in self._pending:
            self.effects = "partial"
            self.at = printable(step.path)
            if step.kind not in methods:
                raise Fault("invalid_arguments", problem=f"there is no step {step.kind!r}")
            if step.kind == ATTRIBUTES:  # all files are in place, and the times of folders come last
                self._drop_stages()
            methods[step.kind](step)

    def _change_in_folder(self, step: Step, change: Callable[[int, bytes], None]) -> None:
        """Change a name in its folder. The folder is made writable if it must be; a later step sets its mode."""
        folder, name = self._folders.open_parent(step.root, step.path)
        try:
            change(folder, name)
        except PermissionError:
            self._make_writable(step.root, os.path.dirname(step.path))
            folder, name = self._folders.open_parent(step.root, step.path)
            change(folder, name)

    def _make_writable(self, root: int, path: bytes) -> None:
        if path:
            self._folders.forget()
            folder, name = self._folders.open_parent(root, path)
            fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            self._folders.forget()
        else:
            fd = os.dup(self._folders.top(root))
        try:
            status = os.fstat(fd)
            if status.st_uid == self._call.place.uid and status.st_mode & 0o300 != 0o300:
                change_mode(fd, stat.S_IMODE(status.st_mode) | 0o700)
        finally:
            os.close(fd)

    def _remove(self, step: Step) -> None:
        def change(folder: int, name: bytes) -> None:
            try:
                remove_tree(folder, name)
            except FileNotFoundError:
                pass
            except PermissionError:
                grant_access(folder, name)
                remove_tree(folder, name)

        self._change_in_folder(step, change)
        self._folders.forget()

    def _make_folder(self, step: Step) -> None:
        self._change_in_folder(step, lambda folder, name: os.mkdir(name, 0o700, dir_fd=folder))

    def _move_into_place(self, step: Step) -> None:
        stage = self._stages[step.root]

        def change(folder: int, name: bytes) -> None:
            os.rename(step.staged, name, src_dir_fd=stage, dst_dir_fd=folder)

        self._change_in_folder(step, change)

    def _link(self, step: Step) -> None:
        """Make another name of a file; ``target`` is its first one, below the same root."""
        source_folder, source = self._folders.open_parent(step.root, step.target)
        held = os.dup(source_folder)
        temporary = b".gamebox-" + os.urandom(8).hex().encode()

        def change(folder: int, name: bytes) -> None:
            os.link(source, temporary, src_dir_fd=held, dst_dir_fd=folder, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

        try:
            self._change_in_folder(step, change)
        finally:
            os.close(held)

    def _set_attributes_at(self, step: Step) -> None:
        """Set mode, owner and time of a path. A mode that closes a folder to its owner comes after all steps below it."""
        if not step.path:
            self._set_attributes(self._folders.top(step.root), step)
            return
        folder, name = self._folders.open_parent(step.root, step.path)
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
        try:
            self._set_attributes(fd, step, folder, name)
        finally:
            os.close(fd)

    def _set_attributes(self, fd: int, step: Step, folder: int | None = None, name: bytes = b".") -> None:
        status = os.fstat(fd)
        is_link = stat.S_ISLNK(status.st_mode)
        if is_link != (step.target == LINK):
            raise OSError(errno.ESTALE, "it was exchanged")
        if self._call.place.uid == 0 and (status.st_uid, status.st_gid) != (step.uid, step.gid):
            os.chown(name, step.uid, step.gid, dir_fd=folder if folder is not None else fd, follow_symlinks=False)
        where = folder if folder is not None else fd
        os.utime(name, ns=(step.mtime, step.mtime), dir_fd=where, follow_symlinks=False)
        if not is_link and stat.S_IMODE(status.st_mode) != step.mode:
            change_mode(fd, step.mode)


def _ended_too_soon() -> Fault:
    return Fault("transfer_incomplete", problem="the stream ended too soon")


def change_mode(fd: int, mode: int) -> None:
    """Change the mode of a file opened with O_PATH, through /proc, as fchmod refuses such descriptors. Raises OSError."""
    os.chmod(b"/proc/self/fd/%d" % fd, mode)


def grant_access(folder: int, name: bytes) -> None:
    """Give the owner all rights on a folder and on all folders below it, at any depth. Raises OSError."""
    try:
        here = _open_granting_access(folder, name)
    except NotADirectoryError:
        return
    above: list[tuple[int, int, list[bytes]]] = []  # one descriptor is held, not one for each level
    try:
        left = _folders_in(here)
        while left or above:
            if left:
                inner = _open_granting_access(here, left.pop())
                status = os.fstat(here)
                above.append((status.st_dev, status.st_ino, left))
                os.close(here)
                here, left = inner, _folders_in(inner)
                continue
            outer = os.open(b"..", DIRECTORY, dir_fd=here)
            os.close(here)
            here = outer
            status = os.fstat(here)
            *known, left = above.pop()
            if [status.st_dev, status.st_ino] != known:
                raise OSError(errno.ESTALE, "a folder was moved meanwhile")
    finally:
        os.close(here)


def _open_granting_access(folder: int, name: bytes) -> int:
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        change_mode(fd, 0o700)
        return os.open(b".", DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)


def _folders_in(fd: int) -> list[bytes]:
    with os.scandir(fd) as entries:
        return [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]


def write_content(fd: int, stream: ChunkReader) -> None:
    """Write the parts of a content to a file. Raises OSError and Fault."""
    while True:
        at, length = PART.unpack(stream.read_exactly(PART.size))
        if not length:
            os.ftruncate(fd, at)
            return
        _write_part(fd, at, length, stream)


def _write_part(fd: int, at: int, length: int, stream: ChunkReader) -> None:
    """Write a part; whole blocks of zeros become holes."""
    end = at + length
    while at < end:
        data = stream.read_some(min(CHUNK, end - at))
        if data != _ZEROS[: len(data)] or len(data) < BLOCK:
            view, where = memoryview(data), at
            while view:
                written = os.pwrite(fd, view, where)
                view, where = view[written:], where + written
        at += len(data)
