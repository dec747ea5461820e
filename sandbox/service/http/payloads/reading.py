"""Read what came with a request: its id, its body in bounds, its query."""

from __future__ import annotations

import re
import secrets

from fastapi import Request

from sandbox.service.http.problems import Problem, ProblemCode

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def new_request_id() -> str:
    """Return an id for a request that has none."""
    return f"r{secrets.token_hex(12)}"


def is_request_id(text: object) -> bool:
    """Return whether a client may call its request so."""
    return isinstance(text, str) and _REQUEST_ID.fullmatch(text) is not None


def request_id(request: Request) -> str:
    """Return the id of the request: the client's, if it sent a valid one."""
    found: str = request.scope["state"]["request_id"]
    return found


async def body_of(request: Request, limit: int) -> bytes:
    """Return the body. Raises Problem for one that is larger than ``limit``, without reading it to its end."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


def offset_of(request: Request) -> int | None:
    """Return the number in Last-Event-ID, or None if there is none. Raises Problem."""
    text = request.headers.get("last-event-id")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Problem(
            422, ProblemCode.invalid_query, f"Last-Event-ID is {text!r:.80}, which is not the id of an event.", "Leave it out."
        )
    return int(text)


def has_header(request: Request, name: str, value: str) -> bool:
    """Return whether the header is there; it can only have that value. Raises Problem."""
    text = request.headers.get(name)
    if text is not None and text.lower() != value:
        raise Problem(
            422, ProblemCode.invalid_query, f"{name} is {text!r:.80}.", f"Send '{name}: {value}', or leave it out."
        )
    return text is not None


def wants_events(request: Request) -> bool:
    """Return whether the client asks for a stream of events."""
    return "text/event-stream" in request.headers.get("accept", "").lower()


def too_large(limit: int) -> Problem:
    """Return the problem of a body that is larger than ``limit``."""
    return Problem(
        413,
        ProblemCode.body_too_large,
        f"The body is larger than {limit} bytes, the most that is allowed here.",
        "Send less; files can be streamed with PUT /v1/sandboxes/{sandbox_id}/files.",
    )
