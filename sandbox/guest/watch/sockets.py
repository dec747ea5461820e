"""Sockets by their inode, as /proc/PID/net lists them: what a process waits on, in words."""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LISTEN, UNCONNECTED = "0A", "07"
# Where the guest listens for names that the host serves (see ``names``): servers elsewhere, not of this sandbox.
NAMES = "127.24."
_ACCEPTS = 0x10000  # flag of a listening unix socket


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


def listeners() -> dict[str, tuple[str, str, int]]:
    """What is open to be reached in this network: inode → protocol ("tcp", "udp", "unix"), host or path, port (unix: 0)."""
    found: dict[str, tuple[str, str, int]] = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(f"/proc/net/{table}"):
            words = line.split()
            if len(words) > 9 and words[3] == (LISTEN if table.startswith("tcp") else UNCONNECTED):
                host, _, port = address(words[1]).rpartition(":")
                if port.isdigit():
                    found[words[9]] = (table[:3], host.strip("[]"), int(port))
    for line in _lines("/proc/net/unix"):
        words = line.split(None, 7)
        if len(words) > 7 and _hex(words[3]) & _ACCEPTS:
            found[words[6]] = ("unix", words[7].strip(), 0)
    return found


def tcp_listeners() -> list[tuple[str, str, int]]:
    """Of these only the TCP ones: (inode, host, port)."""
    from . import socket_diag as diag

    try:
        return diag.listening()
    except OSError:  # not every kernel has it
        return [(inode, host, port) for inode, (kind, host, port) in listeners().items() if kind == "tcp"]


def open_at(port: int, host: str | None) -> str | None:
    """The address at which TCP ``port`` is open to ``host`` (None: this sandbox itself); None where it is not."""
    for _, address, number in tcp_listeners():
        if number == port and _reaches(address, host):
            return address
    return None


def _reaches(address: str, host: str | None) -> bool:
    import ipaddress  # 20 ms, and only who waits for a port needs it

    try:
        bound: Any = ipaddress.ip_address(address)
    except ValueError:
        return False
    bound = getattr(bound, "ipv4_mapped", None) or bound
    if bound.is_unspecified:
        return True
    if host is None and address.startswith(NAMES):
        return False
    return bool(bound.is_loopback if host is None else bound == ipaddress.ip_address(host))


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


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
