"""Wrap text to a width in terminal columns: wide characters take two, and words stay whole if they fit."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

TAB = "    "


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> str:
    """Return ``text`` in lines of at most ``width`` columns, with ``first`` before the first line and ``rest`` before the others.

    ``rest`` is blanks as wide as ``first`` unless given. Line feeds in the text stay; nothing is left out.
    """
    rest = " " * len(first) if rest is None else rest
    room = max(width - max(columns(first), columns(rest)), 10)
    lines = [part for line in text.replace("\t", TAB).split("\n") for part in _parts(line, room)]
    return "\n".join(f"{first if number == 0 else rest}{line}".rstrip() for number, line in enumerate(lines))


def columns(text: str) -> int:
    """Return the width of ``text`` in columns."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _parts(line: str, room: int) -> Iterator[str]:
    """Yield the line cut at the last blank that fits, or inside a word that is too long for any line."""
    begun = 0
    while columns(line[begun : begun + room + 1]) > room:
        end, used = begun, 0
        while end < len(line) and used + _columns(line[end]) <= room:
            used += _columns(line[end])
            end += 1
        blank = line.rfind(" ", begun, end + 1)
        if blank > begun and line[begun:blank].strip():
            yield line[begun:blank]
            begun = blank + 1
        else:
            yield line[begun:end]
            begun = end
    yield line[begun:]
