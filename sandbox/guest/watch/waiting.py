"""What a command waits for, and what keeps it from ending, read from /proc.

For each process that is the system call it is in and what its descriptors are. Called in a worker that acts as the sandbox's user:
the kernel shows these files to nobody else here. Everything read belongs to the command and may change or lie while it is read;
what is not understood is "other".
"""

from __future__ import annotations

import os
import struct
import time

from ..kernel import MACHINE
from ..system_calls import numbers
from . import sockets
from .procfs import group_by_parent, list_below, read_all_stats, read_file, read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_PROCESSES, MOST_TASKS, MOST_DESCRIPTORS = 64, 16, 64
MOST_PORTS = 3
MOST_LOCKS_BYTES, LOCKS_SECONDS = 1 << 18, 0.1
# A loop that reads an ended input makes some hundred calls in this time.
SAMPLE_SECONDS = 0.01
LEAST_READS, MANY_READS = 5, 1000
# Which explanation wins if several processes wait for different things: first what the caller can do something about.
RANK = ("stdin", "lock", "socket", "cpu", "disk", "sleep", "other", "child")
SYSCALLS = {number: name for name, number in numbers(MACHINE).items()}
_ON_SOCKETS = {"accept", "accept4", "connect", "recvfrom", "recvmsg", "sendto", "sendmsg"}
_READS, _WRITES = {"read", "readv", "pread64"}, {"write", "writev"}
_SLEEPS = {"nanosleep", "clock_nanosleep", "restart_syscall"}
_SET_LOCK_AND_WAIT = (7, 38)  # F_SETLKW, F_OFD_SETLKW
# If the kernel does not show the system call, the function that the process sleeps in may tell.
_CHANNELS = {
    "do_wait": "child",
    "hrtimer_nanosleep": "sleep",
    "do_nanosleep": "sleep",
    "locks_lock_inode_wait": "lock",
    "flock_lock_inode_wait": "lock",
    "posix_lock_inode_wait": "lock",
    "inet_csk_accept": "socket",
    "n_tty_read": "stdin",
}


def explain_wait(
    root: int, stdin: str | None, children: Mapping[int, list[int]] | None = None
) -> dict[str, Any] | None:
    """Return what the command below the process ``root`` waits for: {"kind", "pid", "program", "detail"}; None if it is gone.

    ``stdin`` is the name of the command's input as links in /proc spell it. A process that waits for its children is explained by
    them. ``children`` are those of every process, if the caller has read them already.
    """
    children = group_by_parent(read_all_stats()) if children is None else children
    found: list[tuple[int, int, dict[str, Any]]] = []
    level, seen = children.get(root, []), 0
    for depth in range(MOST_PROCESSES):
        next_level: list[int] = []
        for pid in level[: MOST_PROCESSES - seen]:
            seen += 1
            wait = explain_process(pid, stdin)
            if wait is not None:
                found.append((RANK.index(wait["kind"]), -depth, wait))
            if wait is None or wait["kind"] in ("child", "other"):
                next_level += children.get(pid, [])
        level = next_level
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def explain_stall(root: int, stdin: str | None) -> dict[str, Any]:
    """Explain what keeps the command below ``root`` from ending, shortly before it is killed for its time.

    Returns {"wait", "ports", "reads_end"}: what ``explain_wait`` returns, the TCP ports it serves, and whether it reads over and
    over from an input that has ended.
    """
    children = group_by_parent(read_all_stats())
    pids = list_below(root, children)[:MOST_PROCESSES]
    wait = explain_wait(root, stdin, children)
    ports = sockets.find_ports(pids)[:MOST_PORTS]
    if ports and (client := _wait_of_client(pids, stdin)) is not None:
        wait, ports = client, []
    found: dict[str, Any] = {"wait": wait, "ports": ports, "reads_end": False}
    if wait is not None and wait["kind"] == "cpu":
        found["reads_end"] = _reads_in_vain(pids)
    return found


def _wait_of_client(pids: list[int], stdin: str | None) -> dict[str, Any] | None:
    """Return what a process waits for that waits on a socket and serves none: the command is a server and another program."""
    for pid in pids:
        wait = explain_process(pid, stdin)
        if wait is not None and wait["kind"] == "socket" and not sockets.find_ports([pid]):
            return wait
    return None


def _reads_in_vain(pids: list[int]) -> bool:
    """Return whether one of the processes reads again and again without getting a byte."""
    before = {pid: _read_counters(pid) for pid in pids}
    if any(calls >= MANY_READS and size < calls for size, calls in before.values()):  # less than a byte each
        return True
    time.sleep(SAMPLE_SECONDS)
    for pid, (size, calls) in before.items():
        size_now, calls_now = _read_counters(pid)
        if calls and size_now == size and calls_now - calls >= LEAST_READS:
            return True
    return False


def _read_counters(pid: int) -> tuple[int, int]:
    """Return the bytes that a process has read and the calls that took; zeros if the kernel does not show them."""
    words = read_file(f"/proc/{pid}/io", 1024).split()
    try:
        return int(words[1]), int(words[5])
    except (ValueError, IndexError):
        return 0, 0


def explain_process(pid: int, stdin: str | None) -> dict[str, Any] | None:
    """Return what one process waits for, by the thread that explains most; None if the process is gone."""
    program = _text(f"/proc/{pid}/comm").strip()
    waits = []
    try:
        tasks = sorted(int(task) for task in os.listdir(f"/proc/{pid}/task"))[:MOST_TASKS]
    except OSError:
        return None
    for task in tasks:
        wait = _explain_task(pid, task, stdin)
        if wait is not None:
            waits.append(wait)
    if not waits:
        return None
    kind, detail = min(waits, key=lambda wait: RANK.index(wait[0]) + (4.5 if wait[1].startswith("futex") else 0))
    return {"kind": kind, "pid": pid, "program": program, "detail": detail[:1000]}


