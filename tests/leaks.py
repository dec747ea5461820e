"""What a test has left open in this process, in which other tests' sandboxes live, and end, at any time."""

from __future__ import annotations

import contextlib
import os
import time


def descriptors() -> dict[int, str]:
    """This process's descriptors, and what each is of."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def left_open(before: dict[int, str], seconds: float = 0.0) -> list[str]:
    """What is open now and was not ``before``; waits up to ``seconds`` for it to be closed."""
    deadline = time.monotonic() + seconds
    while left := sorted(what for fd, what in descriptors().items() if before.get(fd) != what):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return left
