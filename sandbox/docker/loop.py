"""A file system of a fixed size in a file without a name, behind a loop device that vanishes with its last user.

Nothing can leak, whenever this process dies: the file has no name from the beginning (O_TMPFILE), and the device clears itself
(LO_FLAGS_AUTOCLEAR) when neither a descriptor nor a mount holds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError

# From linux/loop.h.
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR, _DIRECT_IO = 4, 16
# struct loop_config: fd, block_size, struct loop_info64 (232 bytes, lo_flags at 52), 64 bytes reserved.
_CONFIG = struct.Struct("=II52xI176x64x")
CONTROL = "/dev/loop-control"
_ATTEMPTS = 32
# A journal would only help a file system that outlives a crash; this one does not.
_MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E")


@dataclass(frozen=True)
class LoopDevice:
    """``path`` on the host; ``release`` it once it is mounted."""

    path: str
    descriptor: int

    def release(self) -> None:
        """Let go: the device is gone when it is not mounted, and else when it is unmounted. Call it once."""
        os.close(self.descriptor)


def problem() -> str:
    """Why this process cannot make loop devices; "" where it can."""
    if os.geteuid() != 0:
        return "this process is not root"
    if shutil.which(_MAKE[0]) is None:
        return f"{_MAKE[0]} is not installed"
    try:
        os.close(os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{CONTROL} cannot be opened: {error.strerror}"
    return ""


def make(size_bytes: int, folder: Path, uid: int) -> LoopDevice:
    """An ext4 of ``size_bytes`` owned by ``uid``, its blocks in ``folder``. Raises SandboxError host_disk_full, start_failed."""
    try:
        free = shutil.disk_usage(folder).free
        if free < size_bytes:
            raise OSError(errno.ENOSPC, f"{size_bytes} bytes are asked and {free} are free")
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _format(file, size_bytes, uid)
            return _attach(file)
        finally:
            os.close(file)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SandboxError(
            ErrorCode.host_disk_full if full else ErrorCode.start_failed,
            f"The sandbox's disk cannot be made in {folder}: {error.strerror}.",
            "Free some space there, or ask for fewer disk_bytes."
            if full
            else "Ask for fewer disk_bytes: memory holds those.",
        ) from error


def _format(file: int, size_bytes: int, uid: int) -> None:
    """Write an empty ext4 into ``file``: made in memory, since mkfs waits for its disk (seen: 49 ms, by way of memory 4)."""
    memory = os.memfd_create("ext4", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, size_bytes)
        command = [*_MAKE, f"nodiscard,root_owner={uid}:{uid}", f"/proc/self/fd/{memory}"]
        made = subprocess.run(command, pass_fds=(memory,), capture_output=True, text=True, check=False, timeout=60)
        if made.returncode:
            raise OSError(errno.EIO, f"{_MAKE[0]} said: {made.stderr.strip()[-300:]}")
        os.ftruncate(file, size_bytes)
        _copy_data(memory, file)
    finally:
        os.close(memory)


def _copy_data(source: int, target: int) -> None:
    """Copy what is not a hole (a few MiB, whatever the size)."""
    end = 0
    while True:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        at = start
        while at < end:
            at += os.sendfile(target, source, at, end - at)


def _attach(file: int) -> LoopDevice:
    """Put a free loop device before ``file``; somebody else may take the one that was free."""
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _configure(device, file)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return LoopDevice(path, device)
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _configure(device: int, file: int) -> None:
    try:
        fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(file, 0, _AUTOCLEAR | _DIRECT_IO))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(file, 0, _AUTOCLEAR))  # a file system without direct I/O
