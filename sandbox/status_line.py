"""One line at the bottom of a terminal that says what is being waited for, with its seconds; plain lines elsewhere."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

_TICK_SECONDS = 0.25
_KEPT_SECONDS = 2.0
"""A step that took longer leaves a line with its time."""


class StatusLine:
    """Show the step under way and its elapsed seconds. May be used by many threads; does nothing off a terminal.

    Whoever prints to the same terminal calls ``clear`` first; the line comes back with the next tick. With ``above_input``
    it stays on the line above the cursor, so that what a person types meanwhile is not overwritten.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self.above_input = False
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._text = ""
        self._since = 0.0
        self._drawn: Literal["", "here", "above"] = ""
        self._thread: threading.Thread | None = None

    @property
    def stream(self) -> TextIO:
        """Where it is shown: standard error unless another stream was given."""
        return sys.stderr if self._stream is None else self._stream

    @property
    def live(self) -> bool:
        """Whether that is a terminal that can rewrite a line."""
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, text: str) -> None:
        """Say that ``text`` begins now; it replaces the step before."""
        if not self.live:
            return
        with self._lock:
            self._text, self._since = " ".join(text.split()), time.monotonic()
            self._draw()
            if self._thread is None:
                self._thread = threading.Thread(target=self._tick, name="status-line", daemon=True)
                self._thread.start()
            self._wake.notify()

    def hide(self) -> float:
        """End the step, take its line away and return how many seconds it took (0 if there was no step)."""
        with self._lock:
            seconds = time.monotonic() - self._since if self._text else 0.0
            self._text = ""
            self._clear()
        return seconds

    def clear(self) -> None:
        """Take the line away so that other text can be printed; the step goes on."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K" if self._drawn == "here" else "\x1b[1A\r\x1b[J")
            self._drawn = ""

    def _tick(self) -> None:
        with self._lock:
            while True:
                while not self._text:
                    self._wake.wait()
                self._draw()
                self._wake.wait(_TICK_SECONDS)

    def _draw(self) -> None:
        seconds = f" · {time.monotonic() - self._since:.0f} s"
        room = terminal_columns(self.stream) - len(seconds) - 1
        text = (self._text if len(self._text) <= room else f"{self._text[: max(room - 1, 0)]}…") + seconds
        if self._drawn == "above":
            self._write(f"\x1b7\x1b[1A\r{text}\x1b[K\x1b8")
        elif self.above_input:
            self._write(f"\r\x1b[K{text}\n")
            self._drawn = "above"
        else:
            self._write(f"\r\x1b[K{text}")
            self._drawn = "here"

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream was closed at exit
            self._text = ""


@functools.cache
def terminal() -> StatusLine:
    """Return the status line of this process's terminal; there is only one."""
    return StatusLine()


class Progress:
    """A ``report`` callable for what sets a sandbox up: each line is a step, and a long one leaves its time behind."""

    def __init__(self) -> None:
        self.status = terminal()
        self._step = ""

    def __call__(self, line: str) -> None:
        if not self.status.live:
            self.status.stream.write(f"{line}\n")
            self.status.stream.flush()
            return
        self._end_step()
        self._step = line
        self.status.show(line)

    def done(self) -> None:
        """End the last step. Call it before anything else is printed."""
        self._end_step()

    def _end_step(self) -> None:
        seconds = self.status.hide()
        if self._step and seconds >= _KEPT_SECONDS:
            self.status.stream.write(f"{self._step} · {seconds:.0f} s\n")
            self.status.stream.flush()
        self._step = ""


@contextmanager
def progress(text: str = "starting the sandbox") -> Iterator[Progress]:
    """Show ``text`` with its seconds at once, and whatever is reported after it, until ``done`` or the end of the block."""
    reported = Progress()
    reported.status.show(text)
    try:
        yield reported
    finally:
        reported.done()


def terminal_columns(stream: TextIO) -> int:
    """Return how wide the terminal behind ``stream`` is; 80 if it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
