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

    def snapshot(self) -> Any:
        """What is not in ``items`` but shapes what is shown, as JSON-ready data; None where there is nothing."""
        return self.inner.snapshot() if isinstance(self.inner, LayeredMemory) else None

    def restore(self, state: Any) -> None:
        """Take over what ``snapshot`` gave; the messages are in ``items`` by then. Raises ValueError for what is no such state."""
        if isinstance(self.inner, LayeredMemory):
            self.inner.restore(state)
        elif state is not None:
            raise ValueError(f"This memory has no state to take over, and was given {state!r:.200}")


def layers(memory: Memory) -> Iterator[Memory]:
    """The memory and all below it, the outermost first."""
    current: Memory | None = memory
    while current is not None:
        yield current
        current = current.inner if isinstance(current, LayeredMemory) else None
