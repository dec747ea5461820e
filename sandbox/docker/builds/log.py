"""The log of a build: lines of printable text, in order and bounded."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from sandbox.frozen import dataclass
from sandbox.text.invisible import escape_invisible
from sandbox.text.plain_text import plain

Level = Literal["debug", "info", "warn", "error"]
TAIL_LINES = 20
_MOST_LINE = 4096


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of a build's log: printable text without escape sequences.

    ``step`` is "base", the number of the step from 1, or "finalize"; ``at`` is in seconds since the epoch.
    """

    at: float
    level: Level
    step: str
    text: str


class BuildLog:
    """Reports entries one at a time, up to ``most_bytes`` of text; ``tail`` has the last lines of the step's output."""

    def __init__(self, report: Callable[[LogEntry], None], most_bytes: int) -> None:
        self._report, self._left = report, most_bytes
        self._lock = threading.Lock()
        self._begun = {"stdout": "", "stderr": ""}
        self._full = False
        self.step = "base"
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def begin(self, step: str) -> None:
        """Start with the next step."""
        self.flush()
        self.step = step
        self.tail.clear()

    def say(self, text: str, level: Level = "info") -> None:
        """Report a line of Gamebox's own."""
        self._add(level, text)

    def output(self, stream: str, text: str) -> None:
        """Take output of a command as it comes, and report the lines that are whole."""
        *lines, rest = (self._begun[stream] + text).split("\n")
        for line in lines:
            self._add_output(line)
        while len(rest) > _MOST_LINE:
            # A progress bar that never ends its line: what it overwrote is not needed.
            kept = rest.rpartition("\r")[2]
            if len(kept) > _MOST_LINE:
                self._add_output(kept[:_MOST_LINE])
                kept = kept[_MOST_LINE:]
            rest = kept
        self._begun[stream] = rest

    def flush(self) -> None:
        """Report lines that were not ended."""
        for stream, rest in self._begun.items():
            self._begun[stream] = ""
            if rest:
                self._add_output(rest)

    def _add_output(self, line: str) -> None:
        text = self._add("info", line)
        if text:
            self.tail.append(text)

    def _add(self, level: Level, text: str) -> str:
        cleaned = escape_invisible(plain(text).replace("\n", " "))[:_MOST_LINE].rstrip()
        with self._lock:
            entry = LogEntry(time.time(), level, self.step, cleaned)
            if self._full and level != "error":
                return cleaned
            self._left -= len(cleaned.encode("utf-8", "replace")) + 1
            if self._left < 0 and not self._full:
                self._full = True
                entry = LogEntry(entry.at, "warn", self.step, "The log is full; the rest of the output is left out.")
            self._report(entry)
        return cleaned
