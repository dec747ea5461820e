"""The plain memory: a list of messages with uniform roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROLES = ("user", "assistant", "tool")
# Early code named the key "type" and stored results of tools as system messages.
_LEGACY_TYPES = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "tool"}

Message = dict[str, Any]


class Memory:
    """A list of ``{"role", "content", ...}``; the roles are user, assistant and tool.

    Subclasses choose what ``get_memories`` shows; the loop does not change.
    """

    def __init__(self) -> None:
        self.items: list[Message] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.items)} messages)"

    def add_memory(self, memory: Mapping[str, Any]) -> None:
        """Add a message. A message that says ``type`` instead of ``role`` is converted.

        Raises ValueError for another role, or without role or content.
        """
        message = dict(memory)
        if "role" not in message and message.get("type") in _LEGACY_TYPES:
            message = {"role": _LEGACY_TYPES[message.pop("type")], **message}
        if message.get("role") not in ROLES:
            raise ValueError(f"The role of a memory must be one of {', '.join(ROLES)}, got {memory!r:.200}.")
        if "content" not in message:
            raise ValueError(f"A memory needs content, got {memory!r:.200}.")
        self.items.append(message)

    def get_memories(self, limit: int | None = None) -> list[Message]:
        """The last ``limit`` messages, or all; a new list. Raises ValueError for a negative limit."""
        return list(last(self.items, limit))


def last(items: list[Message], limit: int | None) -> list[Message]:
    """The last ``limit`` of ``items``; 0 is none of them, None all of them."""
    if limit is None:
        return items
    if limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}.")
    return items[len(items) - limit :] if limit < len(items) else items
