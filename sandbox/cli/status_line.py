"""Show the step under way and its seconds in the last line of a terminal, or as plain lines elsewhere.

Above it, a step can show the last lines that its command has printed. All of it is redrawn in place, and removed when the
step ends.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

from sandbox.text.wrapping import wrap

_TICK_SECONDS = 0.25
_LASTING_SECONDS = 2.0
"""A step that took longer leaves a line with its duration."""
REPLY = "reply"
"""The stream of a reply that a model is writing."""
OUTPUT_LINES = 5
"""Lines of a command's output that are shown while it runs; fewer on a low terminal."""
_OUTPUT_CHARS, _LINE_CHARS = 4096, 512
_ROWS_LEFT = 4
"""Rows left free of output for the step, the user's input, and what was there before."""
# A character may be wider than one column: the line is then cut at the edge of the terminal, instead of wrapping.
_UNWRAPPED, _WRAPPED = "\x1b[?7l", "\x1b[?7h"


class StatusLine:
    """Shows the step under way and its elapsed seconds. May be used by many threads; does nothing unless on a terminal.

    Call ``clear`` before printing to the same terminal; the line comes back with the next tick. With ``above_input`` it stays
    on the line above the cursor, so that it does not overwrite what the user types.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self.above_input = False
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._text = self._facts = ""
        self._prose = False
        self._since = 0.0
        self._output: list[str] | None = None  # the last lines, and the one not completed
        # A separate lock: while a terminal is stopped (Ctrl-S), the other one is held, and commands must not wait for it.
        self._output_lock = threading.Lock()
        self._drawn: Literal["", "here", "above"] = ""
        self._height = 0
        self._thread: threading.Thread | None = None

    @property
    def stream(self) -> TextIO:
        """The output stream: standard error unless another one was given."""
        return sys.stderr if self._stream is None else self._stream

    @property
    def live(self) -> bool:
        """Whether the stream is a terminal that can rewrite a line."""
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, text: str, *, facts: str = "", with_output: bool = False, prose: bool = False) -> None:
        """Begin the step ``text``, replacing the step before. ``with_output`` also shows what ``add_output`` gets.

        ``facts`` follow the seconds: "thinking 12 s · step 4/50 · Ctrl-C pauses". The output is ``prose`` if its long lines
        are to be wrapped; those of a command's output are cut.
        """
        if not self.live:
            return
        with self._lock:
            self._text, self._facts, self._since = " ".join(text.split()), facts, time.monotonic()
            self._prose = prose
            with self._output_lock:
                self._output = [""] if with_output else None
            if self._height > 1:
                self._clear()
            self._draw()
            if self._thread is None:
                self._thread = threading.Thread(target=self._tick, name="status-line", daemon=True)
                self._thread.start()
            self._wake.notify()

    def add_output(self, stream: str, text: str) -> None:
        """Add what a command has printed. Its last lines appear with the next tick, if the step shows output.

        A carriage return ends a line, too, so that nothing is overwritten. Never waits for the terminal. While a step shows prose,
        only the stream REPLY is added, and otherwise every other one.
        """
        if (stream == REPLY) != self._prose:
            return
        with self._output_lock:
            if self._output is not None:
                *lines, begun = self._output
                begun += text if len(text) <= _OUTPUT_CHARS else f"\n{text[-_OUTPUT_CHARS:]}"
                *ended, begun = (self._shorter(line) for line in re.split("[\r\n]+", begun))
                self._output = [*[line for line in (*lines, *ended) if line.strip()][-OUTPUT_LINES:], begun]

    def clear_output(self) -> None:
        """Forget the output of the step so far; the step goes on."""
        with self._output_lock:
            if self._output is not None:
                self._output = [""]

    def hide(self) -> float:
        """End the step, remove its line, and return how many seconds it took (0 if there was no step)."""
        with self._lock:
            seconds = time.monotonic() - self._since if self._text else 0.0
            self._text = ""
            with self._output_lock:
                self._output = None
            self._clear()
        return seconds

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line while the user is asked something. The step comes back afterwards, counting from 0."""
        text, facts, with_output, prose = self._text, self._facts, self._output is not None, self._prose
        self.hide()
        try:
            yield
        finally:
            if text:
                self.show(text, facts=facts, with_output=with_output, prose=prose)

    def clear(self) -> None:
        """Remove the line so that other text can be printed; the step goes on."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._drawn:
            up = self._height if self._drawn == "above" else self._height - 1
            self._write(f"{_up(up)}\r\x1b[J" if up else "\r\x1b[K")
            self._drawn, self._height = "", 0

    def _tick(self) -> None:
        with self._lock:
            while True:
                while not self._text:
                    self._wake.wait()
                self._draw()
                self._wake.wait(_TICK_SECONDS)

    def _draw(self) -> None:
        columns, rows = _terminal_size(self.stream)
        step = self._step(columns - 1)
        lines = [*(f"\x1b[2m{_cut(line, columns - 1)}\x1b[22m" for line in self._output_lines(rows, columns)), step]
        if len(lines) < self._height:  # the terminal has become lower
            self._clear()
        block, grown = "\r\n".join(f"\x1b[K{line}" for line in lines), len(lines) - self._height
        if self._drawn == "above":
            # The user's input below moves down with the cursor.
            room, insert = ("\x1bD" * grown, f"\x1b[{grown}L") if grown else ("", "")
            self._write(f"{room}\x1b7{_up(len(lines))}\r{insert}{_UNWRAPPED}{block}{_WRAPPED}\x1b8")
        elif self.above_input:
            self._write(f"\r{_UNWRAPPED}{block}{_WRAPPED}\r\n")
            self._drawn = "above"
        else:
            self._write(f"{_up(self._height - 1)}\r{_UNWRAPPED}{block}{_WRAPPED}")
            self._drawn = "here"
        self._height = len(lines)

    def _step(self, columns: int) -> str:
        seconds = f"{time.monotonic() - self._since:.0f} s"
        if self._facts:
            return _cut(f"{_cut(self._text, columns // 2)} {seconds} · {self._facts}", columns)
        return f"{_cut(self._text, columns - len(seconds) - 3)} · {seconds}"

    def _output_lines(self, rows: int, columns: int) -> list[str]:
        from sandbox.text.invisible import visible_output  # 0.6 ms, for a command that never shows output

        lines = [line for line in self._output or () if line.strip()][-OUTPUT_LINES:]
        shown = [f"    {visible_output(line)}".expandtabs() for line in lines]
        if self._prose:
            shown = [row for line in shown for row in wrap(line.strip(), columns - 1, "    ").split("\n")][
                -OUTPUT_LINES:
            ]
        return shown[max(len(shown) + _ROWS_LEFT - rows, 0) :]

    def _shorter(self, line: str) -> str:
        return line[-_LINE_CHARS:] if self._prose else line[:_LINE_CHARS]

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream was closed at exit
            self._text = ""


@functools.cache
def terminal() -> StatusLine:
    """Return the status line of this process's terminal. There is only one."""
    return StatusLine()


class Progress:
    """A ``report`` callable for starting a sandbox: each line is a step, and a long one leaves its duration."""

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
        if self._step and seconds >= _LASTING_SECONDS:
            self.status.stream.write(f"{self._step} · {seconds:.0f} s\n")
            self.status.stream.flush()
        self._step = ""


@contextmanager
def progress(text: str = "starting the sandbox") -> Iterator[Progress]:
    """Show ``text`` with its seconds at once, and then what is reported, until ``done`` or the end of the block."""
    reported = Progress()
    reported.status.show(text)
    try:
        yield reported
    finally:
        reported.done()


def terminal_columns(stream: TextIO) -> int:
    """Return the width of the terminal behind ``stream``, 80 if it is unknown."""
    return _terminal_size(stream)[0]


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return found.columns or 80, found.lines or 24


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows > 0 else ""


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"
