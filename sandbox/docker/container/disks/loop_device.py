"""Make a file system of a fixed size in an unnamed file, behind a loop device that vanishes with its last user.

Nothing can leak, whenever this process dies: the file never has a name (O_TMPFILE), and the device clears itself
(LO_FLAGS_AUTOCLEAR) when neither a descriptor nor a mount holds it. A file system is formatted once per size, in memory, and what
mkfs wrote (48 KiB for 8 GiB) is copied into each new file: 0.2 ms instead of 12 to 50 (docs/decisions/0008). It is kept in this
user's cache for the next process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from sandbox.docker.engine.shared import Shared
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.user_cache import keep, read_kept

# From linux/loop.h.
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR = 4
# struct loop_config: fd, block_size, struct loop_info64 (232 bytes, lo_flags at 52), 64 bytes reserved.
_CONFIG = struct.Struct("=II52xI176x64x")
CONTROL = "/dev/loop-control"
# One lock for each (size, uid): of many sandboxes that start at once one formats, and the others take what it wrote.
_formatting: Shared[tuple[int, int], threading.Lock] = Shared()
_ATTEMPTS = 32
# No journal, for it outlives no crash; no room to grow, for it is never resized. Its tables lie together, because the host frees
# each piece of a deleted file by itself (measured: 32 ms for 16 pieces, 4 ms for 4).
_MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode,sparse_super2", "-E")
_TABLES = "num_backup_sb=0,packed_meta_blocks=1,lazy_itable_init=1,nodiscard"
# An engine copies files of an image only into an empty volume.
_EMPTY = ("debugfs", "-w", "-R", "rmdir lost+found")
_SETTINGS = "/etc/mke2fs.conf"
# A part of what mkfs wrote, before its content: offset in the file system, and length.
_PART = struct.Struct("=QQ")
_KEPT, _MOST_KEPT = "disks", 32  # where in the user's cache, and how many
MOUNT_OPTIONS = "nosuid,nodev,discard,barrier=0,noinit_itable,noauto_da_alloc"
"""It is not read after a crash, so no write waits for the host's disk, nor a rename over a file for room. Unwritten parts of the
file are zeros."""


@dataclass(frozen=True)
class LoopDevice:
    """A loop device at ``path`` on the host. Call ``release`` once it is mounted."""

    path: str
    descriptor: int

    def release(self) -> None:
        """Close the device, which disappears as soon as it is not mounted. Call it once."""
        os.close(self.descriptor)


def problem() -> str:
    """Return why this process cannot make loop devices, or ""."""
    if os.geteuid() != 0:
        return "this process is not root"
    if shutil.which(_MAKE[0]) is None:
        return f"{_MAKE[0]} is not installed"
    try:
        os.close(os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{CONTROL} cannot be opened: {error.strerror}"
    return ""


def make(size_bytes: int, folder: Path, uid: int, *, bare: bool = False) -> LoopDevice:
    """Make an ext4 of ``size_bytes`` for ``uid``, stored in ``folder``; a ``bare`` one has not even lost+found.

    Raises SandboxError host_disk_full, start_failed.
    """
    try:
        free = shutil.disk_usage(folder).free
        if free < size_bytes:
            raise OSError(errno.ENOSPC, f"{size_bytes} bytes are asked and {free} are free")
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size_bytes)
            for offset, content in formatted(size_bytes, uid, bare):
                os.pwrite(file, content, offset)
            return _attach(file)
        finally:
            os.close(file)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SandboxError(
            ErrorCode.host_disk_full if full else ErrorCode.start_failed,
            f"The sandbox's disk cannot be made in {folder}: {error.strerror}.",
            "Free some space there, or ask for fewer disk_bytes." if full else 'Take disk="memory".',
        ) from error


def formatted(size_bytes: int, uid: int, bare: bool = False) -> tuple[tuple[int, bytes], ...]:
    """Return what mkfs writes for an empty ext4, as (offset, content). Raises OSError."""
    with _formatting.obtain((size_bytes, uid), threading.Lock):
        return _formatted(size_bytes, uid, bare)


@functools.lru_cache(maxsize=16)
def _formatted(size_bytes: int, uid: int, bare: bool) -> tuple[tuple[int, bytes], ...]:
    """Return what this process, an earlier one or mkfs has written."""
    settings = sorted(each for each in os.environ.items() if each[0].startswith("MKE2FS_"))
    versions = [_version(path) for path in (shutil.which(_MAKE[0]) or "", os.environ.get("MKE2FS_CONFIG") or _SETTINGS)]
    asked = repr((_MAKE, _TABLES, _EMPTY, size_bytes, uid, bare, settings, versions)).encode()
    with contextlib.suppress(OSError, ValueError):
        return tuple(_unpack(read_kept(_KEPT, asked)))
    made = _format(size_bytes, uid, bare)
    with contextlib.suppress(OSError, ValueError):
        keep(_KEPT, asked, _pack(made), most=_MOST_KEPT)
    return made


def _version(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _pack(parts: tuple[tuple[int, bytes], ...]) -> bytes:
    return b"".join(_PART.pack(offset, len(content)) + content for offset, content in parts)


def _unpack(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(content):
        offset, length = _PART.unpack_from(content, at)
        at += _PART.size + length
        yield offset, content[at - length : at]


def _format(size_bytes: int, uid: int, bare: bool) -> tuple[tuple[int, bytes], ...]:
    memory = os.memfd_create("ext4", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, size_bytes)
        command = [*_MAKE, f"{_TABLES},root_owner={uid}:{uid}", f"/proc/self/fd/{memory}"]
        _run(command, memory)
        if bare:
            _run([*_EMPTY, f"/proc/self/fd/{memory}"], memory)
        return tuple(_read_data(memory))
    finally:
        os.close(memory)


def _run(command: list[str], memory: int) -> None:
    made = subprocess.run(command, pass_fds=(memory,), capture_output=True, text=True, check=False, timeout=60)
    if made.returncode:
        raise OSError(errno.EIO, f"{command[0]} said: {made.stderr.strip()[-300:]}")


def _read_data(file: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of each part of a sparse file that is not a hole."""
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, os.pread(file, end - start, start)


def _attach(file: int) -> LoopDevice:
    """Attach ``file`` to a free loop device. Tries again if another process takes it first."""
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(file, 0, _AUTOCLEAR))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return LoopDevice(path, device)
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")
