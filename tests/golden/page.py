"""Prompts as a page that a person can review: a message that an earlier prompt had is named, not repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from agent import Prompt

LONG_CHARS, SHOWN_CHARS = 20_000, 600


def page(agent: str, points: dict[str, Prompt]) -> str:
    """Return the messages at each point. Of a text of more than LONG_CHARS the middle is represented by its length and digest."""
    lines = [f"{agent}\nWritten by `make golden`; look at the differences before you commit them."]
    seen: dict[str, str] = {}
    tools: list[str] = []
    for point, prompt in points.items():
        lines.append(f"\n{'=' * 24} {point}")
        names = [_name(tool) for tool in prompt.tools]
        if names != tools:
            lines.append(f"-------- tools: {', '.join(names) or 'none'}")
        tools = names
        new: dict[str, str] = {}
        for number, message in enumerate(prompt.messages, 1):
            key = json.dumps(message, sort_keys=True, ensure_ascii=False)
            where = f"{point}, message {number}"
            lines.append(f"-------- as in {seen[key]}" if key in seen else _message(message))
            new.setdefault(key, where)
        seen = {**new, **seen}
    return "\n".join(lines) + "\n"


def tools_page(prompts: Mapping[str, Iterable[Prompt]]) -> str:
    """Return each tool of the prompts of each agent once, as JSON. A name has several entries where agents' tools differ."""
    agents: dict[str, set[str]] = {}
    for agent, sent in prompts.items():
        for tool in (tool for prompt in sent for tool in prompt.tools):
            agents.setdefault(json.dumps(tool, sort_keys=True, ensure_ascii=False), set()).add(agent)
    entries = [{"agents": sorted(names), "tool": json.loads(text)} for text, names in agents.items()]
    entries.sort(key=lambda entry: (_name(entry["tool"]), entry["agents"]))
    return f"{json.dumps(entries, indent=1, sort_keys=True, ensure_ascii=False)}\n"


def _name(tool: Any) -> str:
    return str(tool["function"]["name"])


def _message(message: dict[str, Any]) -> str:
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
    head = f"-------- {message['role']}{f' {json.dumps(rest, sort_keys=True)}' if rest else ''}"
    content = message.get("content")
    parts = [head, _cut(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))]
    parts += [
        f"call {json.dumps(call, sort_keys=True, ensure_ascii=False)}" for call in message.get("tool_calls") or ()
    ]
    return "\n".join(parts)


def _cut(text: str) -> str:
    if len(text) <= LONG_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    said = f"[here are {len(text) - 2 * SHOWN_CHARS} more characters; all {len(text)} have the SHA-256 {digest}]"
    return f"{text[:SHOWN_CHARS]}\n{said}\n{text[-SHOWN_CHARS:]}"
