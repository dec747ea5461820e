"""Server-sent events: how they are written, and the response that streams them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

MEDIA_TYPE = "text/event-stream"
# A comment keeps connections open that would be closed as idle, and shows who is gone.
COMMENT_SECONDS = 15.0
COMMENT = b": still here\n\n"


def event(name: str, data: Mapping[str, Any] | bytes, ident: int | None = None) -> bytes:
    """Return one event; ``data`` is JSON, or will be."""
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    head = b"" if ident is None else b"id: %d\n" % ident
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), text)


class EventStream(StreamingResponse):
    """A stream of events. It is neither stored nor held back on its way."""

    media_type = MEDIA_TYPE

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
