"""Print tables: fitted to the width of a terminal, and in plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .status_line import terminal_columns

_LEAST_LAST_CHARS = 24
"""The least room that a terminal must have for the last column, which has the longest text."""


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Write the rows below their headings to standard output. The cells must be free of control characters.

    On a terminal that is too narrow, the columns ``spare`` are left out one after another, then cells are wrapped, except
    those of the first column, which users copy. Elsewhere nothing is cut.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(highlight=False, width=terminal_columns(sys.stdout))
        shown = _columns_that_fit(head, rows, spare, console.width)
        table = Table(box=None, pad_edge=False, header_style="")
        for number in shown:
            table.add_column(head[number], no_wrap=number == 0, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[number], overflow="fold", no_wrap=number == 0) for number in shown))
        console.print(table)
        return
    every = [head, *rows]
    widths = [max(len(row[n]) for row in every) for n in range(len(head))]
    for row in every:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _columns_that_fit(
    head: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> list[int]:
    shown = list(range(len(head)))
    widths = [max(len(row[n]) for row in (head, *rows)) for n in shown]
    widths[-1] = min(widths[-1], _LEAST_LAST_CHARS)
    for name in spare:
        if sum(widths[n] + 2 for n in shown) - 2 <= width:
            break
        shown.remove(head.index(name))
    return shown
