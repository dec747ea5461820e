"""What the head of a request may not say: what two readers of it could take for two different requests is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import Problem, ProblemCode

# The head of a request.
HEAD_BYTES = 32 << 10
_FRAMING = (b"content-length", b"host", b"transfer-encoding")
# They decide what is asked for, and by whom.
_ONCE = (
    b"authorization",
    b"content-type",
    b"idempotency-key",
    b"last-event-id",
    b"range",
    b"x-api-key",
    b"x-gamebox-bytes",
    b"x-gamebox-stdin",
    b"x-request-id",
)
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)
# An escaped separator, NUL and the like: a name that a proxy sees as one part of a path, and a file system as two.
_HIDDEN = re.compile(rb"[\x00-\x1f\x7f\\]|%(?:2f|5c|0[0-9a-f]|1[0-9a-f]|7f)", re.IGNORECASE)


def make_relative(scope: Scope) -> None:
    """Take a request such as ``GET http://host/path``, which clients send to proxies, as one with a path and a Host header."""
    found = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if found is None:
        return
    scope["raw_path"] = found[2] or b"/"
    scope["path"] = unquote_to_bytes(scope["raw_path"]).decode("utf-8", "replace")
    rest = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", found[1]), *rest]


async def answer_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer HEAD with what ``app`` answers to GET, without its body. To the app, the client leaves when it has the head."""
    inner, answered = {**scope, "method": "GET"}, False

    async def receive_until_answered() -> Message:
        return {"type": "http.disconnect"} if answered else await receive()

    async def send_head(message: Message) -> None:
        nonlocal answered
        if message["type"] == "http.response.start":
            answered = True
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    try:
        await app(inner, receive_until_answered, send_head)
    finally:
        for name, value in inner.items():  # the route that was found, for the log
            scope.setdefault(name, value)


# E2B's clients escape that of a template's name, tenant/name; with a plain one, the path means the same to us.
_TEMPLATE = re.compile(rb"^/(?:v2/)?templates/(?:aliases/)?[A-Za-z0-9._-]+%2[Ff]")


def path_problem(path: bytes) -> Problem | None:
    """Return why a path is refused, or None."""
    # A slash that is escaped ("%2F") would be one for our routes, and none for who looked at the address before us.
    if _HIDDEN.search(_TEMPLATE.sub(b"", path)):
        return _invalid("The path has an escaped slash, a backslash or a control character.", "Write it with plain slashes.")
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return _invalid("The path is not valid UTF-8.", "Escape its characters as UTF-8.")
    return None


def framing_problem(target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str = "1.1") -> Problem | None:
    """Return why it cannot be told to which host a request goes, or where it ends, or that its head is too large; or None."""
    size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
    if size > HEAD_BYTES:  # h11 bounds only what has not come to its end
        return _invalid(f"The head of the request has {size} bytes, more than {HEAD_BYTES}.", "Send fewer headers.", 431)
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        return _invalid("The request has both a Content-Length and a Transfer-Encoding.", "Send only one of them.")
    if version == "1.0" and b"transfer-encoding" in names:  # a proxy that speaks 1.0 sees no chunks, but another request
        return _invalid("A request of HTTP/1.0 has no Transfer-Encoding.", "Send it as HTTP/1.1, or with a Content-Length.")
    return _twice(names, _FRAMING)


def header_problem(headers: Iterable[tuple[bytes, bytes]]) -> Problem | None:
    """Return why the headers of a request to the service are refused, or None."""
    names = [name for name, _ in headers]
    if b"authorization" in names and b"x-api-key" in names:
        return _invalid("The request has both an Authorization and an X-API-Key.", "Send the key in only one of them.")
    return _twice(names, _ONCE)


def _twice(names: Sequence[bytes], once: Iterable[bytes]) -> Problem | None:
    for name in once:
        if names.count(name) > 1:
            return _invalid(f"The header {name.decode()} appears more than once.", "Send it once.")
    return None


def _invalid(detail: str, hint: str, status: int = 400) -> Problem:
    # What follows may be the rest of another request: it is not read.
    return Problem(status, ProblemCode.invalid_request, detail, hint, headers={"Connection": "close"})
