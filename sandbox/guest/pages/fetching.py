"""One HTTP request, with everything the server sends bounded."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..network.loopback import is_loopback

BODY_BYTES = 5 << 20  # of the body, compressed or not; the rest is not read
CHUNK = 1 << 16
SNIFFED = 1024
TEXT_TYPES = (
    "json",
    "xml",
    "javascript",
    "ecmascript",
    "yaml",
    "toml",
    "x-sh",
    "sql",
    "x-www-form-urlencoded",
    "x-ndjson",
    "graphql",
)
USER_AGENT = "Mozilla/5.0 (compatible; gamebox)"


@dataclass(frozen=True, slots=True)
class Response:
    """``size_bytes`` is what came over the network of the body, ``body`` the same unpacked, maybe cut."""

    status: int
    content_type: str
    charset: str | None
    location: str | None
    body: bytes
    size_bytes: int
    truncated: bool

    def kind(self) -> str:
        """How to show it: "html", "text" or "other"."""
        head = self.body[:SNIFFED].lstrip().lower()
        mime = self.content_type
        if mime in ("text/html", "application/xhtml+xml"):
            return "html"
        if mime.startswith("text/") or mime.rpartition("/")[2].rpartition("+")[2] in TEXT_TYPES:
            return "text"
        if mime and mime != "application/octet-stream":
            return "other"
        if head.startswith((b"<!doctype html", b"<html")):
            return "html"
        return "other" if b"\0" in head else "text"


def fetch(url: str, ca_bundle: str | None) -> Response:
    """GET ``url``; redirects are answers like any other. It waits for ever: time that a socket counts runs on during a pause.

    Proxies are those of the environment, never for the sandbox itself.
    ``ca_bundle`` is a file of certificates (PEM). Raises OSError (urllib.error.URLError among
    them) and http.client.HTTPException.
    """
    opener = urllib.request.OpenerDirector()
    proxies: dict[str, str] | None = {} if is_loopback(urlsplit(url).hostname or "") else None
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(urllib.request.HTTPHandler())
    if url.startswith("https:"):  # certificates take a while to load
        opener.add_handler(urllib.request.HTTPSHandler(context=_trust(ca_bundle)))
    headers = {
        "User-Agent": USER_AGENT,
        "Accept": "text/html,text/*;q=0.9,*/*;q=0.8",
        "Accept-Encoding": "gzip, deflate",
    }
    with opener.open(urllib.request.Request(url, headers=headers), timeout=None) as response:  # noqa: S310 (http and https only)
        if response.headers.get("X-Gamebox") == "refused" and proxies is None:  # the sandbox's own proxy speaks, no server
            raise urllib.error.URLError(response.reason)
        return _received(response)


def _trust(ca_bundle: str | None) -> ssl.SSLContext:
    """The certificates of the bundle, as this Python's own OpenSSL looks for them in another place than the image's."""
    context = ssl.create_default_context()
    if ca_bundle and os.path.exists(ca_bundle):
        context.load_verify_locations(ca_bundle)
    return context


def _received(response: http.client.HTTPResponse) -> Response:
    parts: list[bytes] = []
    size, truncated = 0, False
    try:
        while size <= BODY_BYTES and (chunk := response.read1(CHUNK)):
            parts.append(chunk)
            size += len(chunk)
    except (http.client.IncompleteRead, ConnectionError) as error:  # the server broke off: what there is, is shown
        truncated = True
        if isinstance(error, http.client.IncompleteRead):
            parts.append(error.partial)
            size += len(error.partial)
    announced = response.length  # what is missing of a body whose length was announced
    truncated = truncated or size > BODY_BYTES or bool(announced)
    body, cut = _unpacked(b"".join(parts)[:BODY_BYTES], response.headers.get("Content-Encoding", "").strip().lower())
    return Response(
        status=response.status,
        content_type=response.headers.get_content_type() if "Content-Type" in response.headers else "",
        charset=response.headers.get_content_charset(),
        location=response.headers.get("Location"),
        body=body,
        size_bytes=size,
        truncated=truncated or cut,
    )


def _unpacked(body: bytes, encoding: str) -> tuple[bytes, bool]:
    """The body without its compression, and whether it was cut: few bytes can become gigabytes."""
    if encoding not in ("gzip", "x-gzip", "deflate") or not body:
        return body, False
    for bits in (47, -15):  # gzip or zlib by its header; or "deflate" as some servers mean it
        unpacker = zlib.decompressobj(bits)
        try:
            data = unpacker.decompress(body, BODY_BYTES)
        except zlib.error:
            continue
        return data, not unpacker.eof
    return body, False
