"""Reduce a command's output to what a terminal would show, line by line: without overwritten progress bars and escape codes.

Handles only movement within a line (carriage return, backspace, erasing in the line); a program that draws a whole screen needs a
terminal (``pty``). Time and memory are linear in the length of the text.
"""

from __future__ import annotations

import re

# CSI (ESC [ … final), OSC and other strings (ESC ] … BEL or ESC \), two-character escapes, and what was cut off at the end. Every
# part is bounded, so that no text causes backtracking.
_ESCAPE = re.compile(
    "\x1b\\[(?P<parameters>[0-?]{0,64})[ -/]{0,8}(?P<final>[@-~])"
    "|\x1b(?P<string>[\\]PX^_][^\x07\x1b\n]{0,4096})(?:\x07|\x1b\\\\)"
    "|\x1b[ -/]{0,4}[0-Z\\\\-~]"
    "|\x1b"
)
# Characters that print nothing; newline, tab and what moves the cursor are kept.
_SILENT = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_MOVES = re.compile("\r|\b|\x1b\\[[0-9;]{0,16}K|[^\r\b\x1b]+|\x1b")
_ERASE = re.compile("\x1b\\[(?P<how>[0-9]{0,2})K")
_SUSPECT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def overwrites(text: str) -> bool:
    """Return whether ``plain(text)`` lacks some of the text because the program overwrote or erased it."""
    if not _SUSPECT.search(text):
        return False
    written = _SILENT.sub("", _ESCAPE.sub(lambda match: match.group("string") or "", text)).replace("\b", "")
    return sum(map(len, written.split())) > sum(map(len, plain(text).split()))


def plain(text: str) -> str:
    """Return ``text`` as it finally looks on a terminal. Text without control characters is returned unchanged."""
    if not _SUSPECT.search(text):
        return text
    text = _SILENT.sub("", _ESCAPE.sub(_keep_erasing, text))
    return "\n".join(_line(line) for line in text.split("\n"))


def _keep_erasing(match: re.Match[str]) -> str:
    """Keep "erase in line", the only escape that changes a line; show the text of strings (a title, an address); drop others."""
    if match.group("string") is not None:
        return f"<{match.group('string')}>"
    if match.group("final") == "K" and match.group("parameters") in ("", "0", "1", "2"):
        return match.group()
    return ""


def _line(line: str) -> str:
    line = line.removesuffix("\r")
    if "\r" not in line and "\b" not in line and "\x1b" not in line:
        return line
    cells = _Cells()
    for match in _MOVES.finditer(line):
        piece = match.group()
        if piece == "\r":
            cells.at = 0
        elif piece == "\b":
            cells.at = max(0, cells.at - 1)
        elif erase := _ERASE.fullmatch(piece):
            cells.erase(erase.group("how"))
        else:
            cells.write(piece)
    return cells.text()


class _Cells:
    """One line of a terminal. The cursor only advances by printing, so that erasing never costs more than printing did."""

    def __init__(self) -> None:
        self.at = 0
        self._cells: dict[int, str] = {}
        self._start = 0  # the cells before it are empty
        self._end = 0  # and from here on

    def write(self, text: str) -> None:
        """Print at the cursor."""
        self._start = min(self._start, self.at)
        self._cells.update(enumerate(text, self.at))
        self.at += len(text)
        self._end = max(self._end, self.at)

    def erase(self, how: str) -> None:
        """Erase to the end of the line ("" and "0"), from its start ("1"), or all of it ("2")."""
        if how == "2":
            self._cells.clear()
            self._start, self._end = self.at, 0
        elif how == "1":
            for column in range(self._start, self.at + 1):
                self._cells.pop(column, None)
            self._start = max(self._start, self.at + 1)
        else:
            for column in range(self.at, self._end):
                self._cells.pop(column, None)
            self._end = min(self._end, self.at)

    def text(self) -> str:
        """Return the visible text, without trailing blanks."""
        return "".join(self._cells.get(column, " ") for column in range(self._end)).rstrip(" ")
