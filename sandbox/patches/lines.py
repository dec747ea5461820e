"""Compute the hunks of a unified diff in bounded time: an attacker may choose texts for which difflib takes for ever."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence

CONTEXT = 3
# Steps of difflib's inner loop, about 5 s. A source file of 5,000 lines with 50 edits takes 40,000.
MOST_WORK = 30_000_000
# For all comparisons that share a budget; those after it is spent are not made.
MOST_SHARED_WORK = 4 * MOST_WORK
CALL_WORK = 50  # of one call of difflib, whatever its input


class TooMuchWorkError(Exception):
    """The comparison takes more work than MOST_WORK or than the rest of the budget."""


class Budget:
    """The work that several comparisons may take together."""

    def __init__(self, work: int | None = None) -> None:
        self.left = MOST_SHARED_WORK if work is None else work


class _Bounded(difflib.SequenceMatcher[str]):
    """Gives up after MOST_WORK steps or those of a budget, which count the same on every machine."""

    def __init__(self, a: Sequence[str], b: Sequence[str], budget: Budget) -> None:
        self._work, self._lines, self._budget = 0, len(a), budget
        self._spend(len(a) + len(b))
        super().__init__(None, a, b)
        places: Mapping[str, list[int]] = self.b2j  # type: ignore[attr-defined]  # documented, but not in typeshed
        # the work up to each line: a few lines that occur everywhere in b must not hide behind many that occur nowhere
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
    """Yield the lines of the hunks from ``before`` to ``after``, with the line ends that the texts have.

    If the comparison takes too much work, or more than the rest of ``budget``, one hunk replaces everything between the first and
    the last difference.
    """
    try:
        groups = list(_Bounded(before, after, budget or Budget()).get_grouped_opcodes(CONTEXT))
    except TooMuchWorkError:
        groups = [_single_group(before, after)]
    for group in groups:
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (" " + line for line in before[i1:i2])
                continue
            yield from ("-" + line for line in before[i1:i2])
            yield from ("+" + line for line in after[j1:j2])


def _single_group(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """Return one group that replaces everything but the common start and end."""
    most = min(len(a), len(b))
    head = next((i for i in range(most) if a[i] != b[i]), most)
    tail = next((i for i in range(most - head) if a[-1 - i] != b[-1 - i]), most - head)
    lead, trail = min(head, CONTEXT), min(tail, CONTEXT)
    end_a, end_b = len(a) - tail, len(b) - tail
    group = [("equal", head - lead, head, head - lead, head), ("replace", head, end_a, head, end_b)]
    return [*group, ("equal", end_a, end_a + trail, end_b, end_b + trail)]


def _range(start: int, stop: int) -> str:
    """Return a range as diff writes it (POSIX): 1-based, without a length of 1."""
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start if not length else start + 1},{length}"
