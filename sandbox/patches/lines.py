"""The hunks of a unified diff, in bounded time: what two texts are may be chosen by somebody who wants it to take for ever."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

CONTEXT = 3
# Steps of difflib's inner loop; some 5 s of them. Seen: 40,000 for a source file of 5,000 lines with 50 edits.
MOST_WORK = 30_000_000


class TooMuchWorkError(Exception):
    """The comparison takes more than MOST_WORK."""


class _Bounded(difflib.SequenceMatcher[str]):
    """Gives up after MOST_WORK steps, counted the same on every machine."""

    def __init__(self, a: Sequence[str], b: Sequence[str]) -> None:
        self._work, self._lines = 0, len(a)
        super().__init__(None, a, b)
        places: Mapping[str, list[int]] = self.b2j  # type: ignore[attr-defined]  # documented, but not in typeshed
        self._each = 1 + sum(len(places.get(line, ())) for line in a) // max(1, len(a))

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        """See difflib. Raises TooMuchWorkError."""
        self._work += ((self._lines if ahi is None else ahi) - alo) * self._each
        if self._work > MOST_WORK:
            raise TooMuchWorkError
        return super().find_longest_match(alo, ahi, blo, bhi)


def hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Lines of the hunks from ``before`` to ``after``, without their line ends where a text has none.

    Where finding the smallest difference takes too much, all between the first and the last difference is one.
    """
    try:
        groups = list(_Bounded(before, after).get_grouped_opcodes(CONTEXT))
    except TooMuchWorkError:
        groups = [_one(before, after)]
    for group in groups:
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (" " + line for line in before[i1:i2])
                continue
            yield from ("-" + line for line in before[i1:i2])
            yield from ("+" + line for line in after[j1:j2])


def _one(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """One group that replaces all that is not the same at the start and at the end."""
    most = min(len(a), len(b))
    head = next((i for i in range(most) if a[i] != b[i]), most)
    tail = next((i for i in range(most - head) if a[-1 - i] != b[-1 - i]), most - head)
    lead, trail = min(head, CONTEXT), min(tail, CONTEXT)
    end_a, end_b = len(a) - tail, len(b) - tail
    group = [("equal", head - lead, head, head - lead, head), ("replace", head, end_a, head, end_b)]
    return [*group, ("equal", end_a, end_a + trail, end_b, end_b + trail)]


def _range(start: int, stop: int) -> str:
    """A range as diff writes it (POSIX): 1-based, the length left out where it is 1."""
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start if not length else start + 1},{length}"
