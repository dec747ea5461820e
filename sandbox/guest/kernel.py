"""The kernel calls that Python has no name for: by ctypes, without a process of their own."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 36, 38
HIGHEST_CAPABILITY = 63
MACHINE = os.uname().machine

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int = 0, pointer: object = 0) -> None:
    """Set an attribute of this process. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def drop_bounding_capabilities() -> None:
    """Let nothing that this process starts ever gain a capability. Raises OSError."""
    for capability in range(HIGHEST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # beyond the last one of this kernel
                return
            raise


def syscall(number: int, *arguments: object) -> int:
    """A raw system call. Raises OSError."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def act_on_files_as(uid: int, gid: int) -> None:
    """Let this thread alone touch files as ``uid`` and ``gid`` from now on. Raises OSError where that did not take."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if _libc.setfsuid(-1) != uid or _libc.setfsgid(-1) != gid:  # -1 changes nothing and answers what is set
        raise OSError(1, "setfsuid was refused")


def files_user() -> tuple[int, int]:
    """The user and group as which this thread touches files."""
    return _libc.setfsuid(-1), _libc.setfsgid(-1)


class ActingOnFiles:
    """While inside (``with``), this thread alone touches and makes files as ``uid`` and ``gid``; only where ``wanted``."""

    def __init__(self, uid: int, gid: int, wanted: bool) -> None:
        self._user = (uid, gid)
        self._wanted = wanted

    def __enter__(self) -> None:
        if self._wanted:
            act_on_files_as(*self._user)

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            act_on_files_as(0, 0)


# --- the syscall filter laid over the engine's ---------------------------------------------------------------------------
# Blocked whole: what no build tool, shell or debugger needs and what kernels were broken through. ptrace stays open.
_BLOCKED = {
    "x86_64": (425, 426, 427, 248, 249, 250, 447, 278, 154, 323, 298, 321, 272, 308, 165, 166, 155, 304, 246, 320, 175, 313,
               176, 428, 429, 430, 431, 432, 433, 442),
    "aarch64": (425, 426, 427, 217, 218, 219, 447, 75, 282, 241, 280, 97, 268, 40, 39, 41, 265, 104, 294, 105, 273, 106,
                428, 429, 430, 431, 432, 433, 442),
}  # fmt: skip
_SOCKET = {"x86_64": 41, "aarch64": 198}
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink
_LOAD, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def filter_program(machine: str) -> bytes | None:
    """The BPF program for this machine, or None where its system call numbers are not known.

    Foreign system call tables (32-bit, x32) are refused whole with ENOSYS: they would be a way around the filter.
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


def filter_system_calls() -> bool:
    """Lay the filter over this process and all it starts; False where this machine has no table. Needs no_new_privs."""
    program = filter_program(MACHINE)
    if program is None:
        return False
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    prctl(PR_SET_SECCOMP, 2, header)
    return True


# --- Landlock: no command writes below /proc or /sys -----------------------------------------------------------------------
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14


def deny_writes_to_proc() -> bool:
    """Keep this process and all it starts from writing below /proc and /sys; False where the kernel has no Landlock.

    Landlock denies what no rule allows, so every other entry of the root folder is allowed by name.
    """
    try:
        abi = syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return False
    if abi < 2:  # would forbid every rename between folders
        return False
    on_files = _WRITE_FILE | (_TRUNCATE if abi >= 3 else 0)
    handled = struct.pack("=Q", on_files | _REFER)
    try:
        rules = syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint(0))
    except OSError:
        return False
    for name in os.listdir("/"):
        if name not in {"proc", "sys"}:
            _allow(rules, "/" + name, on_files)
    syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    os.close(rules)
    return True


def _allow(rules: int, path: str, on_files: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    is_folder = os.path.isdir(path)
    rule = struct.pack("=Qi", on_files | (_REFER if is_folder else 0), fd)
    syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint(0))
    os.close(fd)
