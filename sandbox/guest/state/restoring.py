"""Making workspace and home again what they were: everything new is first written aside, then put in place in one go.

Steps come in the order of the stream: what is to be removed, contents and links, then the rest. Nothing is changed before the whole
stream is there, except where the file system has no room for old and new beside each other: then what is to be removed goes first.
"""

from __future__ import annotations

import errno
import os
import stat

from ..commands.sessions import Session
from ..files.beneath import shown
from ..files.tree import remove_tree
from ..files.walking import DIRECTORY
from ..loop.context import StateCall
from ..protocol.faults import Fault, fault_of
from ..protocol.records import ATTRIBUTES, END, HOME, LINK, MAKE, POINT, PUT, REMOVE, SAME, STEP, WORKSPACE, sessions_of
from .fetching import Folders
from .scanning import root_path, running
from .steps import Step, Stream, change_mode, open_up, write_content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STEPS = 2_000_000
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def restore(call: StateCall) -> dict[str, Any]:
    """The handler of ``restore``. Raises Fault, ``commands_running`` where anything runs."""
    if ids := running(call):
        raise Fault("commands_running", ids=ids[:10], count=len(ids))
    sessions = _sessions_given(call)
    restoring = _Restoring(call)
    try:
        restoring.take()
        restoring.carry_out()
    except OSError as error:
        fault = fault_of(error, restoring.at)
        fault.effects = restoring.effects
        raise fault from None
    except Fault as fault:
        fault.effects = restoring.effects
        raise
    finally:
        restoring.close()
    call.hand_over(lambda: _set_sessions(call, sessions))
    return {"steps": restoring.steps, "running": running(call)}


def _sessions_given(call: StateCall) -> dict[str, Any]:
    """The states that sessions are to have: checked before anything is changed. Raises Fault."""
    most = call.place.limits["sessions"]
    try:
        sessions = sessions_of(call.args.get("sessions"))
    except ValueError as error:
        raise Fault("invalid_arguments", problem=f"these are no states of sessions: {error}") from None
    if len(sessions) > most:
        raise Fault("too_many_commands", limit=most, what="sessions")
    return sessions


def _set_sessions(call: StateCall, states: dict[str, Any]) -> None:
    """Give every session the state that was kept; one that is at work, or was not there, is left alone or forgotten."""
    sessions = call.processes.sessions
    for name in [n for n, s in sessions.items() if n not in states and not s.busy]:
        del sessions[name]
    for name, state in states.items():
        session = sessions.setdefault(name, Session("", {}))
        if not session.busy:
            session.cwd, session.env = state["cwd"], dict(state["env"])
            session.functions, session.variables = state["functions"], dict(state["variables"])


