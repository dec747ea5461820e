"""The results of tool calls: their content as a session may see it, and as a model is shown it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from agent.core.images import described, image_part, is_image
from agent.core.result_budget import MAX_SHOWN_CHARS

MAX_BLOCKS = 1000
# The fields of a content block that the SDK validates, by its kind; a block without them is described in words instead.
_FIELDS = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}


def clean_content(content: Any) -> list[dict[str, Any]]:
    """Return the valid blocks of ``content``, without annotations; an invalid one becomes a text that names it."""
    return [_clean_block(block) for block in content[:MAX_BLOCKS]] if isinstance(content, list) else []


def _clean_block(block: Any) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields and all(isinstance(block.get(field), str) for field in fields):
        return {"type": kind, **{field: block[field] for field in fields}}
    return {"type": "text", "text": _block(block)}


def shown_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model is shown of a result: ``text``, ``structured`` data if there is some, and ``images``.

    Blocks are joined to one text, in which what is not text is described. Images stay content blocks of MCP, which is how results
    hold them. A text that only repeats the structured data is left out, as many servers send both.
    """
    content = result.get("content")
    blocks = content[:MAX_BLOCKS] if isinstance(content, list) else []
    texts = [_block(block) for block in blocks]
    shown: dict[str, Any] = {"text": "\n".join(texts)[: 2 * MAX_SHOWN_CHARS]}
    structured = result.get("structuredContent")
    if isinstance(structured, dict) and len(json.dumps(structured)) <= MAX_SHOWN_CHARS:
        repeats = any(_parsed(text) == structured for text in texts)
        shown = {"structured": structured} if repeats else {**shown, "structured": structured}
    images = [block for block in blocks if _is_image(block)]
    return {**shown, "images": images} if images else shown


def _is_image(block: Any) -> bool:
    return (
        isinstance(block, dict) and block.get("type") == "image" and is_image(block) and image_part(block) is not None
    )


def _block(block: Any) -> str:
    """Return a content block as text."""
    if not isinstance(block, dict):
        return ""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource" and isinstance(block.get("resource"), dict):
        resource = block["resource"]
        if isinstance(resource.get("text"), str):
            return f"[resource {str(resource.get('uri'))[:500]}]\n{resource['text']}"
        return f"[resource {str(resource.get('uri'))[:500]}, not text, not shown]"
    if kind == "resource_link":
        return f"[resource {str(block.get('uri'))[:500]}: {str(block.get('name', ''))[:200]}]"
    if _is_image(block):
        return described(block)
    return f"[{str(kind)[:40]}, {str(block.get('mimeType', ''))[:80]}, {_size(block.get('data'))} bytes, not shown]"


def _size(data: Any) -> int:
    try:
        return len(base64.b64decode(data)) if isinstance(data, str) else 0
    except ValueError:
        return len(data)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
