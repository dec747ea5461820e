"""The prompt as a value: messages, tools and metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a brain is given. ``messages`` are in chat form (system, user, assistant, tool).

    ``tools`` are in the form of function calling, empty where the language writes them into the text. ``metadata``
    carries the same content structured, for brains that are no language models: goals, actions and memory.
    """

    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Messages and tools as JSON-ready data."""
        return {"messages": list(self.messages), "tools": list(self.tools)}

    def __str__(self) -> str:
        """The messages as text, one block each, for brains that take text."""
        blocks = []
        for message in self.messages:
            calls = [json.dumps(c.get("function", c), ensure_ascii=False) for c in message.get("tool_calls") or ()]
            blocks.append("\n".join([f"[{message['role']}]", str(message.get("content") or ""), *calls]).rstrip())
        if self.tools:
            blocks.append("[tools]\n" + json.dumps(self.tools, ensure_ascii=False, sort_keys=True))
        return "\n\n".join(blocks)
