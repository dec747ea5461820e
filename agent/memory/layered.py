"""A memory over another one: what is kept is the inner one's, what is shown may be changed on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import Memory, Message, last


class LayeredMemory(Memory):
    """Shows what ``inner`` shows (by default everything). ``items`` are those of ``inner``: nothing is kept twice, or lost."""

    def __init__(self, inner: Memory | None = None) -> None:
        self.inner = Memory() if inner is None else inner
        self.items = self.inner.items

    def add_memory(self, memory: Mapping[str, Any]) -> None:
        """See the base class."""
        self.inner.add_memory(memory)

    def get_memories(self, limit: int | None = None) -> list[Message]:
        """What is shown, or its last ``limit`` messages."""
        return list(last(self.inner.get_memories(), limit))


def layers(memory: Memory) -> Iterator[Memory]:
    """The memory and all below it, the outermost first."""
    current: Memory | None = memory
    while current is not None:
        yield current
        current = current.inner if isinstance(current, LayeredMemory) else None
