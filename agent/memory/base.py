"""The plain memory: a list of messages with uniform roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .messages import Message, tokens
from .narrowing import Narrowing

ROLES = ("user", "assistant", "tool")
# Early code named the key "type" and stored results of tools as system messages.
_LEGACY_TYPES = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "tool"}


class Memory:
    """A list of ``{"role", "content", ...}``; the roles are user, assistant and tool.

    Subclasses choose what ``get_memories`` shows; the loop does not change.
    """

    # On the class: a subclass may have an __init__ of its own, and a narrowing is never changed in place.
    _narrowing: Narrowing | None = None
    _beginning: tuple[Message, ...] = ()

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
        """Return the last ``limit`` of the shown messages, or all of them, as a new list. Raises ValueError for a negative limit.

        All messages are shown, until ``make_room`` leaves some of them out.
        """
        if self._narrowing is None:
            return list(last(self.items, limit))
        return list(last([*self._beginning, *self.items[self._narrowing.end :]], limit))

    def make_room(self) -> bool:
        """Show about half as much from now on, because a prompt was too long for the model; False if that is not possible.

        The oldest results of tools are shortened first; then the oldest exchanges are left out, and a message in their place
        says so. ``items`` stay as they are.
        """
        before, narrowing = self._shown_tokens(), self._narrowing
        self._set_narrowing(Narrowing.halving(self.items, before))
        if self._shown_tokens() < before:
            return True
        self._set_narrowing(narrowing)  # a subclass may show something else
        return False

    def snapshot(self) -> Any:
        """Return what ``make_room`` leaves out, as JSON-ready data; None if it was not called."""
        return None if self._narrowing is None else self._narrowing.to_data()

    def restore(self, state: Any) -> None:
        """Restore what ``snapshot`` returned, once the messages are in ``items``. Raises ValueError for any other value."""
        if state is not None:
            self._set_narrowing(Narrowing.of_data(state, len(self.items)))

    def _set_narrowing(self, narrowing: Narrowing | None) -> None:
        self._narrowing = narrowing
        self._beginning = () if narrowing is None else tuple(narrowing.view(self.items))

    def _shown_tokens(self) -> int:
        return sum(map(tokens, self.get_memories()))


def last(items: list[Message], limit: int | None) -> list[Message]:
    """Return the last ``limit`` of ``items``; all of them for None."""
    if limit is None:
        return items
    if limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}.")
    return items[len(items) - limit :] if limit < len(items) else items
