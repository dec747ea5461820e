"""System calls that Python does not wrap, by ctypes, and the system call filter of commands."""

from __future__ import annotations

import ctypes
import os
import struct

from .system_calls import ARCH, numbers

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
MACHINE = os.uname().machine

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int = 0, pointer: object = 0) -> None:
    """Set an attribute of this process. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def syscall(number: int, *arguments: object) -> int:
    """Make a raw system call. Raises OSError."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def advise(address: int, size: int, advice: int) -> None:
    """Tell the kernel how pages of this process are used (madvise). Raises OSError."""
    if _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice) != 0:
        raise OSError(ctypes.get_errno(), f"madvise {advice}")


def act_on_files_as(uid: int, gid: int) -> None:
    """Make this thread, and no other, access files as ``uid`` and ``gid``. Raises OSError if that failed."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if _libc.setfsuid(-1) != uid or _libc.setfsgid(-1) != gid:  # -1 changes nothing and returns the current value
        raise OSError(1, "setfsuid was refused")


def files_user() -> tuple[int, int]:
    """Return the user and group as which this thread accesses files."""
    return _libc.setfsuid(-1), _libc.setfsgid(-1)


class ActingOnFiles:
    """A context in which this thread accesses and makes files as ``uid`` and ``gid``; does nothing unless ``wanted``."""

    def __init__(self, uid: int, gid: int, wanted: bool) -> None:
        self._user = (uid, gid)
        self._wanted = wanted

    def __enter__(self) -> None:
        if self._wanted:
            act_on_files_as(*self._user)

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            act_on_files_as(0, 0)


def open_pipes(count: int, uid: int | None) -> list[tuple[int, int]]:
    """Return pipes that belong to ``uid``, so that its processes may open them again, by /dev/stdout for example. Raises OSError.

    None stands for the user of this process. Unlike ``act_on_files_as``, it does not look whether the thread acted as ``uid``: at
    worst a pipe is root's. Their group is root's in any case.
    """
    pipes: list[tuple[int, int]] = []
    try:
        if uid is not None:
            _libc.setfsuid(uid)
        try:
            for _ in range(count):
                pipes.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401  those that are open are closed if another cannot be opened
        finally:
            if uid is not None:
                _libc.setfsuid(0)
                if _libc.setfsuid(-1) != 0:
                    raise OSError(1, "setfsuid was refused")
    except OSError:
        for read, write in pipes:
            os.close(read)
            os.close(write)
        raise
    return pipes


# The system calls that the filter blocks, in addition to the engine's: no build tool, shell or debugger needs them, and kernels
# were exploited through them. ptrace is allowed.
BLOCKED = (
    "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key", "request_key", "keyctl", "memfd_secret", "vmsplice",
    "modify_ldt", "userfaultfd", "perf_event_open", "bpf", "unshare", "setns", "mount", "umount2", "pivot_root",
    "open_by_handle_at", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "open_tree",
    "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
)  # fmt: skip
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink
_LOAD, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def filter_program(machine: str) -> bytes | None:
    """Return the BPF program for a machine, or None if its system call numbers are unknown: then no sandbox starts.

    All calls of other system call tables (32-bit, x32) fail with ENOSYS: they would be a way around the filter.
    """
    known = numbers(machine)
    if not known:
        return None
    op = struct.Struct("=HBBI").pack
    refuse = op(_RET, 0, 0, _ERRNO | _ENOSYS)
    rows = [op(_LOAD, 0, 0, 4), op(_JEQ, 1, 0, ARCH[machine]), refuse, op(_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        rows += [op(_JGE, 0, 1, 0x40000000), refuse]
    for number in (known[name] for name in BLOCKED if name in known):
        rows += [op(_JEQ, 0, 1, number), op(_RET, 0, 0, _ERRNO | _EPERM)]
    rows += [op(_JEQ, 0, len(_FAMILIES) + 2, known["socket"]), op(_LOAD, 0, 0, 16)]
    rows += [op(_JEQ, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
    rows += [op(_RET, 0, 0, _ERRNO | _EAFNOSUPPORT), op(_RET, 0, 0, _ALLOW)]
    return b"".join(rows)