def _explain_task(pid: int, task: int, stdin: str | None) -> tuple[str, str] | None:
    base = f"/proc/{pid}/task/{task}"
    stat = read_stat(pid, task)
    if stat is None or stat.letter in "ZX":
        return None
    if stat.letter == "R":
        return "cpu", "computing"
    if stat.letter in "Tt":
        return "other", "stopped by a signal" if stat.letter == "T" else "stopped by a debugger"
    call = _text(f"{base}/syscall").split()
    if stat.letter == "D":
        return "disk", _text(f"{base}/wchan")
    if len(call) > 6 and call[0].isdigit():
        name = SYSCALLS.get(int(call[0]), f"system call {call[0]}")
        return _explain_call(pid, name, [int(word, 16) for word in call[1:7]], stdin)
    channel = _text(f"{base}/wchan")
    return _CHANNELS.get(channel, "other"), channel


def _explain_call(pid: int, name: str, args: list[int], stdin: str | None) -> tuple[str, str]:
    if name in _READS:
        return _explain_descriptors(pid, [args[0]], stdin, "reads from")
    if name in _WRITES:
        return "other", f"writes to {_describe_descriptor(pid, args[0])}, which nobody reads"
    if name in _ON_SOCKETS:
        return "socket", f"{name} on {_describe_descriptor(pid, args[0])}"
    if name in ("wait4", "waitid"):
        return "child", "a child process"
    if name in _SLEEPS:
        return "sleep", "a timer"
    if name == "flock" or (name == "fcntl" and args[1] in _SET_LOCK_AND_WAIT):
        return "lock", f"{name} on {_describe_descriptor(pid, args[0])}{_describe_lock_holder(pid, args[0])}"
    if name == "futex":
        return "lock", "futex: another thread or process"
    if name in ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"):
        watched = _watched_descriptors(pid, name, args)
        return _explain_descriptors(pid, watched, stdin, "watches") if watched else ("sleep", "a timer")
    return "other", "opens a FIFO or a device" if name == "openat" else name


def _explain_descriptors(pid: int, fds: list[int], stdin: str | None, verb: str) -> tuple[str, str]:
    links = [_descriptor_link(pid, fd) for fd in fds[:MOST_DESCRIPTORS]]
    if stdin is not None and (stdin in links or (stdin.startswith("/dev/") and "/dev/tty" in links)):
        return "stdin", "the terminal" if stdin.startswith("/dev/") else "standard input"
    on_sockets = [fd for fd, link in zip(fds, links, strict=False) if link.startswith("socket:")]
    names = ", ".join(_describe_descriptor(pid, fd) for fd in (on_sockets or fds)[:3])
    return "socket" if on_sockets else "other", f"{verb} {names}"


def _watched_descriptors(pid: int, name: str, args: list[int]) -> list[int]:
    """Return the descriptors a process waits on in a poll of some kind."""
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


def _describe_descriptor(pid: int, fd: int) -> str:
    """Describe a descriptor: a path, or a socket with its addresses."""
    link = _descriptor_link(pid, fd)
    if link.startswith("socket:["):
        return sockets.describe_socket(pid, link[8:-1]) or link
    return link


def _descriptor_link(pid: int, fd: int) -> str:
    try:
        return os.fsencode(os.readlink(f"/proc/{pid}/fd/{fd}")).decode("utf-8", "replace")
    except (OSError, ValueError):
        return f"descriptor {fd}"


def _describe_lock_holder(pid: int, fd: int) -> str:
    """Name the process that holds a lock on the file behind a descriptor; "" if the kernel does not list it."""
    try:
        inode = os.stat(f"/proc/{pid}/fd/{fd}").st_ino
    except (OSError, ValueError):
        return ""
    holder = next((each for each in _locks.holders().get(str(inode), []) if each != str(pid)), None)
    return "" if holder is None else f", held by process {holder} ({_text(f'/proc/{holder}/comm').strip() or 'unknown'})"


class _Locks:
    """Who holds locks, from /proc/locks: of about four thousand, kept for a moment in which many tasks are asked about."""

    def __init__(self) -> None:
        self._read_at = -LOCKS_SECONDS
        self._holders: dict[str, list[str]] = {}

    def holders(self) -> dict[str, list[str]]:
        """Return the process ids by inode. One read of the file gives 4 KiB, about eighty lines, so it is read until the end."""
        now = time.monotonic()
        if now - self._read_at >= LOCKS_SECONDS:
            try:
                with open("/proc/locks", "rb") as file:
                    data = file.read(MOST_LOCKS_BYTES)
            except OSError:
                data = b""
            whole = data[: data.rfind(b"\n") + 1]  # what was cut off could name another inode
            found: dict[str, list[str]] = {}
            for line in whole.decode("utf-8", "replace").splitlines():
                words = line.split()
                if len(words) > 5 and words[1] != "->" and words[4] not in ("0", "-1"):
                    found.setdefault(words[5].rpartition(":")[2], []).append(words[4])
            self._read_at, self._holders = now, found
        return self._holders


_locks = _Locks()


def _text(path: str) -> str:
    return read_file(path).decode("utf-8", "replace")
