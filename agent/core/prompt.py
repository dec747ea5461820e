"""The prompt as a value: messages, tools and metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a brain is asked. ``messages`` are in chat form (system, user, assistant, tool).

    ``tools`` are in the form of function calling, empty where the language writes them into the text. ``metadata``
    holds the same content structured, for brains that are not language models: goals, actions and memory.
    ``stable_messages`` is how many of the messages begin the next prompt too, so that a provider can cache them; None if that
    is not known. ``response_format`` is the JSON Schema that a reply of text should fit; a provider without structured output
    ignores it. ``parallel_calls`` is False for an agent that carries out one call of a reply; None leaves it to the provider.
    """

    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    stable_messages: int | None = None
    response_format: dict[str, Any] | None = None
    parallel_calls: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return messages and tools as JSON-ready data."""
        return {"messages": list(self.messages), "tools": list(self.tools)}

    def __str__(self) -> str:
        """Return the messages as text, one block each, for brains that take text."""
        blocks = []
        for message in self.messages:
            calls = [json.dumps(c.get("function", c), ensure_ascii=False) for c in message.get("tool_calls") or ()]
            blocks.append("\n".join([f"[{message['role']}]", _text(message.get("content")), *calls]).rstrip())
        if self.tools:
            blocks.append("[tools]\n" + json.dumps(self.tools, ensure_ascii=False, sort_keys=True))
        return "\n\n".join(blocks)


_sections: ContextVar[Mapping[str, str] | None] = ContextVar("gamebox_sections", default=None)


@contextmanager
def showing_sections(sections: Mapping[str, str]) -> Iterator[None]:
    """Have prompts that are made in the block show these sections, by title, after what the environment says of itself."""
    token = _sections.set(sections)
    try:
        yield
    finally:
        _sections.reset(token)


def current_sections() -> Mapping[str, str]:
    """Return the sections that the layers of the run under way add to the prompt."""
    return _sections.get() or {}


def _text(content: Any) -> str:
    """The text of a message; its images are described in the text already."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")
