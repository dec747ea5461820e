"""The zygote: a small single-threaded process that keeps runners ready, so that a command starts without a slow fork.

    guest ── zygote ── runner (one per command; root, not dumpable, sub-reaper: orphans stay below it)
                          └── leader ── exec ── the command, as the sandbox's user

A leader is forked ahead of time and waits for its descriptors and its spec, which the guest sends to it directly. The runner
outlives it and reaps what the command leaves behind. When nothing is left, the guest either sends NEXT, and the runner forks the
next leader, or closes the socket, and the runner ends.

Packets from a runner's socket:

    L pid                       a leader is ready
    G                           about to exec, if the spec asks for it ("announce")
    E json                      the command could not be started
    X status alone seconds KiB  the leader ended; alone is 1 if nothing is left below the runner; processor time and largest
                                resident size of what was reaped
    Z seconds KiB               nothing is left below the runner now
    K pid KiB name              a child of the runner was killed by SIGKILL
    D status                    the leader was killed before it took a spec: by the kernel for memory, or by a kill of everything

After D the runner waits for NEXT, too. A spec that was sent already is held for the next leader, which sends L and waits for GO:
in between, the command may have been stopped, and then it must not begin.
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
# stdin, stdout, stderr; the file for the shell's state, or the folder to start in; a spec that is too long for a packet
DESCRIPTORS = 5
SPEC_IN_PACKET = 32768
SPEC_IN_FILE = b"F"
REFILL = b"R"
NEXT = b"N"
GO = b"C"
# Commands yield to the guest, or else 500 processes that fork or spin starve it (measured: deadlines 3 s late, 0.2 s with this).
# It changes nothing between sandboxes: the engine gives each of them its own share.
NICENESS = 19
# Signals that this process or Python ignores; a command must not inherit that.
_RESET: tuple[int, ...] = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)


def parse_resources(packet: bytes) -> tuple[float, int]:
    """Return the processor seconds and the largest resident size in KiB in a packet of the kinds X and Z."""
    seconds, kib = EMPTY.unpack(packet)[1:] if packet[:1] == b"Z" else STATUS.unpack(packet)[3:]
    return seconds, kib


def serve(control: socket.socket, setting: dict[str, Any]) -> NoReturn:
    """Run the zygote: one spare runner at the start, another for every REFILL. Ends when the guest is gone."""
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
    if not setting["any_user"]:  # else each leader does it as soon as it knows its user
        kernel.deny_writes_to_proc()
    kernel.filter_system_calls()


def _offer_spare(control: socket.socket, setting: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:  # no process can be created; the guest asks again
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
    """Run a runner: one command after the other, each when nothing of the last one is left and the guest sends NEXT."""
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
            if not unused:  # the spec of a leader that failed before it could take it, as the guest knows
                leader.drop()
    except OSError:  # the guest is gone, or lets this runner end; or no process can be created
        pass
    os._exit(0)


class _Leader:
    """The leader below a runner. ``has_spec`` is shared memory that both processes see.

    ``held`` is a spec with its descriptors that the last leader did not take.
    """

    __slots__ = ("_shared", "held", "pid")

    def __init__(self) -> None:
        self.pid = 0
        self.held: tuple[bytes, list[int]] | None = None
        self._shared = mmap.mmap(-1, 1)

    def fork(self) -> int:
        """Fork; returns 0 in the new leader. Raises OSError."""
        self._shared[0] = 0
        self.pid = os.fork()
        return self.pid

    @property
    def has_spec(self) -> bool:
        return self._shared[0] == 1

    def takes_spec(self) -> None:
        self._shared[0] = 1

    def drop(self) -> None:
        """Close the descriptors of the held spec in the runner, after its leader took them or ended."""
        held, self.held = self.held, None
        for fd in held[1] if held is not None else ():
            os.close(fd)


class _Resources:
    """What the reaped processes used, together with the children they had waited for."""

    __slots__ = ("kib", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.kib = 0


def _next(guest: socket.socket) -> tuple[bytes, list[int]] | None:
    """Wait for NEXT. Returns a spec that came before it. Raises OSError if the guest lets this runner end."""
    held = None
    while True:
        data, descriptors = _packet(guest)
        if data == NEXT:
            return held
        if data != GO:  # for a leader that died before it read it
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
    """Reap until nothing is below this process. Returns whether the leader was killed before it took a spec."""
    used = _Resources()
    while True:
        try:
            pid, status = _wait(guest, leader, used, 0)
        except ChildProcessError:
            guest.send(EMPTY.pack(b"Z", used.seconds, used.kib))
            return False
        if pid == leader.pid:
            if os.WIFSIGNALED(status) and not leader.has_spec:
                guest.send(UNUSED.pack(b"D", status))
                return True
            if _report(guest, leader, status, used):
                return False


def _wait(guest: socket.socket, leader: _Leader, used: _Resources, options: int) -> tuple[int, int]:
    """Reap one child. Returns (0, 0) if ``options`` contain WNOHANG and none has ended. Raises ChildProcessError."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options)
    if ended is None:
        return 0, 0
    name = _name(ended.si_pid) if ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGKILL else None
    pid, status, usage = os.wait4(ended.si_pid, 0)
    used.seconds += usage.ru_utime + usage.ru_stime
    used.kib = max(used.kib, usage.ru_maxrss)
    if name is not None and (pid != leader.pid or leader.has_spec):
        try:
            guest.send(KILLED.pack(b"K", pid, usage.ru_maxrss, name), socket.MSG_DONTWAIT)
        except BlockingIOError:  # thousands at once: nothing should wait for this detail
            pass
    return pid, status


