"""The zygote: a small single-threaded process that keeps runners ready, so that a command starts without a slow fork.

    guest ── zygote ── runner (one a command; root, not dumpable, sub-reaper: orphans stay below it)
                          └── leader ── exec ── the command, as the sandbox's user

A leader is forked ahead of time and waits for its descriptors and its spec, which the guest sends it directly. The runner
outlives it: it reaps what the command leaves behind, and when nothing is left it is told (NEXT) to fork the next leader, or
let go.

Packets from a runner's socket: ``L pid`` (a leader is ready), ``G`` (about to exec; where the spec asks), ``E json`` (could not
be started), ``X status alone seconds KiB`` (leader ended; alone is 1 when nothing is left below the runner; processor time and the
largest resident size of what was reaped), ``Z seconds KiB`` (nothing is left now), ``K pid KiB name`` (a child of the runner was
killed by SIGKILL), ``D status`` (the leader was killed before it took a spec, by the kernel for its memory or with everything).

After D the runner waits for NEXT, too. A spec that had been sent is held for the next leader, which says L and waits for GO:
between the two the command may have been stopped, and then it must not begin.
"""

from __future__ import annotations

import array
import errno
import fcntl
import gc
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import termios

from .. import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

STATUS = struct.Struct(">cIBdQ")
EMPTY = struct.Struct(">cdQ")
KILLED = struct.Struct(">cIQ16s")
READY = struct.Struct(">cI")
UNUSED = struct.Struct(">cI")
# stdin, stdout, stderr; where the shell leaves its state, or the folder to start in; a spec that is too long for a packet
DESCRIPTORS = 5
SPEC_IN_PACKET = 32768
SPEC_IN_FILE = b"F"
REFILL = b"R"
NEXT = b"N"
GO = b"C"
# Commands give way to the guest, else 500 processes that fork or spin starve it (seen: its deadlines 3 s late, 0.2 s with this).
# It changes nothing between sandboxes: the engine gives each a share of its own.
YIELDING = 19
# What this process or Python ignores, and a command must not inherit as ignored.
_RESET: tuple[int, ...] = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)


def spent(packet: bytes) -> tuple[float, int]:
    """Processor seconds, and the largest resident size in KiB, in a packet of the kinds X and Z."""
    seconds, kib = EMPTY.unpack(packet)[1:] if packet[:1] == b"Z" else STATUS.unpack(packet)[3:]
    return seconds, kib


def serve(control: socket.socket, setting: dict[str, Any]) -> NoReturn:
    """The zygote's life: one spare runner at the start, another for every REFILL; ends when the guest is gone."""
    gc.disable()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # runners are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if setting["isolated"]:
        _harden(setting)
    try:
        _offer_spare(control, setting)
        while control.recv(16):
            _offer_spare(control, setting)
    except OSError:  # the guest is gone
        pass
    os._exit(0)


def _harden(setting: dict[str, Any]) -> None:
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if not setting["any_user"]:  # else each leader does it, once it knows its user
        kernel.deny_writes_to_proc()
    kernel.filter_system_calls()


