"""A terminal for tests: what a program draws on it, looked at after each write."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import pyte


def displays(
    code: str, status: int = 0, *, columns: int = 40, rows: int = 10, look: Callable[[list[str]], object] = list
) -> tuple[list[list[str]], pyte.Screen]:
    """The lines that a terminal shows of a Python program, each time that something is written to it, and the screen at the end.

    ``look`` is called with the lines each time.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (rows, columns))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=theirs, env={**os.environ, "TERM": "xterm-256color"}
    )
    os.close(theirs)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    seen, end = [], time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:
                break
            seen.append([line.rstrip() for line in screen.display])
            look(seen[-1])
    os.close(ours)
    try:
        assert process.wait(60) == status
    finally:
        process.kill()
    return seen, screen


def screens(code: str, status: int = 0, *, look: Callable[[list[str]], object] = list) -> list[list[str]]:
    """The lines that the terminal shows, each time that something is written to it."""
    return displays(code, status, look=look)[0]
