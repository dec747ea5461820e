"""Measures folders again and again and writes their size to a descriptor: a process of its own, so that it slows nobody.

    python3 -m gamebox_guest.usage DESCRIPTOR FOLDER...

Each packet is the bytes that the folders take on their disk, together, as decimal digits. What is deleted but still open, and
what lies in other file systems below them, is not seen.
"""

from __future__ import annotations

import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# A measurement takes 2 µs a file; at most this share of a processor goes into it.
SHARE = 0.1
LEAST_SECONDS = 0.2
NICE = 10
BLOCK = 512


def size_on_disk(folders: Iterable[bytes]) -> int:
    """Bytes that the files below ``folders`` take; a file with several names counts once."""
    total = 0
    linked: set[tuple[int, int]] = set()
    for folder in folders:
        try:
            device = os.lstat(folder).st_dev
        except OSError:
            continue
        waiting = [folder]
        while waiting:
            try:
                entries = os.scandir(waiting.pop())
            except OSError:  # gone meanwhile, or not to be read
                continue
            with entries:
                for entry in entries:
                    total += _blocks(entry, device, waiting, linked)
    return total * BLOCK


def _blocks(entry: os.DirEntry[bytes], device: int, waiting: list[bytes], linked: set[tuple[int, int]]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    if entry.is_dir(follow_symlinks=False):
        # Of folders alone: files of an overlay may show the device of their layer.
        if status.st_dev != device:
            return 0
        waiting.append(entry.path)
    elif status.st_nlink > 1:
        key = (status.st_dev, status.st_ino)
        if key in linked:
            return 0
        linked.add(key)
    return status.st_blocks


def main() -> None:
    """Report until nobody listens."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    folders = [os.fsencode(folder) for folder in sys.argv[2:]]
    os.nice(NICE)
    while True:
        before = time.monotonic()
        total = size_on_disk(folders)
        took = time.monotonic() - before
        try:
            listener.send(b"%d" % total)
        except OSError:
            return
        time.sleep(max(LEAST_SECONDS, took / SHARE))


if __name__ == "__main__":
    main()
