"""The window on a file: which lines are seen, and how they are shown. Line numbers count from 1."""

from __future__ import annotations

from sandbox.frozen import dataclass

from .lines import Lines

LINE_CHARS = 500  # of a longer line the beginning is shown, and how much there is
ABOVE_SHARE = 6  # a line that is gone to stands a sixth of the window below its top


@dataclass(frozen=True, slots=True)
class Window:
    """Shows ``size`` lines, ``overlap`` of which stay in view after scrolling. Raises ValueError for invalid sizes."""

    size: int = 100
    overlap: int = 2

    def __post_init__(self) -> None:
        if any(type(n) is not int for n in (self.size, self.overlap)) or not 0 <= self.overlap < self.size:
            raise ValueError(f"a window of {self.size!r} lines cannot overlap by {self.overlap!r}")

    def clamped(self, first: int, total: int) -> int:
        """Return the nearest first line for which the window is full, or shows the whole file."""
        return max(1, min(first, total - self.size + 1))

    def around(self, line: int, total: int) -> int:
        """Return the first line of a window that shows ``line`` and some lines before it."""
        return self.clamped(line - self.size // ABOVE_SHARE, total)

    def moved(self, first: int, total: int, windows: int) -> int:
        """Return the first line after scrolling by that many windows; down is positive."""
        return self.clamped(first + windows * (self.size - self.overlap), total)

    def last(self, first: int, total: int) -> int:
        """Return the last line that the window shows."""
        return min(first + self.size - 1, total)

    def shows(self, line: int, first: int, total: int) -> bool:
        """Return whether the window shows that line."""
        return first <= line <= self.last(first, total)

    def text(self, path: str, lines: Lines, first: int) -> str:
        """Return the window with line numbers, how many lines are above and below it, and unusual line endings."""
        total = len(lines)
        about = [f"{total} line{'' if total == 1 else 's'}", *(["CRLF line endings"] if lines.ending == "\r\n" else [])]
        if not lines.ended:
            about.append("no newline at the end")
        last = self.last(first, total)
        shown = [f"[{path}: {', '.join(about)}]"]
        if first > 1:
            shown.append(f"({first - 1} more above)")
        shown += [f"{number}:{_cut(lines.line(number))}" for number in range(first, last + 1)]
        if last < total:
            shown.append(f"({total - last} more below)")
        return "\n".join(shown if total else [*shown, "(the file is empty)"])


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]} [… {len(line) - LINE_CHARS} more characters]"
