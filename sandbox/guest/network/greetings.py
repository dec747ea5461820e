"""What a client says to the proxy before bytes flow: HTTP (CONNECT, or a request for http://…) or SOCKS5. Pure; it is hostile."""

from __future__ import annotations

import re
import struct

MOST_HEAD = 16 * 1024
# As in SOCKS; and more is no name of a host. What goes on to the host of the sandbox must fit a short message.
MOST_HOST = 255
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Of one connection and not of the request; Host is set to what is really asked for.
_HOP_BY_HOP = (b"connection", b"keep-alive", b"te", b"trailer", b"host")
SOCKS_OK, SOCKS_FAILED, SOCKS_DENIED, SOCKS_UNREACHABLE, SOCKS_NO_COMMAND, SOCKS_NO_ADDRESS = 0, 1, 2, 4, 7, 8


class Wish:
    """Where a client wants to go, and what of its bytes goes there first.

    ``tunnel`` says that the client is to be told before bytes flow.
    """

    __slots__ = ("first", "host", "port", "tunnel")

    def __init__(self, host: str, port: int, first: bytes, tunnel: bool) -> None:
        self.host = host
        self.port = port
        self.first = first
        self.tunnel = tunnel


class GreetingError(Exception):
    """The client speaks what this proxy does not; ``answer`` are the bytes to tell it so."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


def http_wish(data: bytes) -> Wish | None:
    """What the request at the start of ``data`` asks for; None while its head is not whole. Raises GreetingError."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or end > MOST_HEAD:
        if len(data) > MOST_HEAD:
            raise GreetingError(http_answer(431, "the head of the request is longer than 16 KiB"))
        return None
    lines = data[:end].split(b"\r\n")
    words = lines[0].split(b" ")
    if b"\0" in data[:end] or any(b"\r" in line or b"\n" in line for line in lines):
        raise GreetingError(http_answer(400, "the head of the request has stray line ends"))
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not _TOKEN.fullmatch(words[0]):
        raise GreetingError(http_answer(400, "this is a proxy for HTTP/1.1 and SOCKS5"))
    method, target, _ = words
    if method == b"CONNECT":
        host, port = _authority(target, None)
        return Wish(host, port, data[end + 4 :], True)
    if not target.lower().startswith(b"http://"):
        raise GreetingError(http_answer(400, "this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT"))
    authority, slash, path = target[7:].partition(b"/")
    if not slash:
        authority, mark, query = authority.partition(b"?")
        path = mark + query
    host, port = _authority(authority.rpartition(b"@")[2], 80)
    return Wish(
        host, port, _forwarded(method, b"/" + path, authority.rpartition(b"@")[2], lines[1:]) + data[end + 4 :], False
    )


def _authority(text: bytes, default: int | None) -> tuple[str, int]:
    host, colon, port = text.rpartition(b":")
    if not colon or b"]" in port:
        host, port = text, b""
    if host.startswith(b"[") and host.endswith(b"]"):
        host = host[1:-1]
    if (not port and default is None) or (port and not port.isdigit()) or not host or len(port) > 5:
        raise GreetingError(http_answer(400, "there is no host and port in the request"))
    number = int(port or default or 0)
    if not 0 < number < 65536:
        raise GreetingError(http_answer(400, f"{number} is no port"))
    if len(host) > MOST_HOST:
        raise GreetingError(http_answer(400, f"the name of the host is longer than {MOST_HOST} bytes"))
    return host.decode("utf-8", "replace"), number


def _forwarded(method: bytes, path: bytes, authority: bytes, headers: list[bytes]) -> bytes:
    """The request as the server gets it: on a connection for it alone, and for the host it was asked of."""
    upgrade = any(line.lower().startswith(b"upgrade:") for line in headers)
    kept = [
        b"%s %s HTTP/1.1" % (method, path),
        b"Host: " + authority,
        b"Connection: " + (b"Upgrade" if upgrade else b"close"),
    ]
    for line in headers:
        name, colon, _ = line.partition(b":")
        name = name.lower()
        # A space before the colon, or a folded line: servers disagree on what such a header is called.
        if not colon or not _TOKEN.fullmatch(name):
            raise GreetingError(http_answer(400, "a header of the request is malformed"))
        if name not in _HOP_BY_HOP and not name.startswith(b"proxy-"):
            kept.append(line)
    return b"\r\n".join(kept) + b"\r\n\r\n"


def http_answer(status: int, words: str) -> bytes:
    """An error of this proxy; the words stand in the reason phrase too, for clients hide the body of a refused CONNECT."""
    phrase = "".join(c if " " <= c <= "~" else "?" for c in words)[:400]
    body = words.encode("utf-8", "replace") + b"\n"
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}X-Gamebox: refused\r\nConnection: close\r\n\r\n".encode() + body


HTTP_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


def socks_methods(data: bytes) -> tuple[bytes, int] | None:
    """(answer, bytes used) of a SOCKS5 client's first message; None while it is not whole. Raises GreetingError."""
    if data[:1] != b"\x05":
        raise GreetingError(b"\0\x5b" + bytes(6))  # SOCKS4: refused
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    if 0 not in data[2 : 2 + data[1]]:
        raise GreetingError(b"\x05\xff")
    return b"\x05\0", 2 + data[1]


def socks_wish(data: bytes) -> Wish | None:
    """Where a SOCKS5 client wants to go; None while its request is not whole. Raises GreetingError."""
    if len(data) < 5:
        return None
    version, command, _, kind, length = data[:5]
    sizes = {1: 4, 3: 1 + length, 4: 16}
    if version != 5 or kind not in sizes:
        raise GreetingError(socks_answer(SOCKS_NO_ADDRESS))
    end = 4 + sizes[kind]
    if len(data) < end + 2:
        return None
    if command != 1:
        raise GreetingError(socks_answer(SOCKS_NO_COMMAND))
    raw = data[4:end]
    if kind == 3:
        host = raw[1:].decode("utf-8", "replace")
    elif kind == 1:
        host = ".".join(map(str, raw))
    else:
        host = ":".join(raw[at : at + 2].hex() for at in range(0, 16, 2))
    (port,) = struct.unpack(">H", data[end : end + 2])
    if not host or not port:
        raise GreetingError(socks_answer(SOCKS_FAILED))
    return Wish(host, port, data[end + 2 :], True)


def socks_answer(code: int) -> bytes:
    """A SOCKS5 reply; the address bound is not told."""
    return bytes((5, code, 0, 1)) + bytes(6)
