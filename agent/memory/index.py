"""An index over the words of messages: SQLite's full-text search, in memory or in a file that several runs share."""

from __future__ import annotations

import re
import sqlite3
import weakref
from collections.abc import Iterable
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

# Words of a query beyond this many add nothing to its meaning.
MAX_WORDS = 64
BUSY_SECONDS = 10.0
# The marks of SQLite's excerpt, which no message holds.
_OPEN, _CLOSE, _WORDS_IN_EXCERPT = "\x02", "\x03", 48

SCHEMA = """
CREATE TABLE IF NOT EXISTS recall_upto (run TEXT PRIMARY KEY, message INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS recall_words USING fts5(
    text, run UNINDEXED, message UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2'
);
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that a search found: its number, and an excerpt around the words of the query."""

    message: int
    excerpt: str


class WordIndex:
    """Numbered texts of one ``run``, found by their words (stems; the rarer a word, the more it counts).

    ``path`` is the file of the index, which may also hold other tables; None keeps it in memory. Raises SandboxError
    ``invalid_configuration`` for a file that cannot be used. For one thread at a time.
    """

    def __init__(self, path: str | Path | None = None, run: str = "") -> None:
        self._run = run
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=BUSY_SECONDS,
                check_same_thread=False,
                isolation_level=None,
            )
            self._closing = weakref.finalize(self, self._db.close)
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The index of the memory cannot be kept in {path or 'memory'}: {error}.",
                "Name a file that is an SQLite database or does not exist yet.",
            ) from error

    @property
    def upto(self) -> int:
        """Return the number of the last message that was indexed or passed over; 0 before the first."""
        row = self._db.execute("SELECT message FROM recall_upto WHERE run = ?", (self._run,)).fetchone()
        return int(row[0]) if row else 0

    def add(self, texts: Iterable[tuple[int, str]], upto: int) -> None:
        """Add texts with their numbers; messages up to ``upto`` are then done."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            self._db.executemany(
                "INSERT INTO recall_words (text, run, message) VALUES (?, ?, ?)",
                [(_storable(text), self._run, number) for number, text in texts],
            )
            self._db.execute("INSERT OR REPLACE INTO recall_upto VALUES (?, ?)", (self._run, upto))

    def search(self, query: str, limit: int) -> list[Hit]:
        """Return the best ``limit`` of the messages that hold any word of ``query``."""
        words = list(dict.fromkeys(re.findall(r"\w+", query)))[:MAX_WORDS]
        if not words:
            return []
        rows = self._db.execute(
            "SELECT message, snippet(recall_words, 0, ?, ?, ' … ', ?) FROM recall_words"
            " WHERE recall_words MATCH ? AND run = ? ORDER BY bm25(recall_words), message DESC LIMIT ?",
            (_OPEN, _CLOSE, _WORDS_IN_EXCERPT, " OR ".join(f'"{word}"' for word in words), self._run, limit),
        )
        return [Hit(number, text.replace(_OPEN, "").replace(_CLOSE, "")) for number, text in rows]

    def close(self) -> None:
        """Release the file; may be called more than once."""
        self._closing()


def _storable(text: str) -> str:
    """SQLite does not accept half a surrogate pair as text."""
    return text.encode("utf-8", "replace").decode()
