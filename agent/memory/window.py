"""A memory that shows the beginning and the latest messages: a bounded context that keeps the task."""

from __future__ import annotations

from .base import Memory, Message, last


class WindowMemory(Memory):
    """Keeps everything, shows the first ``keep_first`` messages (the task) and the last ``limit`` ones.

    An answer of a tool is never shown without the call it answers: where the window would begin between them, it begins
    at the call, and is longer than ``limit`` by that much. A window moves with each message, and each prompt then begins
    another way; with ``step`` it moves by so many messages at a time, and shows up to ``step`` - 1 fewer than ``limit``.
    """

    def __init__(self, limit: int = 200, keep_first: int = 1, step: int = 1) -> None:
        if limit < 1:
            raise ValueError(f"A window needs a limit of at least 1, got {limit}.")
        if keep_first < 0:
            raise ValueError(f"keep_first must not be negative, got {keep_first}.")
        if not 1 <= step <= limit:
            raise ValueError(f"step must be from 1 to limit ({limit}), got {step}.")
        super().__init__()
        self.limit = limit
        self.keep_first = keep_first
        self.step = step

    def get_memories(self, limit: int | None = None) -> list[Message]:
        """The window, or its last ``limit`` messages."""
        over = max(len(self.items) - self.limit, 0)
        start = -(-over // self.step) * self.step
        while start and self.items[start]["role"] == "tool":
            start -= 1
        head = min(self.keep_first, start)
        while head and head < start and self.items[head]["role"] == "tool":
            head += 1  # the answers belong to the call before them
        return list(last(self.items[:head] + self.items[start:], limit))
