"""System calls that Python does not wrap, by ctypes, and the system call filter of commands."""

from __future__ import annotations

import ctypes
import os
import struct

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


# The system calls that the filter blocks, in addition to the engine's: no build tool, shell or debugger needs them, and kernels
# were exploited through them. ptrace is allowed.
_BLOCKED_CALLS: dict[str, tuple[int, int | None]] = {  # the numbers on x86_64 and on aarch64
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "modify_ldt": (154, None),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
_BLOCKED = {
    "x86_64": [number for number, _ in _BLOCKED_CALLS.values()],
    "aarch64": [number for _, number in _BLOCKED_CALLS.values() if number is not None],
}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink
_LOAD, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def filter_program(machine: str) -> bytes | None:
    """Return the BPF program for a machine, or None if its system call numbers are unknown.

    All calls of other system call tables (32-bit, x32) fail with ENOSYS: they would be a way around the filter.
    """
    if machine not in _ARCH:
        return None
    op = struct.Struct("=HBBI").pack
    refuse = op(_RET, 0, 0, _ERRNO | _ENOSYS)
    rows = [op(_LOAD, 0, 0, 4), op(_JEQ, 1, 0, _ARCH[machine]), refuse, op(_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        rows += [op(_JGE, 0, 1, 0x40000000), refuse]
    for number in _BLOCKED[machine]:
        rows += [op(_JEQ, 0, 1, number), op(_RET, 0, 0, _ERRNO | _EPERM)]
    rows += [op(_JEQ, 0, len(_FAMILIES) + 2, _SOCKET[machine]), op(_LOAD, 0, 0, 16)]
    rows += [op(_JEQ, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
    rows += [op(_RET, 0, 0, _ERRNO | _EAFNOSUPPORT), op(_RET, 0, 0, _ALLOW)]
    return b"".join(rows)
