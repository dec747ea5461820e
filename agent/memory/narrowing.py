"""What a memory that shows everything leaves out once a prompt was too long for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, Self

from sandbox.frozen import dataclass

from .messages import Message, borders, fitted, tokens

# What is left of an old result of a tool: enough to see what it was about.
SHORT_TOKENS = 100
_NOTICE = (
    "[Memory: messages {first} to {last} of this conversation are no longer shown, because the prompt was too long for the model. "
    "Look again at what you need from them.]"
)


def notice(first: int, rest: int) -> Message:
    """Return the message in the place of those from ``first`` up to ``rest``."""
    return {"role": "user", "content": _NOTICE.format(first=first + 1, last=rest)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """How the first ``end`` messages are shown; later ones are shown whole. Positions count from 0.

    Those from ``first`` up to ``rest`` are left out, results of tools before ``recent`` are shortened, and no message from
    ``rest`` on takes more than ``most_tokens`` (0: as many as it has).
    """

    first: int
    rest: int
    recent: int
    end: int
    most_tokens: int = 0

    @classmethod
    def halving(cls, items: Sequence[Message], shown_tokens: int) -> Self:
        """Return one that shows ``items`` in about half of ``shown_tokens``, if that is possible.

        It shortens the oldest results first, then leaves out the oldest exchanges, and at last shortens the latest one. The
        task, which is what comes before the first decision, is always shown whole.
        """
        most, end = shown_tokens // 2, len(items)
        decisions = [at for at, message in enumerate(items) if message["role"] == "assistant"]
        first, latest = (decisions[0], decisions[-1]) if decisions else (end, end)
        sizes = list(map(tokens, items))
        size, recent = sum(sizes), first
        while size > most and recent < latest:
            if items[recent]["role"] == "tool":
                size -= sizes[recent]
                sizes[recent] = tokens(fitted(items[recent], SHORT_TOKENS))
                size += sizes[recent]
            recent += 1
        if size <= most:
            return cls(first=first, rest=first, recent=recent, end=end)
        before = [0, *accumulate(sizes)]
        starts = [at for at in borders(items) if first < at < latest]
        rest = next((at for at in starts if size - before[at] + before[first] <= most), latest)
        too_long = size - before[rest] + before[first] > most
        room = max((most - before[first]) // max(end - rest, 1), SHORT_TOKENS) if too_long else 0
        return cls(first=first, rest=rest, recent=recent, end=end, most_tokens=room)

    @classmethod
    def of_data(cls, data: Any, count: int) -> Self:
        """Restore what ``to_data`` returned, for ``count`` messages. Raises ValueError for anything else."""
        known = {"first", "rest", "recent", "end", "most_tokens"}
        fits = isinstance(data, Mapping) and set(data) == known and all(type(data[key]) is int for key in known)
        if fits:
            made = cls(**data)
            if 0 <= made.first <= made.rest <= made.end <= count and 0 <= made.recent <= made.end and made.most_tokens >= 0:
                return made
        raise ValueError(f"This is not the state of a memory of {count} messages: {data!r:.200}")

    def to_data(self) -> dict[str, int]:
        """Return JSON-ready data for ``of_data``."""
        return asdict(self)

    def view(self, items: Sequence[Message]) -> list[Message]:
        """Return what is shown of the first ``end`` of ``items``: the same, byte for byte, each time."""
        shown = list(items[: self.first])
        if self.first < self.rest:
            shown.append(notice(self.first, self.rest))
        for at in range(self.rest, self.end):
            bounds = [SHORT_TOKENS] if at < self.recent and items[at]["role"] == "tool" else []
            bounds += [self.most_tokens] if self.most_tokens else []
            shown.append(fitted(items[at], min(bounds)) if bounds else items[at])
        return shown
