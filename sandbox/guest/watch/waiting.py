"""What a command waits for, read from /proc: the system call each of its processes is in, and what its descriptors are.

Called in a worker, which acts as the sandbox's user: the kernel shows these files to nobody else here. Everything read belongs to
the command and may change or lie while it is looked at; what is not understood is "other".
"""

from __future__ import annotations

import os
import struct

from ..kernel import MACHINE
from . import sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_PROCESSES, MOST_TASKS, MOST_DESCRIPTORS = 64, 16, 64
# Which explanation counts where several processes wait for different things: what a caller can do something about first.
RANK = ("stdin", "lock", "socket", "cpu", "disk", "sleep", "other", "child")
_NAMES = (
    "read", "readv", "pread64", "write", "writev", "poll", "select", "pselect6", "ppoll", "epoll_wait", "epoll_pwait",
    "nanosleep", "clock_nanosleep", "pause", "wait4", "waitid", "flock", "fcntl", "futex", "accept", "accept4", "connect",
    "recvfrom", "recvmsg", "sendto", "sendmsg", "openat", "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall",
)  # fmt: skip
_NUMBERS = {
    "x86_64": (0, 19, 17, 1, 20, 7, 23, 270, 271, 232, 281, 35, 230, 34, 61, 247, 73, 72, 202, 43, 288, 42, 45, 47, 44, 46, 257,
               130, 128, 219),
    "aarch64": (63, 65, 67, 64, 66, -1, -2, 72, 73, -3, 22, 101, 115, -4, 260, 95, 32, 25, 98, 202, 242, 203, 207, 212, 206, 211,
                56, 133, 137, 128),
}  # fmt: skip
SYSCALLS = dict(zip(_NUMBERS.get(MACHINE, ()), _NAMES, strict=False))
_ON_SOCKETS = {"accept", "accept4", "connect", "recvfrom", "recvmsg", "sendto", "sendmsg"}
_READS, _WRITES = {"read", "readv", "pread64"}, {"write", "writev"}
_SLEEPS = {"nanosleep", "clock_nanosleep", "restart_syscall"}
_SET_LOCK_AND_WAIT = (7, 38)  # F_SETLKW, F_OFD_SETLKW
# Where the kernel does not tell the system call, the function it sleeps in may.
_CHANNELS = {
    "do_wait": "child", "hrtimer_nanosleep": "sleep", "do_nanosleep": "sleep", "locks_lock_inode_wait": "lock",
    "flock_lock_inode_wait": "lock", "posix_lock_inode_wait": "lock", "inet_csk_accept": "socket", "n_tty_read": "stdin",
}  # fmt: skip


def waiting_for(root: int, stdin: str | None, children: Mapping[int, list[int]] | None = None) -> dict[str, Any] | None:
    """What the command below the process ``root`` waits for: {"kind", "pid", "program", "detail"}; None where it is gone.

    ``stdin`` is the name of the command's input as links in /proc have it. A process that waits for its children is explained by
    them. ``children`` are those of every process, where they are known already.
    """
    children = _children() if children is None else children
    found: list[tuple[int, int, dict[str, Any]]] = []
    level, seen = children.get(root, []), 0
    for depth in range(MOST_PROCESSES):
        below: list[int] = []
        for pid in level[: MOST_PROCESSES - seen]:
            seen += 1
            wait = explain(pid, stdin)
            if wait is not None:
                found.append((RANK.index(wait["kind"]), -depth, wait))
            if wait is None or wait["kind"] in ("child", "other"):
                below += children.get(pid, [])
        level = below
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def explain(pid: int, stdin: str | None) -> dict[str, Any] | None:
    """What one process waits for; None for one that is gone. Of its threads, the one that tells most."""
    program = _text(f"/proc/{pid}/comm").strip()
    waits = []
    try:
        tasks = sorted(int(task) for task in os.listdir(f"/proc/{pid}/task"))[:MOST_TASKS]
    except OSError:
        return None
    for task in tasks:
        wait = _of_task(pid, task, stdin)
        if wait is not None:
            waits.append(wait)
    if not waits:
        return None
    kind, detail = min(waits, key=lambda wait: RANK.index(wait[0]) + (4.5 if wait[1].startswith("futex") else 0))
    return {"kind": kind, "pid": pid, "program": program, "detail": detail[:1000]}


