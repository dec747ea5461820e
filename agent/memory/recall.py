"""A memory that can be searched in full, however little of it is shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .base import Memory
from .index import Hit, WordIndex
from .layered import LayeredMemory, layers
from .likeness import Embed, LikenessIndex
from .messages import Message, shortened, text_of_message

log = logging.getLogger(__name__)

# The key that marks what recall answered with: it is never indexed, or each search would find the ones before it.
RECALLED = "recalled"
EXCERPT_CHARS = 600
# How strongly the first ranks count where two rankings are joined (Cormack, Clarke and Büttcher, 2009).
RANK_CONSTANT = 60


class RecallMemory(LayeredMemory):
    """A memory that shows what ``inner`` shows; ``recall`` finds any message that was ever added.

    Messages are indexed at the first query after they were added. In ``path`` (a file that may have other tables, such as the
    log of runs) the index outlives the process; ``run`` then distinguishes the messages of this memory from those of others.
    With ``embed`` (texts to vectors; see ``LiteLLMEmbedder``) messages are also found by meaning, or by words alone if that
    fails.

    Answers of recall, and the calls that asked for them, are never indexed.
    """

    def __init__(
        self, inner: Memory | None = None, *, path: str | Path | None = None, run: str = "", embed: Embed | None = None
    ) -> None:
        super().__init__(inner)
        self._words = WordIndex(path, run)
        self._likeness = LikenessIndex(embed) if embed is not None else None

    def recall(self, query: str, limit: int = 5) -> list[Hit]:
        """Return the ``limit`` messages that fit ``query`` best, the best first."""
        pool = max(4 * limit, 20)
        catch_up(self._words, self.items)
        found = {hit.message: hit for hit in self._words.search(query, pool)}
        order = _joined(list(found), self._alike(query, pool))
        return [found.get(number) or self._hit(number) for number in order[:limit]]

    def _alike(self, query: str, limit: int) -> list[int]:
        if self._likeness is None:
            return []
        try:
            catch_up(self._likeness, self.items)
            return self._likeness.search(query, limit)
        except Exception:
            log.warning("messages cannot be found by their meaning now, only by their words", exc_info=True)
            return []

    def _hit(self, number: int) -> Hit:
        return Hit(number, shortened(text_of_message(self.items[number - 1]), EXCERPT_CHARS))


def recallable(memory: Memory) -> RecallMemory:
    """Return the recall memory among the layers of ``memory``, or a new one over it."""
    return next((layer for layer in layers(memory) if isinstance(layer, RecallMemory)), None) or RecallMemory(memory)


def catch_up(index: WordIndex | LikenessIndex, items: Sequence[Message]) -> None:
    """Index what was added since the last time, except for a decision that has no answer yet."""
    end = len(items)
    while end and items[end - 1]["role"] == "assistant":
        end -= 1
    start = min(index.upto, end)
    if start < end:
        index.add(_texts(items, start, end), end)


def _texts(items: Sequence[Message], start: int, end: int) -> Iterator[tuple[int, str]]:
    for number in range(start + 1, end + 1):
        message = items[number - 1]
        following = items[number] if message["role"] == "assistant" and number < len(items) else None
        if not (_is_recalled(message) or (following is not None and _is_recalled(following))):
            yield number, text_of_message(message)


def _is_recalled(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    result = content.get("result") if isinstance(content, Mapping) else None
    return message["role"] == "tool" and isinstance(result, Mapping) and RECALLED in result


def _joined(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Two rankings as one: what is high in either is high."""
    score: dict[int, float] = {}
    for ranking in (first, second):
        for rank, number in enumerate(ranking):
            score[number] = score.get(number, 0.0) + 1 / (RANK_CONSTANT + rank)
    return sorted(score, key=lambda number: -score[number])