def _offer_spare(control: socket.socket, setting: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:  # no process to be had; the guest asks again
        socket.send_fds(control, [b"N"], [])
        ours.close()
        theirs.close()
        return
    if pid == 0:
        control.close()
        theirs.close()
        _run(ours, setting)
    ours.close()
    socket.send_fds(control, [READY.pack(b"S", pid)], [theirs.fileno()])
    theirs.close()


def _run(guest: socket.socket, setting: dict[str, Any]) -> NoReturn:
    """The runner's life: one command after the other, each only when nothing of the last is left and the guest says so."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    leader = _Leader()
    try:
        while True:
            if leader.fork() == 0:
                _lead(guest, leader, setting)
            unused = _reap(guest, leader)
            leader.drop()
            leader.held = _next(guest)
            if not unused:  # a spec for one that failed before it could take it: the guest was told of that
                leader.drop()
    except OSError:  # the guest is gone, or let this runner go; or there is no process to be had
        pass
    os._exit(0)


class _Leader:
    """The leader below a runner: ``pid``, and whether it ``has_spec``, which both see. Nothing was asked of one without.

    ``held`` is a spec with its descriptors that the last leader left untaken.
    """

    __slots__ = ("_shared", "held", "pid")

    def __init__(self) -> None:
        self.pid = 0
        self.held: tuple[bytes, list[int]] | None = None
        self._shared = mmap.mmap(-1, 1)

    def fork(self) -> int:
        """0 in the new leader. Raises OSError."""
        self._shared[0] = 0
        self.pid = os.fork()
        return self.pid

    @property
    def has_spec(self) -> bool:
        return self._shared[0] == 1

    def takes_spec(self) -> None:
        self._shared[0] = 1

    def drop(self) -> None:
        """In the runner, once its leader has what was held, or is gone."""
        held, self.held = self.held, None
        for fd in held[1] if held is not None else ():
            os.close(fd)


class _Spent:
    """What the processes that were reaped had used, with all that they had waited for."""

    __slots__ = ("kib", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.kib = 0


def _next(guest: socket.socket) -> tuple[bytes, list[int]] | None:
    """Wait for NEXT; a spec that came before it. Raises OSError when the guest lets this runner go."""
    held = None
    while True:
        data, descriptors = _packet(guest)
        if data == NEXT:
            return held
        if data != GO:  # to a leader that did not live to hear it
            held = data, descriptors


def _packet(guest: socket.socket) -> tuple[bytes, list[int]]:
    size = DESCRIPTORS * array.array("i").itemsize
    data, ancillary, _, _ = guest.recvmsg(SPEC_IN_PACKET, socket.CMSG_LEN(size), socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise OSError(errno.EPIPE, "the guest is gone")
    descriptors = array.array("i")
    for _, _, payload in ancillary:
        descriptors.frombytes(payload)
    return data, list(descriptors)


def _reap(guest: socket.socket, leader: _Leader) -> bool:
    """Reap until there is nothing below this process; whether the leader was killed before it took a spec."""
    spent = _Spent()
    while True:
        try:
            pid, status = _wait(guest, leader, spent, 0)
        except ChildProcessError:
            guest.send(EMPTY.pack(b"Z", spent.seconds, spent.kib))
            return False
        if pid == leader.pid:
            if os.WIFSIGNALED(status) and not leader.has_spec:
                guest.send(UNUSED.pack(b"D", status))
                return True
            if _report(guest, leader, status, spent):
                return False


def _wait(guest: socket.socket, leader: _Leader, spent: _Spent, options: int) -> tuple[int, int]:
    """Reap one child; (0, 0) where ``options`` say not to wait and none has ended. Raises ChildProcessError."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options)
    if ended is None:
        return 0, 0
    name = _name(ended.si_pid) if ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGKILL else None
    pid, status, usage = os.wait4(ended.si_pid, 0)
    spent.seconds += usage.ru_utime + usage.ru_stime
    spent.kib = max(spent.kib, usage.ru_maxrss)
    if name is not None and (pid != leader.pid or leader.has_spec):
        try:
            guest.send(KILLED.pack(b"K", pid, usage.ru_maxrss, name), socket.MSG_DONTWAIT)
        except BlockingIOError:  # thousands at once: a detail, for which nothing is to wait
            pass
    return pid, status


def _name(pid: int) -> bytes:
    """The name of a process that has ended and is not reaped yet."""
    try:
        with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
            return file.read(16).rstrip(b"\n")
    except OSError:
        return b""


def _report(guest: socket.socket, leader: _Leader, status: int, spent: _Spent) -> bool:
    """Tell how the leader ended; whether nothing is left below this process."""
    alone = False
    try:
        while _wait(guest, leader, spent, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        alone = True
    guest.send(STATUS.pack(b"X", status, alone, spent.seconds, spent.kib))
    return alone


def _lead(guest: socket.socket, leader: _Leader, setting: dict[str, Any]) -> NoReturn:
    """Wait for the spec, become the command."""
    stage = "start"
    try:
        _prepare()
        if setting["isolated"]:
            os.nice(YIELDING)
        guest.send(READY.pack(b"L", os.getpid()))
        spec, descriptors = _receive(guest, leader)
        for source, target in zip(descriptors, (0, 1, 2, spec["state_fd"]), strict=True):
            if target is not None:
                os.dup2(source, target)
        if spec.get("terminal"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if setting["isolated"]:
            _become(setting, spec.get("user") or {"uid": setting["uid"], "gid": setting["gid"], "groups": []})
        stage = "cwd"
        os.chdir(descriptors[3] if spec["cwd"] is None else spec["cwd"])
        stage = "exec"
        argv, env = spec["argv"], spec["env"]
        program = _look_up(argv[0], env)
        if spec["announce"]:
            guest.send(b"G")
        os.execve(program, argv, env)
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else 0
        try:
            guest.send(b"E" + json.dumps({"stage": stage, "errno": number, "error": repr(error)[:500]}).encode())
        except OSError:
            pass
        os._exit(127)


def _become(setting: dict[str, Any], user: dict[str, Any]) -> None:
    """Run as ``user`` from now on. Raises OSError."""
    # Landlock would keep root from writing into a new folder in /: it allows by name and cannot except.
    if setting["any_user"] and user["uid"]:
        kernel.deny_writes_to_proc()
        kernel.drop_bounding_capabilities()
    os.setgroups(user["groups"])
    os.setresgid(*[user["gid"]] * 3)
    os.setresuid(*[user["uid"]] * 3)


def _prepare() -> None:
    """All that does not depend on the command, and once through the code that does.

    The first run of code after a fork copies every page it touches (seen: 0.6 ms to read a spec, 0.1 ms the second time).
    """
    os.setsid()
    os.umask(0o022)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    spec = json.loads(json.dumps({"argv": ["sh", "-c"], "env": {"PATH": "/bin"}, "cwd": "/", "state_fd": None}))
    try:
        _look_up(spec["argv"][0], spec["env"])
    except OSError:  # an image without a shell
        pass


def _look_up(program: str, env: dict[str, str]) -> str:
    """The path of ``program``. Raises as exec would, so that a command that cannot start never says it did."""
    if "/" not in program:
        for folder in env.get("PATH", os.defpath).split(":"):
            path = f"{folder or '.'}/{program}"
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                return path
        raise FileNotFoundError(errno.ENOENT, "not on PATH")
    if not os.access(program, os.X_OK):
        os.stat(program)
        raise PermissionError(errno.EACCES, "not executable")
    return program


def _receive(guest: socket.socket, leader: _Leader) -> tuple[dict[str, Any], list[int]]:
    while True:
        # Not in recvmsg: a process that is killed while it waits there may take the spec with it before it dies.
        select.select([guest], [], [])
        try:
            data, descriptors = _packet(guest)
        except OSError:  # the guest is gone, or does not want the command any more
            os._exit(0)
        leader.takes_spec()
        if data == GO and leader.held is None:  # the one before was killed in the moment in which it took it
            os.kill(os.getpid(), signal.SIGKILL)
        if leader.held is None:
            break
        if data == GO:
            data, descriptors = leader.held
            break
    if data == SPEC_IN_FILE:
        file = descriptors.pop()
        data = os.pread(file, os.fstat(file).st_size, 0)
    spec: dict[str, Any] = json.loads(data)
    return spec, descriptors


if __name__ == "__main__":  # started anew by exec where a kill of everything took the first one
    serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
