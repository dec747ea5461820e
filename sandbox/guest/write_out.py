"""Have the bytes of a replaced file leave this kernel's memory: before the answer, or right after it (docs/decisions/0013).

The sandbox's own disks are sparse files of the host. If the host's disk is full, that shows only when their bytes leave memory.
"""

from __future__ import annotations

import os
import time

from .builtin import Lock, deque, start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The major number of loop devices in st_dev; see loop(4).
_LOOP_MAJOR = 7
# While more than this is free on the host's disk, files are written out after the answer.
MARGIN_BYTES = 4 << 30
# Each that waits holds a descriptor.
MOST_WAITING = 256
# A file that is replaced or deleted within this time is never written out.
LATER_SECONDS = 0.3
# How often the thread looks: each look takes a part of a processor, and the lock of Python, from the calls of that moment.
ROUND_SECONDS = 0.1
# Of the files whose bytes were lost; the others are counted.
MOST_NAMED = 5


class WriteOut:
    """Writes out files on the sandbox's disks. May be used by many threads.

    ``host_disk`` is a folder on the disk of the host that stores the sandbox's disks; None if no folder here is known to be.
    """

    def __init__(self, host_disk: bytes | None = None) -> None:
        self._host_disk = host_disk
        self._lock = Lock()
        self._waiting: deque[tuple[float, int, int, str]] = deque()  # when due, a descriptor, its size, its path for people
        self._bytes = 0  # of those that wait, and of the one that is being written out
        self._works = False
        self._lost: list[str] = []  # paths of files whose bytes were lost since the last notice

    def settle(self, file: int, status: os.stat_result, path: str) -> None:
        """Write out a file that is complete, unless it is in memory; later if the host has much room. Raises OSError."""
        if os.major(status.st_dev) == _LOOP_MAJOR and not self._postpone(file, status.st_size, path):
            os.fsync(file)

    def _postpone(self, file: int, size: int, path: str) -> bool:
        """Have the file written out in a moment. Returns False if that is not safe, or cannot be done."""
        if self._host_disk is None:
            return False
        with self._lock:
            found = os.statvfs(self._host_disk)
            if found.f_bavail * found.f_frsize - self._bytes < MARGIN_BYTES + size:
                return False
            if len(self._waiting) >= MOST_WAITING and not self._drop_replaced():
                return False
            try:
                # Only for reading: the kernel runs no program whose file is open for writing.
                reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:  # its owner may not read it
                return False
            if not self._works:
                try:
                    start_thread(self._work, ())
                except RuntimeError:
                    os.close(reader)
                    return False
                self._works = True
            self._waiting.append((time.monotonic() + LATER_SECONDS, reader, size, path))
            self._bytes += size
        return True

    def _drop_replaced(self) -> bool:
        """Forget the oldest files that nobody can read any more, up to one that is still there. Returns whether there were any."""
        before = len(self._waiting)
        while self._waiting and not os.fstat(self._waiting[0][1]).st_nlink:
            _, file, size, _ = self._waiting.popleft()
            os.close(file)
            self._bytes -= size
        return len(self._waiting) < before

    def _work(self) -> None:
        """Write out what waits, one file after the other, and let go of those that were replaced; end when nothing waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._works = False
                    return
                due, file, size, path = self._waiting[0]
                if is_time := due <= time.monotonic() or not os.fstat(file).st_nlink:
                    self._waiting.popleft()
            if not is_time:
                time.sleep(ROUND_SECONDS)
                continue
            try:
                if os.fstat(file).st_nlink:
                    os.fsync(file)
                lost = False
            except OSError:
                lost = True
            os.close(file)
            with self._lock:
                self._bytes -= size
                if lost and path not in self._lost:
                    self._lost.append(path)

    def notices(self) -> list[dict[str, Any]]:
        """Return a notice of the files whose bytes were lost after they were reported as written; each is in one notice."""
        if not self._lost:
            return []
        with self._lock:
            lost, self._lost = self._lost, []
        return [{"code": "write_lost", "names": lost[:MOST_NAMED], "count": len(lost)}]