class _Restoring:
    def __init__(self, call: StateCall) -> None:
        self._call = call
        self._folders = Folders(call)
        self._stages: dict[int, int] = {}
        self._stage_name = b".gamebox-restore-" + os.urandom(8).hex().encode()
        self._later: list[Step] = []
        self.effects = "none"
        self.at = "."
        self.steps = 0
        self._short = self._is_short()

    def _is_short(self) -> bool:
        """Whether a root has no room for what is new beside what is old."""
        for root in (WORKSPACE, HOME):
            state = os.statvfs(root_path(self._call, root))
            if int(self._call.args["sizes"][root]) > state.f_bavail * state.f_frsize - (1 << 20):
                return True
        return False

    def close(self) -> None:
        """Remove what is left aside, let go of descriptors."""
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

    # --- taking ------------------------------------------------------------------
    def take(self) -> None:
        """Read the stream: contents and links are written aside, the other steps kept for later."""
        stream = Stream(self._call.body())
        while True:
            root, kind, mode, uid, gid, mtime, length, more = STEP.unpack(stream.exactly(STEP.size))
            if kind == END:
                break
            self.steps += 1
            if self.steps > STEPS:
                raise Fault("too_many_files", limit=STEPS)
            step = Step(root, kind, mode, uid, gid, mtime, stream.exactly(length), stream.exactly(more))
            self.at = shown(step.path)
            if kind == PUT:
                self._put(step, stream)
            elif kind == POINT:
                self._point(step)
            elif kind == REMOVE and self._short:
                self.effects = "partial"
                self._remove(step)
                continue
            self._later.append(step)

    def _stage(self, root: int) -> int:
        if root not in self._stages:
            top = self._folders.top(root)
            self._writable(root, b"")
            os.mkdir(self._stage_name, 0o700, dir_fd=top)
            self._stages[root] = os.open(self._stage_name, DIRECTORY, dir_fd=top)
        return self._stages[root]

    def _put(self, step: Step, stream: Stream) -> None:
        stage = self._stage(step.root)
        step.staged = b"%d" % self.steps
        fd = os.open(step.staged, NEW, 0o600, dir_fd=stage)
        try:
            write_content(fd, stream)
            self._own(fd, step)
            os.fchmod(fd, step.mode)
            os.utime(fd, ns=(step.mtime, step.mtime))
        finally:
            os.close(fd)

    def _point(self, step: Step) -> None:
        stage = self._stage(step.root)
        step.staged = b"%d" % self.steps
        os.symlink(step.target, step.staged, dir_fd=stage)
        if self._call.place.uid == 0:
            os.chown(step.staged, step.uid, step.gid, dir_fd=stage, follow_symlinks=False)
        os.utime(step.staged, ns=(step.mtime, step.mtime), dir_fd=stage, follow_symlinks=False)

    def _own(self, target: int, step: Step) -> None:
        if self._call.place.uid == 0:  # nobody else may give files away
            os.chown(target, step.uid, step.gid)

    # --- carrying out ------------------------------------------------------------------
    def carry_out(self) -> None:
        """All steps; from here on something is changed."""
        if ids := running(self._call):
            raise Fault("commands_running", ids=ids[:10], count=len(ids))
        doing: dict[bytes, Callable[[Step], None]] = {
            REMOVE: self._remove, MAKE: self._make, PUT: self._place, POINT: self._place, SAME: self._same,
            ATTRIBUTES: self._attributes,
        }  # fmt: skip
        for step in self._later:
            self.effects = "partial"
            self.at = shown(step.path)
            if step.kind not in doing:
                raise Fault("invalid_arguments", problem=f"there is no step {step.kind!r}")
            if step.kind == ATTRIBUTES:  # everything is in its place; and times of folders come last
                self._drop_stages()
            doing[step.kind](step)

    def _inside(self, step: Step, change: Callable[[int, bytes], None]) -> None:
        """Change a name in its folder, which is made writable for that: its own mode comes with a later step."""
        folder, name = self._folders.holding(step.root, step.path)
        try:
            change(folder, name)
        except PermissionError:
            self._writable(step.root, os.path.dirname(step.path))
            folder, name = self._folders.holding(step.root, step.path)
            change(folder, name)

    def _writable(self, root: int, path: bytes) -> None:
        if path:
            self._folders.forget()
            folder, name = self._folders.holding(root, path)
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
                open_up(folder, name)
                remove_tree(folder, name)

        self._inside(step, change)
        self._folders.forget()

    def _make(self, step: Step) -> None:
        self._inside(step, lambda folder, name: os.mkdir(name, 0o700, dir_fd=folder))

    def _place(self, step: Step) -> None:
        stage = self._stages[step.root]
        self._inside(step, lambda folder, name: os.rename(step.staged, name, src_dir_fd=stage, dst_dir_fd=folder))

    def _same(self, step: Step) -> None:
        """Another name of a file; ``target`` is its first one, below the same root."""
        source_folder, source = self._folders.holding(step.root, step.target)
        held = os.dup(source_folder)
        temporary = b".gamebox-" + os.urandom(8).hex().encode()

        def change(folder: int, name: bytes) -> None:
            os.link(source, temporary, src_dir_fd=held, dst_dir_fd=folder, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

        try:
            self._inside(step, change)
        finally:
            os.close(held)

    def _attributes(self, step: Step) -> None:
        """Mode, owner and time of what is there. A mode that closes a folder to its owner comes after all that is in it."""
        if not step.path:
            self._set(self._folders.top(step.root), step)
            return
        folder, name = self._folders.holding(step.root, step.path)
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
        try:
            self._set(fd, step, folder, name)
        finally:
            os.close(fd)

    def _set(self, fd: int, step: Step, folder: int | None = None, name: bytes = b".") -> None:
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
