"""Keep this process, and the browser that it starts, from files that are none of their business: by Landlock."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
# Rights on files, by the kernel's numbers. The first version knows the first thirteen; later ones add REFER and TRUNCATE.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
EVERY_RIGHT = {1: (1 << 13) - 1, 2: (1 << 14) - 1}
LATEST_RIGHTS = (1 << 15) - 1
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/.gamebox")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")

_libc = ctypes.CDLL(None, use_errno=True)


def protect_from_others() -> None:
    """Have no process of the same user look into this one."""
    _libc.prctl(PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)


def confine(own: str, readable: tuple[str, ...]) -> bool:
    """Leave this process nothing but to read the system and ``readable``, and to use the folder ``own``.

    Returns False where the kernel has no Landlock: then only the modes of files keep the browser from them.
    """
    version = _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    handled = EVERY_RIGHT.get(version, LATEST_RIGHTS)
    ruleset = _libc.syscall(CREATE_RULESET, struct.pack("=Q", handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    try:
        for path in (*SYSTEM, *readable):
            _allow(ruleset, path, EXECUTE | READ_FILE | READ_DIR)
        for path in (*DEVICES, own):
            _allow(ruleset, path, handled)
        _libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
        return bool(_libc.syscall(RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= ON_FILES
        _libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
