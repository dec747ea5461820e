"""A memory over another one: the inner one keeps the messages, and this one may change what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import Memory, last
from .messages import Message


class LayeredMemory(Memory):
    """A memory that shows what ``inner`` shows, by default everything. ``items`` are those of ``inner``."""

    def __init__(self, inner: Memory | None = None) -> None:
        self.inner = Memory() if inner is None else inner
        self.items = self.inner.items

    def add_memory(self, memory: Mapping[str, Any]) -> None:
        self.inner.add_memory(memory)

    def get_memories(self, limit: int | None = None) -> list[Message]:
        """Return what is shown, or its last ``limit`` messages."""
        return list(last(self.inner.get_memories(), limit))

    def make_room(self) -> bool:
        return self.inner.make_room()

    def snapshot(self) -> Any:
        """Return what is not in ``items`` but decides what is shown, as JSON-ready data; None if there is nothing."""
        return self.inner.snapshot()

    def restore(self, state: Any) -> None:
        self.inner.restore(state)


def layers(memory: Memory) -> Iterator[Memory]:
    """Yield the memory and all below it, the outermost first."""
    current: Memory | None = memory
    while current is not None:
        yield current
        current = current.inner if isinstance(current, LayeredMemory) else None
