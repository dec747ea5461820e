"""Replies whose content comes in parts, which some OpenAI-compatible servers send and litellm refuses.

Seen with litellm 1.106: its openai provider raises "Invalid response object" for a content that is a list, its
mistral provider keeps the last part alone. So the parts are joined before litellm sees them.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from .response import text_of_content


class JoiningTransport(httpx.HTTPTransport):
    """Joins the text parts of chat replies; everything else passes as it is."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The response, with content as text."""
        response = super().handle_request(request)
        if "application/json" not in response.headers.get("content-type", "") or response.status_code != 200:
            return response
        response.read()
        joined = _joined(response.content)
        if joined is None:
            return response
        headers = [(k, v) for k, v in response.headers.multi_items() if k not in {"content-length", "content-encoding"}]
        return httpx.Response(200, headers=headers, content=joined, extensions=response.extensions)


def _joined(body: bytes) -> bytes | None:
    """The body with parts joined, or None where there are none."""
    try:
        data: Any = json.loads(body)
    except ValueError:
        return None
    choices = data.get("choices") if isinstance(data, dict) else None
    messages = [c.get("message") for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    in_parts = [m for m in messages if isinstance(m, dict) and isinstance(m.get("content"), list)]
    for message in in_parts:
        message["content"] = text_of_content(message["content"])
    return json.dumps(data).encode() if in_parts else None
