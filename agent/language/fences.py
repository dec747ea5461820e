"""Finds fenced blocks in text, as Markdown has them, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sandbox.frozen import dataclass

_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})(?P<info>[^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fence:
    """A line that can open or close a block: where it and its marks begin, where it ends, and what follows the marks."""

    start: int
    mark_at: int
    end: int
    mark: str
    length: int
    info: str

    def closes(self, other: Fence) -> bool:
        """Return whether this line ends a block that ``other`` opened."""
        return not self.info and self.mark == other.mark and self.length >= other.length


def fences(text: str) -> list[Fence]:
    """Return all such lines. A line with further backticks after its marks is code within a sentence, and is left out."""
    found = []
    for match in _FENCE.finditer(text):
        marks, info = match["mark"], match["info"].strip()
        if marks[0] == "`" and "`" in info:
            continue
        end = min(match.end() + 1, len(text))
        found.append(Fence(match.start(), match.start("mark"), end, marks[0], len(marks), info))
    return found


def closings(found: list[Fence]) -> list[int | None]:
    """Return, for each line, the index of the first later one that would close the block it opens; None if there is none."""
    answers: list[int | None] = [None] * len(found)
    closers: dict[str, list[int]] = {}  # by mark, nearest last; one that a nearer and longer one hides is gone
    for number in range(len(found) - 1, -1, -1):
        fence = found[number]
        stack = closers.setdefault(fence.mark, [])
        answers[number] = _first(stack, found, fence)
        if not fence.info:
            while stack and found[stack[-1]].length <= fence.length:
                stack.pop()
            stack.append(number)
    return answers


def _first(stack: list[int], found: list[Fence], opening: Fence) -> int | None:
    """The nearest of ``stack`` that is long enough: from its end to its start they get longer."""
    low, high = 0, len(stack)
    while low < high:
        middle = (low + high) // 2
        if found[stack[middle]].length >= opening.length:
            low = middle + 1
        else:
            high = middle
    return stack[low - 1] if low else None


def with_fences(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span extended by the lines that fence it, if nothing else stands between them."""
    found = fences(text)
    opening = next((fence for fence in reversed(found) if fence.end <= start), None)
    if opening is None or text[opening.end : start].strip():
        return start, end
    if not text[end:].strip():  # never closed; a line without a language rather closes what is before
        return (opening.start if opening.info else start), end
    closing = next((fence for fence in found if fence.start >= end), None)
    if closing is None or not closing.closes(opening) or text[end : closing.start].strip():
        return start, end
    return opening.start, closing.end


def nested_end(found: Iterable[Fence], opening: Fence) -> Fence | None:
    """Return the line that closes ``opening``; lines that name a language open blocks within it. None if nothing closes it."""
    open_blocks = [opening]
    for fence in found:
        if fence.closes(open_blocks[-1]):
            open_blocks.pop()
            if not open_blocks:
                return fence
        elif fence.info and fence.mark == opening.mark:
            open_blocks.append(fence)
    return None
