"""What memories know of messages: which belong together, how long they are, and how they read as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from agent.envelopes import shown_size, text_of
from sandbox.envelope import jsonable

# English text and code have about 4 characters a token, and scripts of 3 bytes a character about a token each: counted in bytes
# both come out right enough for a threshold, at no cost.
BYTES_PER_TOKEN = 4
# What a provider adds around each message.
MESSAGE_TOKENS = 4
CUT = "\n[… {count} characters left out …]\n"


def borders(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where ``messages`` may be parted: before each that is no answer of a tool, for those belong to the call before them."""
    return [i for i, message in enumerate(messages) if message["role"] != "tool"]


def tokens(message: Mapping[str, Any]) -> int:
    """About how many tokens the message takes in a prompt; an estimate, cheap and deterministic."""
    kept = {key: message[key] for key in ("content", "tool_calls") if key in message}
    size = 0
    if is_envelope(content := kept.get("content")):
        size = shown_size(content)
        del kept["content"]
    text = json.dumps(kept, ensure_ascii=False, default=repr)
    return (size + len(text.encode("utf-8", "surrogatepass"))) // BYTES_PER_TOKEN + MESSAGE_TOKENS


def is_envelope(content: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether the content of a message is the answer to an action."""
    return isinstance(content, Mapping) and "tool_executed" in content


def text_of_message(message: Mapping[str, Any]) -> str:
    """The message as text: what was said or answered, and a line for each call."""
    content = message.get("content")
    if is_envelope(content):
        content = text_of(content)
    elif not isinstance(content, str):
        content = json.dumps(jsonable(content), ensure_ascii=False, sort_keys=True)
    calls = [f"{call.get('name', '')} {call.get('arguments', '')}" for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in (content, *calls) if part)


def shortened(text: str, chars: int) -> str:
    """``text``, or its head and tail with what was left out between them said; never longer than ``chars``, of at least 100."""
    if len(text) <= chars:
        return text
    half = (chars - len(CUT) - 12) // 2
    return text[:half] + CUT.format(count=len(text) - 2 * half) + text[len(text) - half :]
