"""Numbers of system calls by machine, and the machines that there are numbers for.

``tests/guest/test_system_calls.py`` compares them with the kernel's headers. A sandbox does not start on another machine: without
numbers there is no filter of system calls.
"""

from __future__ import annotations

MACHINES = ("x86_64", "aarch64")
# What the kernel calls a machine's table of system calls (AUDIT_ARCH_* of linux/audit.h).
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# The same on both, as all calls that came after 2019.
OPENAT2 = 437

# On each of MACHINES; None if it does not have the call.
_NUMBERS: dict[str, tuple[int, int | None]] = {
    "openat2": (OPENAT2, OPENAT2),
    "socket": (41, 198),
    # Those that the filter blocks.
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
    # Those that explain what a command waits for.
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "write": (1, 64),
    "writev": (20, 66),
    "poll": (7, None),
    "select": (23, None),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "pause": (34, None),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "flock": (73, 32),
    "fcntl": (72, 25),
    "futex": (202, 98),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "openat": (257, 56),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "restart_syscall": (219, 128),
}


def numbers(machine: str) -> dict[str, int]:
    """Return the numbers of a machine's system calls by name, {} for a machine without a table."""
    if machine not in MACHINES:
        return {}
    column = MACHINES.index(machine)
    return {name: number for name, row in _NUMBERS.items() if (number := row[column]) is not None}
