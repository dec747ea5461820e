"""The screen that the commands write to: styled lines on a terminal, plain ones elsewhere, in which nothing is invisible."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from sandbox.cli.status_line import terminal, terminal_columns
from sandbox.text.invisible import visible
from sandbox.text.wrapping import wrap

if TYPE_CHECKING:
    from rich.console import Console

_DIFF_STYLES = {"+": "green", "-": "red", "@@": "cyan", "diff --git ": "bold", "--- ": "bold", "+++ ": "bold"}


def diff_style(line: str, other: str = "") -> str:
    """Return the style of a line of a diff, ``other`` for a line that is not changed."""
    return next((style for start, style in reversed(_DIFF_STYLES.items()) if line.startswith(start)), other)


class Screen:
    """Writes to ``stream``, standard error by default. rich is imported only for a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._console: Console | None = None
        if self.stream.isatty():
            from rich.console import Console

            self._console = Console(file=self.stream, highlight=False, soft_wrap=True)

    @property
    def console(self) -> Console | None:
        """The console of rich on a terminal, else None."""
        return self._console

    def line(self, text: str, style: str = "") -> None:
        """Write one or several lines. On a terminal they are wrapped, and their rests indented further."""
        terminal().clear()
        if self._console is None:
            self.stream.write(f"{visible(text)}\n")
            self.stream.flush()
            return
        from rich.text import Text

        width = terminal_columns(self.stream)
        lines = "\n".join(_indented(line, width) for line in visible(text).split("\n"))
        self._console.print(Text(lines, style=style))

    def diff(self, text: str) -> None:
        """Write a diff: in colour on a terminal, byte for byte elsewhere, so that it can be applied."""
        if self._console is None:
            self.stream.write(text)
            self.stream.flush()
            return
        from rich.text import Text

        terminal().clear()
        for line in text.removesuffix("\n").split("\n"):
            self._console.print(Text(visible(line), style=diff_style(line)))


def _indented(line: str, width: int) -> str:
    """Wrap a line to ``width`` columns; all but the first row are indented by two more columns than the line."""
    words = line.lstrip(" ")
    before = line[: len(line) - len(words)]
    return wrap(words, width, before, f"{before}  ")
