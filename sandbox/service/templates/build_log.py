"""The log of a build, in bounded memory: its first lines and its last ones."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from sandbox.service.clock import now

LEVELS = ("debug", "info", "warn", "error")
MOST_FIRST, MOST_LAST = 8000, 2000
MOST_CHARS = 4000
Entry = dict[str, Any]


class BuildLog:
    """Entries of a build. Any thread may add some. What is between the first and the last is counted, and not kept.

    An entry keeps its place: readers ask for those after the ones that they have.
    """

    def __init__(self) -> None:
        self._first: list[Entry] = []
        self._last: deque[Entry] = deque()
        self._left_out = 0
        self._lock = threading.Lock()

    def add(self, level: str, message: str, step: str = "", at: float | None = None) -> None:
        """Add an entry."""
        if len(message) > MOST_CHARS:
            message = f"{message[:MOST_CHARS]} [{len(message) - MOST_CHARS} characters more]"
        entry = {"at": now() if at is None else at, "level": level, "message": message, **({"step": step} if step else {})}
        with self._lock:
            if len(self._first) < MOST_FIRST:
                self._first.append(entry)
                return
            self._last.append(entry)
            if len(self._last) > MOST_LAST:
                self._last.popleft()
                self._left_out += 1

    def first(self) -> list[Entry]:
        """Return the entries that will not move any more: what comes after the first ones is known at the end."""
        with self._lock:
            return list(self._first)

    def all(self) -> list[Entry]:
        """Return all entries that were kept, with one that says how many were not."""
        with self._lock:
            missing = [] if not self._left_out else [_missing(self._left_out, self._last[0]["at"])]
            return [*self._first, *missing, *self._last]

    def text(self) -> str:
        """Return it as the store has it."""
        return json.dumps(self.all())


def _missing(count: int, at: float) -> Entry:
    return {"at": at, "level": "warn", "message": f"[{count} entries of the log were left out here]"}


def read_log(text: str) -> list[Entry]:
    """Return the entries of a log that ``text`` wrote."""
    return list(json.loads(text)) if text else []


def page(entries: Sequence[Entry], level: str | None, offset: int, limit: int) -> list[Entry]:
    """Return up to ``limit`` of the entries of that level and those above, from ``offset`` on."""
    least = 0 if level is None else LEVELS.index(level)
    return [each for each in entries if LEVELS.index(each["level"]) >= least][offset : offset + limit]