def _name(pid: int) -> bytes:
    """Return the name of a process that has ended and is not reaped yet."""
    try:
        with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
            return file.read(16).rstrip(b"\n")
    except OSError:
        return b""


def _report(guest: socket.socket, leader: _Leader, status: int, used: _Resources) -> bool:
    """Report how the leader ended. Returns whether nothing is left below this process."""
    alone = False
    try:
        while _wait(guest, leader, used, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        alone = True
    guest.send(STATUS.pack(b"X", status, alone, used.seconds, used.kib))
    return alone


def _lead(guest: socket.socket, leader: _Leader, setting: dict[str, Any]) -> NoReturn:
    """Wait for the spec, then become the command."""
    stage = "start"
    try:
        _prepare()
        if setting["isolated"]:
            os.nice(NICENESS)
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
    """Switch this process to ``user`` for good. Raises OSError."""
    # Not for root, whom Landlock would keep from writing into a new folder in /: it can only allow by name.
    if setting["any_user"] and user["uid"]:
        kernel.deny_writes_to_proc()
        kernel.drop_bounding_capabilities()
    os.setgroups(user["groups"])
    os.setresgid(*[user["gid"]] * 3)
    os.setresuid(*[user["uid"]] * 3)


def _prepare() -> None:
    """Do everything that does not depend on the command, and run once through the code that does.

    The first run of code after a fork copies every page it touches (measured: 0.6 ms to read a spec, 0.1 ms the second time).
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
    """Return the path of ``program``. Raises what exec would raise, so that G is never sent for a command that cannot start."""
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
    """Wait for the spec and its descriptors, or for GO if this leader has the spec of the last one."""
    while True:
        # Not recvmsg: a process that is killed while it waits there may take the spec off the socket before it dies.
        select.select([guest], [], [])
        try:
            data, descriptors = _packet(guest)
        except OSError:  # the guest is gone, or has withdrawn the command
            os._exit(0)
        leader.takes_spec()
        if data == GO and leader.held is None:  # the last leader was killed just as it took the spec
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


if __name__ == "__main__":  # started by exec after a kill of everything killed the first zygote
    serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
