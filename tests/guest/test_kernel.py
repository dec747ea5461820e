"""The system call filter as the kernel would run it."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest import kernel
from sandbox.guest.system_calls import ARCH, MACHINES, numbers

X86, ARM = ARCH["x86_64"], ARCH["aarch64"]
ALLOW = 0x7FFF0000
ROOT = str(Path(__file__).parents[2])


def refuse(number: int) -> int:
    return 0x00050000 | number


def verdict(machine: str, arch: int, number: int, argument: int = 0) -> int:
    """What the program returns for a system call; fails where the kernel would refuse to load it."""
    program = kernel.filter_program(machine)
    assert program is not None
    rows = list(struct.iter_unpack("=HBBI", program))
    assert len(rows) < 4096
    data = struct.pack("=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), arch, 0, argument, 0, 0, 0, 0, 0)
    accumulator, at = 0, 0
    while True:
        code, when_true, when_false, operand = rows[at]
        at += 1
        if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            assert operand % 4 == 0
            assert operand < 64
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code in (0x15, 0x35):  # BPF_JMP | BPF_JEQ or BPF_JGE | BPF_K
            taken = accumulator == operand if code == 0x15 else accumulator >= operand
            at += when_true if taken else when_false
            assert at < len(rows)
        else:
            assert code == 0x06  # BPF_RET | BPF_K
            return int(operand)


BLOCKED_X86 = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "add_key": 248,
    "keyctl": 250,
    "userfaultfd": 323,
    "perf_event_open": 298,
    "bpf": 321,
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "kexec_load": 246,
    "init_module": 175,
    "finit_module": 313,
    "open_tree": 428,
    "mount_setattr": 442,
    "modify_ldt": 154,
    "vmsplice": 278,
}


@pytest.mark.parametrize("name", BLOCKED_X86)
def test_what_is_blocked_on_x86_64(name: str) -> None:
    assert verdict("x86_64", X86, BLOCKED_X86[name]) == refuse(errno.EPERM)


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", X86), ("aarch64", ARM)])
def test_every_blocked_number_and_only_those(machine: str, arch: int) -> None:
    known = numbers(machine)
    blocked = {known[name] for name in kernel.BLOCKED if name in known}
    for number in range(600):
        if number == known["socket"]:
            continue
        assert verdict(machine, arch, number) == (refuse(errno.EPERM) if number in blocked else ALLOW), number


@pytest.mark.parametrize(("machine", "arch", "ptrace"), [("x86_64", X86, 101), ("aarch64", ARM, 117)])
def test_debuggers_are_left_alone(machine: str, arch: int, ptrace: int) -> None:
    assert verdict(machine, arch, ptrace) == ALLOW


@given(family=st.integers(0, 2**32 - 1) | st.integers(0, 50), high=st.integers(0, 2**32 - 1))
def test_sockets_by_family(family: int, high: int) -> None:
    # the kernel takes the low half only, and so must the filter
    for machine, arch in (("x86_64", X86), ("aarch64", ARM)):
        wanted = ALLOW if family in (1, 2, 10, 16) else refuse(errno.EAFNOSUPPORT)
        assert verdict(machine, arch, numbers(machine)["socket"], high << 32 | family) == wanted


@given(arch=st.integers(0, 2**32 - 1), number=st.integers(0, 2**32 - 1))
def test_another_table_of_system_calls_is_no_way_around(arch: int, number: int) -> None:
    if arch != X86:
        assert verdict("x86_64", arch, number) == refuse(errno.ENOSYS)
    if arch != ARM:
        assert verdict("aarch64", arch, number) == refuse(errno.ENOSYS)
    if number >= 0x40000000:  # x32
        assert verdict("x86_64", X86, number) == refuse(errno.ENOSYS)


def test_i386_and_x32() -> None:
    assert verdict("x86_64", 0x40000003, 4) == refuse(errno.ENOSYS)
    assert verdict("x86_64", X86, 0x40000000 | 1) == refuse(errno.ENOSYS)


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert kernel.filter_program("riscv64") is None


CHECK = """
import ctypes, errno, os, socket, struct
from sandbox.guest import kernel
kernel.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
program = kernel.filter_program(kernel.MACHINE)
code = ctypes.create_string_buffer(program, len(program))
kernel.prctl(22, 2, ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code))))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == -1 and ctypes.get_errno() == errno.EPERM
for family in (socket.AF_UNIX, socket.AF_INET):
    socket.socket(family).close()
try:
    socket.socket(40, socket.SOCK_STREAM)
except OSError as error:
    assert error.errno == errno.EAFNOSUPPORT, error
else:
    raise AssertionError("a VM socket was opened")
assert os.fork() or os._exit(0) is None
print("held")
"""


@pytest.mark.skipif(kernel.MACHINE not in MACHINES, reason="no table for this machine")
def test_the_kernel_takes_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout, done.stderr) == ("held\n", "")


def test_a_refused_call_raises() -> None:
    with pytest.raises(OSError, match="prctl 1"):
        kernel.prctl(1, 1000)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        kernel.syscall(3 if kernel.MACHINE == "x86_64" else 57, -1)
