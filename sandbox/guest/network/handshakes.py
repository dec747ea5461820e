"""The handshakes of the proxy's clients before bytes flow: HTTP (CONNECT, or a request for http://…) and SOCKS5.

Pure functions. The client's bytes are hostile.
"""

from __future__ import annotations

import re
import struct

MOST_HEAD = 16 * 1024
# The limit of SOCKS and of DNS; the message to the sandbox's host must stay short.
MOST_HOST = 255
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Headers of the connection, not of the request; Host is set anew to the real destination.
_HOP_BY_HOP = (b"connection", b"keep-alive", b"te", b"trailer", b"host")
SOCKS_OK, SOCKS_FAILED, SOCKS_DENIED, SOCKS_UNREACHABLE, SOCKS_NO_COMMAND, SOCKS_NO_ADDRESS = 0, 1, 2, 4, 7, 8


class ProxyRequest:
    """A client's destination, and those of its bytes that go there first.

    ``tunnel`` says that the client expects an answer of the proxy before bytes flow.
    """

    __slots__ = ("first", "host", "port", "tunnel")

    def __init__(self, host: str, port: int, first: bytes, tunnel: bool) -> None:
        self.host = host
        self.port = port
        self.first = first
        self.tunnel = tunnel


class HandshakeError(Exception):
    """The proxy does not understand the client; ``answer`` is what it sends back."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


def parse_http_request(data: bytes) -> ProxyRequest | None:
    """Parse the request at the start of ``data``. Returns None while its head is incomplete. Raises HandshakeError."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or end > MOST_HEAD:
        if len(data) > MOST_HEAD:
            raise HandshakeError(http_answer(431, "the head of the request is longer than 16 KiB"))
        return None
    lines = data[:end].split(b"\r\n")
    words = lines[0].split(b" ")
    if b"\0" in data[:end] or any(b"\r" in line or b"\n" in line for line in lines):
        raise HandshakeError(http_answer(400, "the head of the request has stray line ends"))
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not _TOKEN.fullmatch(words[0]):
        raise HandshakeError(http_answer(400, "this is a proxy for HTTP/1.1 and SOCKS5"))
    method, target, _ = words
    if method == b"CONNECT":
        host, port = _authority(target, None)
        return ProxyRequest(host, port, data[end + 4 :], True)
    if not target.lower().startswith(b"http://"):
        raise HandshakeError(http_answer(400, "this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT"))
    authority, slash, path = target[7:].partition(b"/")
    if not slash:
        authority, mark, query = authority.partition(b"?")
        path = mark + query
    host, port = _authority(authority.rpartition(b"@")[2], 80)
    head = _forwarded_head(method, b"/" + path, authority.rpartition(b"@")[2], lines[1:])
    return ProxyRequest(host, port, head + data[end + 4 :], False)


def _authority(text: bytes, default: int | None) -> tuple[str, int]:
    host, colon, port = text.rpartition(b":")
    if not colon or b"]" in port:
        host, port = text, b""
    if host.startswith(b"[") and host.endswith(b"]"):
        host = host[1:-1]
    if (not port and default is None) or (port and not port.isdigit()) or not host or len(port) > 5:
        raise HandshakeError(http_answer(400, "the request lacks a host or a port"))
    number = int(port or default or 0)
    if not 0 < number < 65536:
        raise HandshakeError(http_answer(400, f"{number} is not a port number"))
    if len(host) > MOST_HOST:
        raise HandshakeError(http_answer(400, f"the name of the host is longer than {MOST_HOST} bytes"))
    return host.decode("utf-8", "replace"), number


def _forwarded_head(method: bytes, path: bytes, authority: bytes, headers: list[bytes]) -> bytes:
    """Return the head of the request as the server receives it: on a connection of its own, with the real host."""
    upgrade = any(line.lower().startswith(b"upgrade:") for line in headers)
    forwarded = [
        b"%s %s HTTP/1.1" % (method, path),
        b"Host: " + authority,
        b"Connection: " + (b"Upgrade" if upgrade else b"close"),
    ]
    for line in headers:
        name, colon, _ = line.partition(b":")
        name = name.lower()
        # A space before the colon, or a folded line: servers disagree on the name of such a header.
        if not colon or not _TOKEN.fullmatch(name):
            raise HandshakeError(http_answer(400, "a header of the request is malformed"))
        if name not in _HOP_BY_HOP and not name.startswith(b"proxy-"):
            forwarded.append(line)
    return b"\r\n".join(forwarded) + b"\r\n\r\n"


def http_answer(status: int, message: str) -> bytes:
    """Return an error response. The reason phrase has the message, too, as clients hide the body of a refused CONNECT."""
    phrase = "".join(c if " " <= c <= "~" else "?" for c in message)[:400]
    body = message.encode("utf-8", "replace") + b"\n"
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}X-Gamebox: refused\r\nConnection: close\r\n\r\n".encode() + body


HTTP_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


def parse_socks_methods(data: bytes) -> tuple[bytes, int] | None:
    """Parse a SOCKS5 client's first message: (answer, bytes used). Returns None while it is incomplete. Raises HandshakeError."""
    if data[:1] != b"\x05":
        raise HandshakeError(b"\0\x5b" + bytes(6))  # SOCKS4: refused
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    if 0 not in data[2 : 2 + data[1]]:
        raise HandshakeError(b"\x05\xff")
    return b"\x05\0", 2 + data[1]


def parse_socks_request(data: bytes) -> ProxyRequest | None:
    """Parse a SOCKS5 request. Returns None while it is incomplete. Raises HandshakeError."""
    if len(data) < 5:
        return None
    version, command, _, kind, length = data[:5]
    sizes = {1: 4, 3: 1 + length, 4: 16}
    if version != 5 or kind not in sizes:
        raise HandshakeError(socks_answer(SOCKS_NO_ADDRESS))
    end = 4 + sizes[kind]
    if len(data) < end + 2:
        return None
    if command != 1:
        raise HandshakeError(socks_answer(SOCKS_NO_COMMAND))
    raw = data[4:end]
    if kind == 3:
        host = raw[1:].decode("utf-8", "replace")
    elif kind == 1:
        host = ".".join(map(str, raw))
    else:
        host = ":".join(raw[at : at + 2].hex() for at in range(0, 16, 2))
    (port,) = struct.unpack(">H", data[end : end + 2])
    if not host or not port:
        raise HandshakeError(socks_answer(SOCKS_FAILED))
    return ProxyRequest(host, port, data[end + 2 :], True)


def socks_answer(code: int) -> bytes:
    """Return a SOCKS5 reply, with zeros for the bound address."""
    return bytes((5, code, 0, 1)) + bytes(6)
