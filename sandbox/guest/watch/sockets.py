"""Sockets of the sandbox: which ones listen, who holds them, and how to describe one by its inode.

TCP listeners come over netlink (sock_diag) in 30 µs. /proc/net/tcp takes 2.6 ms, because the kernel walks the table of all
connections of the machine for it; it is read where a kernel has no sock_diag, and for everything else.
"""

from __future__ import annotations

import socket
import struct

from .procfs import read_socket_inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LISTEN, UNCONNECTED = "0A", "07"
# Where the guest listens for names that the host serves (see ``network.names``): these servers are not in this sandbox.
NAMES = "127.24."
_ACCEPTS = 0x10000  # flag of a listening unix socket
_TABLE_BYTES = 1 << 20
MOST_DESCRIPTORS = 256

NETLINK_SOCK_DIAG = 4
NETLINK_SECONDS = 0.5
_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 20, 0x301, 2, 3
_TCP_LISTEN = 1 << 10
_HEADER = struct.Struct("=IHHII")
# inet_diag_msg: family, state, timer, retransmits, source port, destination port, source address, …; the inode comes last.
_INODE_AT, _MESSAGE_BYTES = 68, 72


def list_tcp_listeners() -> list[tuple[str, str, int]]:
    """Return (inode, host, port) of each listening TCP socket in this network."""
    try:
        return list_listeners_by_netlink()
    except OSError:  # not every kernel has sock_diag
        return [(inode, host, port) for inode, (kind, host, port) in list_listeners().items() if kind == "tcp"]


def list_listeners() -> dict[str, tuple[str, str, int]]:
    """Return every socket that can be reached in this network, from /proc/net: inode → (protocol, host or path, port).

    The protocol is "tcp", "udp" or "unix"; the port of a unix socket is 0.
    """
    found: dict[str, tuple[str, str, int]] = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(f"/proc/net/{table}"):
            words = line.split()
            if len(words) > 9 and words[3] == (LISTEN if table.startswith("tcp") else UNCONNECTED):
                host, _, port = format_address(words[1]).rpartition(":")
                if port.isdigit():
                    found[words[9]] = (table[:3], host.strip("[]"), int(port))
    for line in _lines("/proc/net/unix"):
        words = line.split(None, 7)
        if len(words) > 7 and _hex(words[3]) & _ACCEPTS:
            found[words[6]] = ("unix", words[7].strip(), 0)
    return found


def list_listeners_by_netlink() -> list[tuple[str, str, int]]:
    """Ask the kernel for what ``list_tcp_listeners`` returns. Raises OSError if it does not answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(NETLINK_SECONDS)
        return [*_listeners_of_family(kernel, socket.AF_INET), *_listeners_of_family(kernel, socket.AF_INET6)]


def _listeners_of_family(kernel: socket.socket, family: int) -> list[tuple[str, str, int]]:
    request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, _TCP_LISTEN)
    kernel.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
    found: list[tuple[str, str, int]] = []
    while True:
        data = kernel.recv(65536)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            body = data[at + _HEADER.size : at + length]
            if kind == _DONE:
                return found
            if kind == _ERROR or length < _HEADER.size:
                raise OSError("the kernel does not list listening sockets")
            if kind == _SOCK_DIAG_BY_FAMILY and len(body) >= _MESSAGE_BYTES:
                host = socket.inet_ntop(family, body[8 : 12 if family == socket.AF_INET else 24])
                (inode,) = struct.unpack_from("=I", body, _INODE_AT)
                found.append((str(inode), host, int.from_bytes(body[4:6], "big")))
            at += (length + 3) & ~3


def find_ports(pids: Iterable[int]) -> list[int]:
    """Return the TCP ports on which these processes listen, in ascending order."""
    listening = {inode: port for inode, _, port in list_tcp_listeners()}
    found: set[int] = set()
    for pid in pids if listening else ():
        found.update(listening[inode] for inode in read_socket_inodes(pid, MOST_DESCRIPTORS) if inode in listening)
    return sorted(found)


def find_open_address(port: int, host: str | None) -> str | None:
    """Return the address at which TCP ``port`` can be reached as ``host``, or from inside the sandbox if that is None.

    Returns None if nothing listens there.
    """
    for _, address, number in list_tcp_listeners():
        if number == port and _reaches(address, host):
            return address
    return None


def _reaches(address: str, host: str | None) -> bool:
    import ipaddress  # 20 ms to load, and needed only by a wait for a port

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


def describe_socket(pid: int, inode: str) -> str | None:
    """Return the addresses of a socket, like "tcp 127.0.0.1:80 (listens)"; None if it is not listed."""
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(f"/proc/{pid}/net/{table}"):
            words = line.split()
            if len(words) > 9 and words[9] == inode:
                peer = (
                    " (listens)"
                    if words[3] == LISTEN
                    else f" to {format_address(words[2])}"
                    if table[:3] == "tcp"
                    else ""
                )
                return f"{table[:3]} {format_address(words[1])}{peer}"
    for line in _lines(f"/proc/{pid}/net/unix"):
        words = line.split(None, 7)
        if len(words) > 6 and words[6] == inode:
            return f"unix {words[7].strip() if len(words) > 7 else 'socket'}"
    return None


def format_address(text: str) -> str:
    """Return "host:port" for an address as the kernel writes it: 32-bit words in host order (little endian), port in hex."""
    try:
        host, port = text.split(":")
        raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
        if len(raw) == 4:
            return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
        return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
    except (ValueError, OSError):
        return text


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _lines(path: str) -> list[str]:
    """Read the rows of a table below its heading, at most 1 MiB of them: a sandbox may have filled it."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = bytearray()
            while len(data) < _TABLE_BYTES and (part := file.read(65536)):
                data += part
    except OSError:
        return []
    return data.decode("utf-8", "replace").splitlines()[1:]
