"""The hunks of a unified diff, in bounded time: what two texts are may be chosen by somebody who wants it to take for ever."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence

CONTEXT = 3
# Steps of difflib's inner loop; some 5 s of them. Seen: 40,000 for a source file of 5,000 lines with 50 edits.
MOST_WORK = 30_000_000
# Of all comparisons that share a budget; what comes when it is spent is not compared.
MOST_SHARED_WORK = 4 * MOST_WORK
CALL_WORK = 50  # of a call of difflib's, whatever it is given


class TooMuchWorkError(Exception):
    """The comparison takes more than MOST_WORK, or than is left of the budget."""


class Budget:
    """Work that several comparisons may take together."""

    def __init__(self, work: int | None = None) -> None:
        self.left = MOST_SHARED_WORK if work is None else work


class _Bounded(difflib.SequenceMatcher[str]):
    """Gives up after MOST_WORK steps, or those of a budget, counted the same on every machine."""

    def __init__(self, a: Sequence[str], b: Sequence[str], budget: Budget) -> None:
        self._work, self._lines, self._budget = 0, len(a), budget
        self._spend(len(a) + len(b))
        super().__init__(None, a, b)
        places: Mapping[str, list[int]] = self.b2j  # type: ignore[attr-defined]  # documented, but not in typeshed
        # what all lines up to each take: a few that are everywhere in b are not to hide behind many that are nowhere
        self._until = list(itertools.accumulate((1 + len(places.get(line, ())) for line in a), initial=0))

    def _spend(self, work: int) -> None:
        self._work += work
        self._budget.left -= work
        if self._work > MOST_WORK or self._budget.left < 0:
            raise TooMuchWorkError

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        """See difflib. Raises TooMuchWorkError."""
        self._spend(CALL_WORK + self._until[self._lines if ahi is None else ahi] - self._until[alo])
        return super().find_longest_match(alo, ahi, blo, bhi)


def hunks(before: Sequence[str], after: Sequence[str], budget: Budget | None = None) -> Iterator[str]:
    """Lines of the hunks from ``before`` to ``after``, without their line ends where a text has none.

    Where finding the smallest difference takes too much, or more than is left of ``budget``, all between the first and the last
    difference is one.
    """
    try:
        groups = list(_Bounded(before, after, budget or Budget()).get_grouped_opcodes(CONTEXT))
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
