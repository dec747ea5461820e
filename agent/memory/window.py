"""A memory that shows the beginning and the latest messages: a bounded context that keeps the task."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from .base import Memory, last
from .messages import Message, borders, fitted, tokens
from .narrowing import notice

LIMIT_TOKENS = 100_000
LEAST_TOKENS = 2000


class WindowMemory(Memory):
    """A memory that keeps everything, and shows the first ``keep_first`` messages (the task) and the last ``limit`` ones.

    ``limit_tokens`` also bounds what is shown, with the same estimate as condensing; None means no such limit. If it would be
    exceeded, the oldest messages after the first ones are no longer shown, until half of the room is free, so that the prompts
    until the next time begin alike. A message that alone takes more than a quarter of it (the very first: half) is shown
    shortened, with a note; in the memory it stays whole. Only a reply of very many calls can still exceed the limit.

    An answer of a tool is never shown without the call that it answers: if the window would begin between them, it begins at
    the call, and is longer than ``limit`` by that much. By default the window moves with each message, so that each prompt
    begins differently; with ``step`` it moves by that many messages at a time, and shows up to ``step`` - 1 fewer than
    ``limit``.
    """

    def __init__(
        self, limit: int = 200, keep_first: int = 1, step: int = 1, limit_tokens: int | None = LIMIT_TOKENS
    ) -> None:
        if limit < 1:
            raise ValueError(f"A window needs a limit of at least 1, got {limit}.")
        if keep_first < 0:
            raise ValueError(f"keep_first must not be negative, got {keep_first}.")
        if not 1 <= step <= limit:
            raise ValueError(f"step must be from 1 to limit ({limit}), got {step}.")
        if limit_tokens is not None and limit_tokens < LEAST_TOKENS:
            raise ValueError(f"limit_tokens must be at least {LEAST_TOKENS}, got {limit_tokens}.")
        super().__init__()
        self.limit = limit
        self.keep_first = keep_first
        self.step = step
        self.limit_tokens = limit_tokens
        self.narrowed_tokens: int | None = None  # the bound since a prompt was too long for the model
        self._shown: list[Message] = []  # what is shown of each message, for as many as can change no more
        self._sizes: list[int] = []

    def get_memories(self, limit: int | None = None) -> list[Message]:
        """Return the window, or its last ``limit`` messages."""
        most = self.narrowed_tokens or self.limit_tokens
        if most is None or not self.items:
            start = self._by_count(len(self.items))
            shown, head = self.items, self._head(start)
        else:
            shown, sizes = self._fitted(most)
            head, start = self._by_tokens(most, sizes)
        left_out = [notice(head, start)] if self.narrowed_tokens and head < start else []
        return list(last(shown[:head] + left_out + shown[start:], limit))

    def make_room(self) -> bool:
        """See the base class. The estimate of tokens was too low for this model, so the smaller bound stays for the whole run.

        From then on a message says which ones are not shown.
        """
        shown = sum(map(tokens, self.get_memories()))
        if shown // 2 < LEAST_TOKENS // 2:
            return False
        self._narrow(shown // 2)
        return True

    def snapshot(self) -> Any:
        """Return the smaller bound that ``make_room`` set, as JSON-ready data; None if it was not called."""
        return None if self.narrowed_tokens is None else {"narrowed_tokens": self.narrowed_tokens}

    def restore(self, state: Any) -> None:
        """Restore what ``snapshot`` returned. Raises ValueError for any other value."""
        if state is None:
            return
        bound = state.get("narrowed_tokens") if isinstance(state, Mapping) and len(state) == 1 else None
        if type(bound) is not int or bound < LEAST_TOKENS // 2:
            raise ValueError(f"This is not the state of a window: {state!r:.200}")
        self._narrow(bound)

    def _narrow(self, most: int) -> None:
        self.narrowed_tokens, self._shown, self._sizes = most, [], []

    def _by_count(self, end: int) -> int:
        """Where the latest of the first ``end`` messages begin, by their number alone."""
        over = max(end - self.limit, 0)
        start = -(-over // self.step) * self.step
        while start and self.items[start]["role"] == "tool":
            start -= 1
        return start

    def _head(self, start: int) -> int:
        """Where the first messages end, if the latest begin at ``start``."""
        head = min(self.keep_first, start)
        while head and head < start and self.items[head]["role"] == "tool":
            head += 1  # the answers belong to the call before them
        return head

    def _fitted(self, most: int) -> tuple[list[Message], list[int]]:
        """All messages as they are shown, each short enough for the window, and their sizes in tokens."""
        parts = _parts(self.items)
        known = bisect.bisect_left(parts, len(self._shown))
        shown: list[Message] = []
        for begin, end in zip(parts[known:], [*parts[known + 1 :], len(self.items)], strict=True):
            self._shown += shown  # the last block may still get answers, so that it is fitted anew each time
            self._sizes += map(tokens, shown)
            share = most // 2 if begin == 0 and end == 1 else most // 2 // max(end - begin, 2)
            shown = [fitted(message, share) for message in self.items[begin:end]]
        return self._shown + shown, [*self._sizes, *map(tokens, shown)]

    def _by_tokens(self, most: int, sizes: list[int]) -> tuple[int, int]:
        """Where the first messages end and the latest begin; what is between is not shown.

        It follows from the messages alone: a run that is taken up again shows what it would have shown.
        """
        total = [0, *accumulate(sizes)]
        parts = _parts(self.items)
        decisions = [i for i in parts if self.items[i]["role"] == "assistant"]
        head = self._head(len(sizes))
        while total[head] > most // 2 and (before := parts[bisect.bisect_left(parts, head) - 1]):
            head = before
        start = 0

        def size(begin: int, end: int) -> int:
            return total[end] - total[begin] + total[min(head, begin)]

        for end in range(1, len(sizes) + 1):
            start = max(start, self._by_count(end))
            if size(start, end) <= most:
                continue
            later = parts[bisect.bisect_right(parts, start) : bisect.bisect_left(parts, end)]
            if not later:
                continue
            room = (most + total[min(head, end)]) // 2
            found = next((i for i in later if size(i, end) <= room), later[-1])
            latest = bisect.bisect_left(decisions, end)
            exchange = decisions[latest - 1] if latest else found
            start = exchange if start < exchange < found and size(exchange, end) <= most else found
        return min(head, start), start


def _parts(items: list[Message]) -> list[int]:
    """Where the messages may be split, including their beginning, whatever they begin with."""
    return [0, *(i for i in borders(items) if i)]
