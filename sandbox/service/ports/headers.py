"""What of a request's headers goes into a sandbox, and what of a response's comes out: never a key, a token or a cookie of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, unquote_to_bytes

from sandbox.service.keys import PREFIX

Headers = list[tuple[bytes, bytes]]

COOKIE = "gamebox_port"
TOKEN_HEADER = "x-gamebox-token"  # noqa: S105  # a name
TOKEN_PARAMETER = "gamebox_token"  # noqa: S105
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Said by us, whatever a client says.
_FORWARDED = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-server",
        b"x-real-ip",
    }
)
TRAFFIC_HEADER = "e2b-traffic-access-token"
# What tokens for all of one sandbox begin with.
SANDBOX_TOKEN = "gbe_"  # noqa: S105
_OURS = frozenset({TOKEN_HEADER.encode(), TRAFFIC_HEADER.encode()})
_KEY = re.compile(re.escape(PREFIX.encode()) + rb"[0-9a-f]{40}", re.IGNORECASE)


def text_of(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """Return the first value of a header; its name is in small letters."""
    found = next((value for each, value in headers if each == name.encode()), None)
    return None if found is None else found.decode("latin-1")


def key_in(headers: Headers) -> str | None:
    """Return the key of the service that a request has. What has not the form of one is for the server in the sandbox."""
    for name, value in headers:
        if (key := _key_of(name, value)) is not None:
            return key
    return None


def tokens_in(headers: Headers, query: bytes) -> Iterator[tuple[str, str]]:
    """Yield the tokens of ours that a request has, each with where it was: "header", "query" or "cookie"."""
    if (token := text_of(headers, TOKEN_HEADER)) is not None:
        yield "header", token
    for parameter, text in parse_qsl(query.decode("latin-1"), max_num_fields=1000) if query.count(b"&") < 1000 else ():
        if parameter == TOKEN_PARAMETER:
            yield "query", text
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                cookie, _, token = part.strip().partition("=")
                if cookie == COOKIE:
                    yield "cookie", token


def without_token(query: bytes) -> bytes:
    """Return the query without our token."""
    if TOKEN_PARAMETER.encode() not in unquote_to_bytes(query):
        return query
    return b"&".join(
        part for part in query.split(b"&") if unquote_to_bytes(part.partition(b"=")[0]) != TOKEN_PARAMETER.encode()
    )


def request_headers(
    headers: Headers, *, client: str, scheme: str, host: str, masked: bytes | None = None, upgrade: bool = False
) -> Headers:
    """Return the headers with which a request goes into a sandbox.

    ``masked`` takes the place of its Host. ``upgrade`` leaves it a request for a WebSocket.
    """
    dropped = _HOP_BY_HOP | _FORWARDED | _OURS | _named_in_connection(headers)
    kept = [
        (name, cleaned)
        for name, value in headers
        if _plain(name) not in dropped and not _tells(name, value) and (cleaned := _without_cookie(name, value)) is not None
    ]
    if masked is not None:
        kept = [(b"host", masked), *((name, value) for name, value in kept if name != b"host")]
    if any(name == b"transfer-encoding" for name, _ in headers) and not upgrade:
        kept = [*((name, value) for name, value in kept if name != b"content-length"), (b"transfer-encoding", b"chunked")]
    _, _, port = host.rpartition(":")
    own = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if upgrade else [(b"connection", b"close")]
    return [
        *kept,
        *own,
        (b"x-forwarded-for", client.encode("latin-1")),
        (b"x-forwarded-host", host.encode("latin-1")),
        (b"x-forwarded-proto", scheme.encode("latin-1")),
        (b"x-forwarded-port", (port if port.isdecimal() else "443" if scheme == "https" else "80").encode()),
    ]


def as_written(headers: Headers) -> Headers:
    """Return headers with their names as clients write them, Host and not host: some simple servers know no other."""
    return [(name.title(), value) for name, value in headers]


def response_headers(headers: Headers) -> Headers:
    """Return the headers with which a response comes out. A cookie holds for the one name that it comes from."""
    dropped = _HOP_BY_HOP | _named_in_connection(headers)
    return [
        (name, cleaned)
        for name, value in headers
        if name not in dropped and (cleaned := _own_cookie_only(name, value)) is not None
    ]


def _named_in_connection(headers: Headers) -> frozenset[bytes]:
    """Return the headers that the sender has said are for its neighbour alone; those that frame the body cannot be."""
    named = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
    return frozenset(named) - {b"content-length", b"host", b"cookie", b"set-cookie"}


def _plain(name: bytes) -> bytes:
    """Return a name as servers see it that know headers as variables, to which X_Forwarded_For is X-Forwarded-For."""
    return name.replace(b"_", b"-")


def _tells(name: bytes, value: bytes) -> bool:
    """Return whether a header has a key of ours, also in a form in which the service does not take it, or a token of ours."""
    if _plain(name) in (b"authorization", b"x-api-key"):
        return _key_of(_plain(name), value) is not None or _KEY.search(value) is not None
    if _plain(name) == b"x-access-token":
        return value.strip().startswith(SANDBOX_TOKEN.encode())
    return name == b"referer" and f"{TOKEN_PARAMETER}=".encode() in value


def _key_of(name: bytes, value: bytes) -> str | None:
    text = value.decode("latin-1").strip()
    if name == b"authorization":
        scheme, _, text = text.partition(" ")
        text = text.strip() if scheme.lower() == "bearer" else ""
    elif name != b"x-api-key":
        return None
    return text if text.lower().startswith(PREFIX) else None


def _without_cookie(name: bytes, value: bytes) -> bytes | None:
    """Return the value without our cookie; None if it had nothing else."""
    if name != b"cookie" or COOKIE.encode() not in value:
        return value
    kept = [part for part in value.split(b";") if part.strip().partition(b"=")[0] != COOKIE.encode()]
    return b";".join(kept).strip() or None


def _own_cookie_only(name: bytes, value: bytes) -> bytes | None:
    """Return a Set-Cookie without its Domain, which would send it to other sandboxes; None for one with the name of ours."""
    if name != b"set-cookie":
        return value
    first, *attributes = value.split(b";")
    if first.partition(b"=")[0].strip() == COOKIE.encode():
        return None
    return b";".join([first, *(each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain")])
