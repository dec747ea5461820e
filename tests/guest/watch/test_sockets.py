"""What listens, as the kernel's tables say it."""

from __future__ import annotations

import os
import socket

import pytest

from sandbox.guest.watch import sockets


def test_listeners_by_their_inode() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket() as bound,
    ):
        udp.bind(("127.0.0.1", 0))
        name = f"gamebox test {os.getpid()} of listeners"
        unix.bind(f"\0{name}")
        unix.listen()
        bound.bind(("127.0.0.1", 0))
        found = sockets.list_listeners()

        def entry(sock: socket.socket) -> tuple[str, str, int] | None:
            return found.get(str(os.fstat(sock.fileno()).st_ino))

        assert entry(tcp) == ("tcp", "127.0.0.1", tcp.getsockname()[1])
        assert entry(udp) == ("udp", "127.0.0.1", udp.getsockname()[1])
        assert entry(unix) == ("unix", f"@{name}", 0)
        assert entry(bound) is None
        with socket.create_connection(tcp.getsockname()) as connected:
            assert str(os.fstat(connected.fileno()).st_ino) not in sockets.list_listeners()


def test_a_port_is_open_from_the_first_moment_to_the_last() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert sockets.find_open_address(port, None) is None
        server.listen()
        assert sockets.find_open_address(port, None) == "127.0.0.1"
        assert sockets.find_open_address(port, "127.0.0.1") == "127.0.0.1"
        assert sockets.find_open_address(port, "127.0.0.2") is None
    assert sockets.find_open_address(port, None) is None


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 623 1 0
   1: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 624 1 0
   2: 0100007F:1F42 0100007F:A000 01 00000000:00000000 00:00000000 00000000     0        0 625 1 0
   3: 020011AC:1F43 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 626 1 0
   4: 00000000000000000000000000000000:1F44 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 627 1
   5: 00000000000000000000000001000000:1F45 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 628 1
   6: 0000000000000000FFFF00000100007F:1F46 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 629 1
   7: B80D0120000000000000000001000000:1F47 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 630 1
   8: nonsense:1F48 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 631 1 0
   9: 0100007F:zzzz 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 632 1 0
nonsense
"""


def test_only_listeners_that_can_be_reached_from_here_count(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = TABLE.splitlines()[1:]
    monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)  # no such protocol: the tables are read
    monkeypatch.setattr(sockets, "_lines", lambda path: lines if path == "/proc/net/tcp" else [])
    assert [port for port in range(8000, 8010) if sockets.find_open_address(port, None)] == [
        8000,
        8001,
        8004,
        8005,
        8006,
    ]
    assert [port for port in range(8000, 8010) if sockets.find_open_address(port, "172.17.0.2")] == [8000, 8003, 8004]
    assert [port for port in range(8000, 8010) if sockets.find_open_address(port, "2001:db8::1")] == [8000, 8004, 8007]


def test_both_ways_to_ask_tell_the_same() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        told = {(host, port) for _, host, port in sockets.list_listeners_by_netlink()}
        table = {inode: (host, port) for inode, (kind, host, port) in sockets.list_listeners().items() if kind == "tcp"}
        for server in (four, six):
            assert table[str(os.fstat(server.fileno()).st_ino)] == server.getsockname()[:2]
            assert (
                str(os.fstat(server.fileno()).st_ino),
                *server.getsockname()[:2],
            ) in sockets.list_listeners_by_netlink()
            assert server.getsockname()[:2] in told
        with socket.create_connection(four.getsockname()) as connected:
            assert str(os.fstat(connected.fileno()).st_ino) not in {
                inode for inode, _, _ in sockets.list_listeners_by_netlink()
            }


def test_many_listeners_are_told_whole() -> None:
    many = [socket.create_server(("127.0.0.1", 0)) for _ in range(600)]
    try:
        inodes = {inode for inode, _, _ in sockets.list_listeners_by_netlink()}
        assert {str(os.fstat(one.fileno()).st_ino) for one in many} <= inodes
    finally:
        for one in many:
            one.close()


def test_where_the_kernel_does_not_tell_the_tables_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)  # no such protocol
    with pytest.raises(OSError, match="rotocol"):
        sockets.list_listeners_by_netlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert (str(os.fstat(server.fileno()).st_ino), *server.getsockname()) in sockets.list_tcp_listeners()
