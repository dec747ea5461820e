"""An index by meaning: texts become vectors, which are compared by their angle."""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Iterable, Sequence

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
BATCH = 64
# More of a text than its beginning adds little to a vector, and models refuse long ones.
MAX_CHARS = 8_000


class LikenessIndex:
    """Numbered texts, found by likeness to a query. ``embed`` makes vectors of one length, one for each text."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._vectors: dict[int, array[float]] = {}
        self.upto = 0

    def add(self, texts: Iterable[tuple[int, str]], upto: int) -> None:
        """Add texts with their numbers. Raises what ``embed`` raises, and ValueError for vectors that do not fit."""
        waiting = [(number, text[:MAX_CHARS]) for number, text in texts if text.strip()]
        for start in range(0, len(waiting), BATCH):
            batch = waiting[start : start + BATCH]
            vectors = self._vectors_of([text for _, text in batch])
            self._vectors.update(zip((number for number, _ in batch), vectors, strict=True))
            self.upto = batch[-1][0]
        self.upto = upto

    def search(self, query: str, limit: int) -> list[int]:
        """Return the numbers of the ``limit`` texts that are most like ``query``, the best first."""
        if not self._vectors or not query.strip():
            return []
        (wanted,) = self._vectors_of([query[:MAX_CHARS]])
        near = {number: sum(map(operator.mul, wanted, vector)) for number, vector in self._vectors.items()}
        return sorted(near, key=lambda number: (-near[number], -number))[:limit]

    def _vectors_of(self, texts: Sequence[str]) -> list[array[float]]:
        """Vectors of length 1."""
        made = [array("d", map(float, vector)) for vector in self._embed(texts)]
        lengths = {len(vector) for vector in [*made, *list(self._vectors.values())[:1]]}
        if len(made) != len(texts) or len(lengths) != 1 or lengths == {0}:
            raise ValueError(
                f"{len(texts)} texts were embedded as {len(made)} vectors of the lengths {sorted(lengths)}."
            )
        if not all(math.isfinite(value) for vector in made for value in vector):
            raise ValueError("A vector holds what is no number.")
        norms = [math.sqrt(sum(value * value for value in vector)) or 1.0 for vector in made]
        return [array("d", (value / norm for value in vector)) for vector, norm in zip(made, norms, strict=True)]
