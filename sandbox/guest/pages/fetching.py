"""Fetching a URL, with bounds on everything that the server sends."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
import zlib
from urllib.parse import urlsplit

from ..protocol.page_urls import is_loopback
from .response import Response

BODY_BYTES = 5 << 20  # the longest body, compressed or not; the rest is not read
CHUNK = 1 << 16
USER_AGENT = "Mozilla/5.0 (compatible; gamebox)"


def fetch(url: str, ca_bundle: str | None) -> Response:
    """GET ``url`` and return the answer; a redirect is an answer like any other.

    Uses the proxies of the environment, but none for the sandbox itself. ``ca_bundle`` is a file of certificates (PEM). There is no
    timeout, because the clock of a socket runs on while the sandbox is paused: the caller limits the time. Raises OSError
    (urllib.error.URLError among them) and http.client.HTTPException.
    """
    opener = urllib.request.OpenerDirector()
    proxies: dict[str, str] | None = {} if is_loopback(urlsplit(url).hostname or "") else None
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(urllib.request.HTTPHandler())
    if url.startswith("https:"):  # certificates take a while to load
        opener.add_handler(urllib.request.HTTPSHandler(context=_tls_context(ca_bundle)))
    headers = {
        "User-Agent": USER_AGENT,
        "Accept": "text/html,text/*;q=0.9,*/*;q=0.8",
        "Accept-Encoding": "gzip, deflate",
    }
    with opener.open(urllib.request.Request(url, headers=headers), timeout=None) as response:  # noqa: S310 (http and https only)
        if response.headers.get("X-Gamebox") == "refused" and proxies is None:  # an answer of the sandbox's own proxy
            raise urllib.error.URLError(response.reason)
        return _receive(url, response)


def _tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """Return a context that also trusts the bundle: this Python's OpenSSL looks elsewhere than the image's for certificates."""
    context = ssl.create_default_context()
    if ca_bundle and ca_bundle != os.environ.get("SSL_CERT_FILE") and os.path.exists(ca_bundle):  # each time takes 30 ms
        context.load_verify_locations(ca_bundle)
    return context


def _receive(url: str, response: http.client.HTTPResponse) -> Response:
    parts: list[bytes] = []
    size, truncated = 0, False
    try:
        while size <= BODY_BYTES and (chunk := response.read1(CHUNK)):
            parts.append(chunk)
            size += len(chunk)
    except (http.client.IncompleteRead, ConnectionError) as error:  # the server broke off: keep what has arrived
        truncated = True
        if isinstance(error, http.client.IncompleteRead):
            parts.append(error.partial)
            size += len(error.partial)
    missing = response.length  # bytes missing of a body whose length was announced
    truncated = truncated or size > BODY_BYTES or bool(missing)
    body, cut = _decompress(b"".join(parts)[:BODY_BYTES], response.headers.get("Content-Encoding", "").strip().lower())
    return Response(
        url=url,
        status=response.status,
        content_type=response.headers.get_content_type() if "Content-Type" in response.headers else "",
        charset=response.headers.get_content_charset(),
        location=response.headers.get("Location"),
        body=body,
        size_bytes=size,
        truncated=truncated or cut,
        redirects=[],
    )


def _decompress(body: bytes, encoding: str) -> tuple[bytes, bool]:
    """Return the decompressed body, and whether it was truncated: few bytes can become gigabytes."""
    if encoding not in ("gzip", "x-gzip", "deflate") or not body:
        return body, False
    for bits in (47, -15):  # gzip or zlib by its header; or "deflate" as some servers mean it
        decompressor = zlib.decompressobj(bits)
        try:
            data = decompressor.decompress(body, BODY_BYTES)
        except zlib.error:
            continue
        return data, not decompressor.eof
    return body, False
