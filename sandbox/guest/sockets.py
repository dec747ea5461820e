"""Sockets by their inode, as /proc/PID/net lists them: what a process waits on, in words."""

from __future__ import annotations

import socket

LISTEN = "0A"


def name_of(pid: int, inode: str) -> str | None:
    """The addresses of a socket: "tcp 127.0.0.1:80 (listens)"; None for one that is not listed."""
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(f"/proc/{pid}/net/{table}"):
            words = line.split()
            if len(words) > 9 and words[9] == inode:
                far = " (listens)" if words[3] == LISTEN else f" to {address(words[2])}" if table[:3] == "tcp" else ""
                return f"{table[:3]} {address(words[1])}{far}"
    for line in _lines(f"/proc/{pid}/net/unix"):
        words = line.split(None, 7)
        if len(words) > 6 and words[6] == inode:
            return f"unix {words[7].strip() if len(words) > 7 else 'socket'}"
    return None


def address(text: str) -> str:
    """Host and port of an address as the kernel writes it: 32-bit words in host order (little endian here), port in hex."""
    try:
        host, port = text.split(":")
        raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
        if len(raw) == 4:
            return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
        return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
    except (ValueError, OSError):
        return text


def _lines(path: str) -> list[str]:
    """At most 1 MiB of a table: a sandbox may have filled it."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = bytearray()
            while len(data) < 1 << 20 and (part := file.read(65536)):
                data += part
    except OSError:
        return []
    return data.decode("utf-8", "replace").splitlines()[1:]
