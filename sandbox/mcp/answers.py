"""What a client gets of an envelope: the text that a model reads, the envelope as structured content, and images."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from mcp_types import CallToolResult, ImageContent, TextContent

from sandbox.envelope import Envelope, Failure
from sandbox.text.excerpt import without_middle

# Clients pass either on to the model, and Claude Code refuses answers of over 25,000 tokens; whole files are resources.
MOST_STRUCTURED_CHARS = 60_000
MOST_TEXT_CHARS = 40_000
LEAST_TEXT_CHARS = 500
# Providers take 5 MB in base64.
MOST_IMAGE_BYTES = 3_500_000
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def result_of(envelope: Envelope[Any], images: Sequence[tuple[bytes, str]] = ()) -> CallToolResult:
    """Return the answer to a call. A failure is an error of the tool, which the model reads and can act on."""
    data = envelope.to_dict()
    data.pop("schema", None)  # the model has it
    text = envelope.to_text()
    result = data.get("result")
    shown = result.pop("image", None) if isinstance(result, dict) else None
    if images:
        text = "\n".join(f"[{kind}, {len(content)} bytes: shown below]" for content, kind in images)
    content: list[Any] = [TextContent(text=without_middle(clean(text), MOST_TEXT_CHARS))]
    content += [ImageContent(data=base64.b64encode(each).decode(), mime_type=kind) for each, kind in images]
    if isinstance(shown, dict):  # a screenshot: once is enough
        content.append(ImageContent(data=str(shown.get("data")), mime_type="image/png"))
    return CallToolResult(
        content=content, structured_content=_fitting(clean(data)), is_error=isinstance(envelope, Failure)
    )


def image_type(data: bytes) -> str | None:
    """Return the media type of an image that models can see, by its first bytes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def clean(value: Any) -> Any:
    """Return JSON-ready data whose texts are valid Unicode: names of files need not be."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "replace").decode()
        return value
    if isinstance(value, dict):
        return {clean(key): clean(each) for key, each in value.items()}
    return [clean(each) for each in value] if isinstance(value, list) else value


def _fitting(data: dict[str, Any]) -> dict[str, Any]:
    """Return the envelope, with the middle of its longest texts and the end of its longest lists left out if it is too large."""
    most = MOST_STRUCTURED_CHARS // 2
    found = data
    while len(json.dumps(found, ensure_ascii=False)) > MOST_STRUCTURED_CHARS and most >= LEAST_TEXT_CHARS:
        found = _cut(data, most)
        most //= 2
    return found


def _cut(value: Any, chars: int) -> Any:
    if isinstance(value, str):
        return without_middle(value, chars)
    if isinstance(value, dict):
        return {name: _cut(each, chars) for name, each in value.items()}
    if isinstance(value, list):
        return [_cut(each, chars) for each in value[: max(10, chars // 50)]]
    return value
