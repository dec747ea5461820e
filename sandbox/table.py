"""Tables on standard output: fitted to the width of a terminal, and in plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write the rows below their headings. On a terminal, cells that are too wide are wrapped; elsewhere nothing is cut.

    The cells must be free of control characters.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*head, box=None, pad_edge=False, header_style="")
        for row in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in row))
        Console(highlight=False).print(table)
        return
    every = [head, *rows]
    widths = [max(len(row[n]) for row in every) for n in range(len(head))]
    for row in every:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
