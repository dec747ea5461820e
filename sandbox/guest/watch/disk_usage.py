"""A program that measures folders again and again and writes their sizes to a descriptor, so that the guest need not wait for it.

    python3 -m gamebox_guest.watch.disk_usage DESCRIPTOR FOLDER...

Each packet contains the bytes that each folder takes on its disk, as decimal numbers in the same order. Deleted files that are
still open are not counted, nor are other file systems below the folders. A folder below another of them counts only for itself.
"""

from __future__ import annotations

import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The share of a processor that measurements may take. One takes 2 µs per file.
SHARE = 0.1
LEAST_SECONDS = 0.2
NICE = 10
BLOCK = 512


def measure_sizes(folders: Sequence[bytes]) -> list[int]:
    """Return the bytes that the files below each of ``folders`` take on disk. A file with several names counts once."""
    found = [_status(folder) for folder in folders]
    tops = {(status.st_dev, status.st_ino) for status in found if status is not None}
    linked: set[tuple[int, int]] = set()
    return [
        0 if status is None else _size_below(folder, status.st_dev, tops, linked)
        for folder, status in zip(folders, found, strict=True)
    ]


def _size_below(folder: bytes, device: int, tops: set[tuple[int, int]], linked: set[tuple[int, int]]) -> int:
    total = 0
    waiting = [folder]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:  # gone meanwhile, or not readable
            continue
        with entries:
            for entry in entries:
                total += _blocks(entry, device, waiting, tops, linked)
    return total * BLOCK


def _status(folder: bytes) -> os.stat_result | None:
    try:
        return os.lstat(folder)
    except OSError:
        return None


def _blocks(
    entry: os.DirEntry[bytes],
    device: int,
    waiting: list[bytes],
    tops: set[tuple[int, int]],
    linked: set[tuple[int, int]],
) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    key = (status.st_dev, status.st_ino)
    if entry.is_dir(follow_symlinks=False):
        # Only folders are compared: files of an overlay may show the device of their layer.
        if status.st_dev != device or key in tops:
            return 0
        waiting.append(entry.path)
    elif status.st_nlink > 1:
        if key in linked:
            return 0
        linked.add(key)
    return status.st_blocks


def main() -> None:
    """Report sizes until the reader is gone."""
    folders = [os.fsencode(folder) for folder in sys.argv[2:]]
    os.nice(NICE)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        while True:
            before = time.process_time()  # on a busy machine a measurement takes long and little of a processor
            sizes = measure_sizes(folders)
            took = time.process_time() - before
            try:
                listener.send(b" ".join(b"%d" % size for size in sizes))
            except OSError:
                return
            time.sleep(max(LEAST_SECONDS, took / SHARE))


if __name__ == "__main__":
    main()
