"""What a command is started with, and why it could not be."""

from __future__ import annotations

import fcntl
import json
import os

from ..protocol.faults import Fault
from .sessions import STATE_LIMIT
from .spawner import in_memory

PIPE_BYTES = 256 * 1024
F_SETPIPE_SZ = 1031
STDIN_IN_PIPE = 4096  # fits any pipe, so it is written at once; longer input is read from memory
_STAGES = {
    ("exec", 2): "program_not_found",
    ("exec", 20): "program_not_found",
    ("exec", 13): "program_not_executable",
    ("exec", 8): "program_not_executable",
    ("exec", 7): "arguments_too_long",
    ("cwd", 2): "working_directory_invalid",
    ("cwd", 20): "working_directory_invalid",
    ("cwd", 13): "working_directory_invalid",
}


def start_fault(packet: bytes) -> Fault:
    """The fault in a runner's report that a command could not be started."""
    report = json.loads(packet)
    code = _STAGES.get((report["stage"], report["errno"]), "io_error")
    number = report["errno"]
    return Fault(code, errno=os.strerror(number) if number else report["error"], stage=report["stage"], number=number)


def state_file() -> int:
    """A file in memory that cannot grow: what a command wrote there would stay when the kernel has killed it for memory."""
    fd = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, STATE_LIMIT)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def input_of(data: bytes) -> int:
    """A descriptor that reads ``data``."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    if len(data) <= STDIN_IN_PIPE:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.write(write, data)
        os.close(write)
        return read
    return in_memory(data)


def widen(fd: int) -> None:
    """Make the pipe of a command that prints much larger."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # the user's share of pipe memory is used up: the default is fine
        pass