def _of_task(pid: int, task: int, stdin: str | None) -> tuple[str, str] | None:
    base = f"/proc/{pid}/task/{task}"
    stat = _text(f"{base}/stat")
    state = stat[stat.rfind(")") + 2 :][:1]
    if state in ("", "Z", "X"):
        return None
    if state == "R":
        return "cpu", "computing"
    if state in "Tt":
        return "other", "stopped by a signal" if state == "T" else "stopped by a debugger"
    call = _text(f"{base}/syscall").split()
    if state == "D":
        return "disk", _text(f"{base}/wchan")
    if len(call) > 6 and call[0].isdigit():
        name = SYSCALLS.get(int(call[0]), f"system call {call[0]}")
        return _of_call(pid, name, [int(word, 16) for word in call[1:7]], stdin)
    channel = _text(f"{base}/wchan")
    return _CHANNELS.get(channel, "other"), channel


def _of_call(pid: int, name: str, args: list[int], stdin: str | None) -> tuple[str, str]:
    if name in _READS:
        return _of_descriptors(pid, [args[0]], stdin, "reads from")
    if name in _WRITES:
        return "other", f"writes to {_link(pid, args[0])}, which nobody reads"
    if name in _ON_SOCKETS:
        return "socket", f"{name} on {_link(pid, args[0])}"
    if name in ("wait4", "waitid"):
        return "child", "a child process"
    if name in _SLEEPS:
        return "sleep", "a timer"
    if name == "flock" or (name == "fcntl" and args[1] in _SET_LOCK_AND_WAIT):
        return "lock", f"{name} on {_link(pid, args[0])}{_holder(pid, args[0])}"
    if name == "futex":
        return "lock", "futex: another thread or process"
    if name in ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"):
        watched = _watched(pid, name, args)
        return _of_descriptors(pid, watched, stdin, "watches") if watched else ("sleep", "a timer")
    return "other", "opens a FIFO or a device" if name == "openat" else name


def _of_descriptors(pid: int, fds: list[int], stdin: str | None, verb: str) -> tuple[str, str]:
    links = [_raw_link(pid, fd) for fd in fds[:MOST_DESCRIPTORS]]
    if stdin is not None and (stdin in links or (stdin.startswith("/dev/") and "/dev/tty" in links)):
        return "stdin", "the terminal" if stdin.startswith("/dev/") else "standard input"
    there = [fd for fd, link in zip(fds, links, strict=False) if link.startswith("socket:")]
    names = ", ".join(_link(pid, fd) for fd in (there or fds)[:3])
    return "socket" if there else "other", f"{verb} {names}"


def _watched(pid: int, name: str, args: list[int]) -> list[int]:
    """The descriptors a process waits on in a poll of some kind."""
    try:
        if name.startswith("epoll"):
            lines = _text(f"/proc/{pid}/fdinfo/{args[0]}").splitlines()
            return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
        if name in ("poll", "ppoll"):
            count = min(args[1], MOST_DESCRIPTORS)
            return [fd for fd, _, _ in struct.iter_unpack("=ihh", _memory(pid, args[0], 8 * count)) if fd >= 0]
        bits = int.from_bytes(_memory(pid, args[1], (min(args[0], 1024) + 7) // 8), "little") if args[1] else 0
        return [fd for fd in range(min(args[0], 1024)) if bits >> fd & 1]
    except (OSError, ValueError, IndexError, OverflowError, struct.error):
        return []


def _memory(pid: int, address: int, size: int) -> bytes:
    if not size:
        return b""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


def _link(pid: int, fd: int) -> str:
    """What a descriptor is: a path, or a socket with its addresses."""
    link = _raw_link(pid, fd)
    if link.startswith("socket:["):
        return sockets.name_of(pid, link[8:-1]) or link
    return link


def _raw_link(pid: int, fd: int) -> str:
    try:
        return os.fsencode(os.readlink(f"/proc/{pid}/fd/{fd}")).decode("utf-8", "replace")
    except (OSError, ValueError):
        return f"descriptor {fd}"


def _holder(pid: int, fd: int) -> str:
    """Who holds a lock on the file behind a descriptor, where the kernel says so."""
    try:
        inode = os.stat(f"/proc/{pid}/fd/{fd}").st_ino
    except (OSError, ValueError):
        return ""
    for line in _text("/proc/locks").splitlines():
        words = line.split()
        if (
            len(words) > 5
            and words[1] != "->"
            and words[5].endswith(f":{inode}")
            and words[4] not in ("0", "-1", str(pid))
        ):
            return f", held by process {words[4]} ({_text(f'/proc/{words[4]}/comm').strip() or 'unknown'})"
    return ""


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _text(f"/proc/{name}/stat")
            words = stat[stat.rfind(")") + 2 :].split(None, 2)
            if len(words) > 1:
                found.setdefault(int(words[1]), []).append(int(name))
    return found


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""
