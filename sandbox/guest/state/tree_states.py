"""The states of all entries of a tree, to be compared with those at another time.

A folder's state is its mode: what is in it has a state of its own. That of anything else is a hash over mode, size, times and
inode, with the mode in its low 16 bits. In a sandbox a function in C reads them (``tree_states.c``), four times as fast as Python.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import time

from ..files.tree_walk import DIRECTORY
from ..protocol.leftovers import LEFTOVERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tree_watch import TreeWatch

    States = dict[bytes, int]

# About 50 bytes of the guest's memory each, or 200 as a dictionary.
ENTRIES = 20_000
LEVELS = 200  # deeper folders are not scanned: their own times are compared
SKIPPED = frozenset(name.encode() for name in LEFTOVERS)
# Every git command writes to it, even one that only reads: it is never reported.
UNREPORTED = b".git"
TYPE = 0o170000
_RECORD = struct.Struct("=QH")
_TOO_MUCH, _TOO_LATE, _NO_ROOM = -1, -2, -3
_LEAST_ROOM, _MOST_ROOM = 1 << 16, 1 << 24
_64_BITS = (1 << 64) - 1


class TooMuchError(Exception):
    """The tree is too large to be read within the budget."""


class TooLateError(TooMuchError):
    """Reading took too long by the clock alone: the machine is busy, and the next time may well be in time."""


class _Limits(ctypes.Structure):
    _fields_ = (
        ("entries", ctypes.c_int64),
        ("levels", ctypes.c_int64),
        ("cpu_seconds", ctypes.c_double),
        ("clock_seconds", ctypes.c_double),
        ("skipped", ctypes.c_char_p),
    )


class Watching(ctypes.Structure):
    """How ``read_tree`` watches the folders that it reads: see ``tree_states.c``."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("inotify", "hidden", "folders", "entries", "blind"))


class TreeReader:
    """Reads the states of trees. ``library`` is the path of the compiled function; if it is not there, Python does the same."""

    def __init__(self, library: str) -> None:
        self._path = library
        self._room = _LEAST_ROOM
        self._loaded = False
        self.library: Any = None
        """The compiled functions, if they could be loaded and this kernel has what they need."""

    def read(self, top: bytes, cpu_seconds: float, clock_seconds: float, watch: TreeWatch | None = None) -> States | bytes:
        """Return the states of everything below a folder: as a dictionary, or as records that equal those of an unchanged tree.

        ``watch`` watches the folders as they are read. Gives up after these seconds of this thread's CPU time, and by the clock.
        Raises OSError if the folder cannot be opened, TooMuchError, TooLateError.
        """
        self.load()
        if self.library:
            fd = os.open(top, DIRECTORY)
            watching = Watching(inotify=-1) if watch is None else watch.begin(fd)
            try:
                records = self._read_records(fd, time.thread_time() + cpu_seconds, time.monotonic() + clock_seconds, watching)
            finally:
                os.close(fd)
            if records is not None:
                if watch is not None:
                    watch.end(watching)
                return records
            if watch is not None:
                watch.close()  # its notices are read by the library
            self.library = None
        return _read_in_python(top, time.thread_time() + cpu_seconds, time.monotonic() + clock_seconds)

    def load(self) -> None:
        """Load the library, if that has not been done."""
        if self._loaded:
            return
        self._loaded = True
        try:
            self.library = ctypes.CDLL(self._path)
            self.library.read_tree.restype = ctypes.c_int64
        except OSError:  # a guest outside of a sandbox
            self.library = None

    def _read_records(self, fd: int, cpu_seconds: float, clock_seconds: float, watching: Watching) -> bytes | None:
        """Return the records, or None if the function needs a system call that this kernel does not have."""
        limits = _Limits(ENTRIES, LEVELS, cpu_seconds, clock_seconds, b"\0".join(SKIPPED) + b"\0\0")
        size = _NO_ROOM
        most = watching.folders, watching.entries
        while size == _NO_ROOM and self._room <= _MOST_ROOM:
            watching.folders, watching.entries = most
            buffer = ctypes.create_string_buffer(self._room)
            size = self.library.read_tree(
                fd, buffer, ctypes.c_size_t(self._room), ctypes.byref(limits), ctypes.byref(watching)
            )
            if size == _NO_ROOM:
                self._room *= 2
        if size in (_TOO_MUCH, _NO_ROOM):
            raise TooMuchError
        if size == _TOO_LATE:
            raise TooLateError
        return ctypes.string_at(buffer, size) if size >= 0 else None


def to_dictionary(states: States | bytes) -> States:
    """Return states by path below the top."""
    if not isinstance(states, bytes):
        return states
    found, at = {}, 0
    while at < len(states):
        state, size = _RECORD.unpack_from(states, at)
        at += _RECORD.size + size
        found[states[at - size : at]] = state
    return found


def state_of(status: os.stat_result, name: bytes) -> int:
    """Return the state of an entry."""
    mode = status.st_mode
    if stat.S_ISDIR(mode) and name not in SKIPPED:
        return mode
    return _opaque(status)


def _opaque(status: os.stat_result) -> int:
    digest = (
        status.st_size * 0x9E3779B97F4A7C15
        + status.st_mtime_ns * 0xC2B2AE3D27D4EB4F
        + status.st_ctime_ns * 0x165667B19E3779F9
        + status.st_ino * 0xD6E8FEB86659FD93
    )
    return (digest & _64_BITS) >> 20 << 16 | status.st_mode


def _read_in_python(top: bytes, cpu_seconds: float, clock_seconds: float) -> States:
    states: States = {}
    levels: list[tuple[int, bytes, list[bytes]]] = [_enter(top, None, b"", states)]
    try:
        while levels:
            fd, prefix, folders = levels[-1]
            if not folders:
                os.close(levels.pop()[0])
                continue
            name = folders.pop()
            try:
                if len(levels) >= LEVELS:
                    states[prefix + name] = _opaque(os.stat(name, dir_fd=fd, follow_symlinks=False))
                    continue
                levels.append(_enter(name, fd, prefix + name + b"/", states))
            except OSError:  # unreadable, or replaced
                continue
            if time.thread_time() > cpu_seconds:
                raise TooMuchError
            if time.monotonic() > clock_seconds:
                raise TooLateError
    finally:
        for level in levels:
            os.close(level[0])
    return states


def _enter(name: bytes, above: int | None, prefix: bytes, states: States) -> tuple[int, bytes, list[bytes]]:
    """Open a folder and add the states of its entries. Returns its descriptor, its prefix, and the folders in it to read."""
    fd = os.open(name, DIRECTORY, dir_fd=above)
    folders = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                own = os.fsencode(entry.name)
                if own == UNREPORTED:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                states[prefix + own] = state_of(status, own)
                if stat.S_ISDIR(status.st_mode) and own not in SKIPPED:
                    folders.append(own)
                if len(states) > ENTRIES:
                    raise TooMuchError
    except BaseException:
        os.close(fd)
        raise
    return fd, prefix, folders
