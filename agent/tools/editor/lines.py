"""A file's text as lines. Each keeps its own line ending, so that what an edit does not touch stays the same to the byte."""

from __future__ import annotations

from collections import Counter

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines with their endings; only a line feed ends one, and the last one may have none."""

    lines: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Lines:
        """Return the lines of ``text``; an empty text has none."""
        *ended, rest = text.split("\n")  # splitlines() would also split at form feeds and the like
        return cls((*(f"{line}\n" for line in ended), *([rest] if rest else [])))

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.lines)

    @property
    def ending(self) -> str:
        """The line ending that most lines have."""
        endings = Counter(_ending(line) for line in self.lines if line.endswith("\n"))
        return max(endings, key=lambda e: (endings[e], e == "\n"), default="\n")

    @property
    def ended(self) -> bool:
        """Return whether the last line has an ending; True if there are no lines."""
        return not self.lines or self.lines[-1].endswith("\n")

    def line(self, number: int) -> str:
        """The line of that number, which counts from 1, without its ending."""
        line = self.lines[number - 1]
        return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line

    def replaced(self, start: int, end: int, text: str) -> Lines:
        """Return a copy with lines ``start`` to ``end`` replaced by those of ``text``; ``end = start - 1`` inserts them.

        The new lines get the ending of what they replace. A last line without one stays without one.
        """
        new = text_lines(text)
        before, after = list(self.lines[: start - 1]), list(self.lines[end:])
        ending = self._ending_at(start)
        if new and before and not before[-1].endswith("\n"):
            before[-1] += ending  # it is not the last line any more
        made = [line + ending for line in new]
        if made and not after and not self.ended:
            made[-1] = new[-1]
        return Lines((*before, *made, *after))

    def _ending_at(self, number: int) -> str:
        near = self.lines[number - 1 : number] or self.lines[-1:]
        return _ending(near[0]) if near and near[0].endswith("\n") else self.ending


def text_lines(text: str) -> list[str]:
    """Return the lines that an edit adds: none for an empty text. A line feed at the end does not begin another line."""
    if not text:
        return []
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _ending(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"
