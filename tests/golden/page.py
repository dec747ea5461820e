"""Prompts as a page that a person can review: what is as in an earlier prompt is said once, and nothing is left out unsaid."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from agent import Prompt

LONG_CHARS, SHOWN_CHARS = 20_000, 600


def page(title: str, points: dict[str, Prompt]) -> str:
    """The messages at each point. Of a text of more than LONG_CHARS the middle is told by its length and digest."""
    lines = [f"{title}\nWritten by `make golden`; look at the differences before you commit them."]
    seen: dict[str, str] = {}
    for point, prompt in points.items():
        lines.append(f"\n{'=' * 24} {point}")
        new: dict[str, str] = {}
        for number, message in enumerate(prompt.messages, 1):
            key = json.dumps(message, sort_keys=True, ensure_ascii=False)
            where = f"{point}, message {number}"
            lines.append(f"-------- as in {seen[key]}" if key in seen else _message(message))
            new.setdefault(key, where)
        seen = {**new, **seen}
    return "\n".join(lines) + "\n"


def schemas(points: dict[str, Prompt]) -> str:
    """The tools at each point where they are others than at the point before, as JSON; "" where there are none at all."""
    told: dict[str, Any] = {}
    last: Any = ()
    for point, prompt in points.items():
        if list(prompt.tools) != list(last):
            told[point] = list(prompt.tools)
        last = prompt.tools
    return f"{json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False)}\n" if told else ""


def _message(message: dict[str, Any]) -> str:
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
    head = f"-------- {message['role']}{f' {json.dumps(rest, sort_keys=True)}' if rest else ''}"
    content = message.get("content")
    parts = [head, _cut(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))]
    parts += [f"call {json.dumps(call, sort_keys=True, ensure_ascii=False)}" for call in message.get("tool_calls") or ()]
    return "\n".join(parts)


def _cut(text: str) -> str:
    if len(text) <= LONG_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    said = f"[here are {len(text) - 2 * SHOWN_CHARS} more characters; all {len(text)} have the SHA-256 {digest}]"
    return f"{text[:SHOWN_CHARS]}\n{said}\n{text[-SHOWN_CHARS:]}"
