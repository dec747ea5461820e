"""How a connection from one sandbox to another ends: what one end cuts is cut at the other, and nothing is left of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from sandbox.guest.network import tunnels
from sandbox.network import egress
from sandbox.network.services import peer_port

from .test_service_names import beside, connected, free_port, until
from .test_tunnels import Ends

RESET = b"\1\0\0\0\0\0\0\0"


class Deaf:
    """A server that greets who comes, keeps every connection, and takes no notice of their ends."""

    def __init__(self) -> None:
        self.kept: list[socket.socket] = []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.socket.accept()
                sock.settimeout(60)
                self.kept.append(sock)
                sock.sendall(b"hi")

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(60)
        for sock in (self.socket, *self.kept):
            sock.close()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    with contextlib.closing(Deaf()) as server:
        yield server


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def nothing_is_left(near: Ends, far: Ends) -> bool:
    return not any(
        (*end.egress.streams._accounts, *end.egress.streams._relays, *end.tunnels._open, *end.tunnels._dialling)
        for end in (near, far)
    )


def test_clients_that_reset_leave_nothing_of_a_server_that_takes_no_notice(deaf: Deaf) -> None:
    port = free_port()
    with beside(port, deaf.port) as (near, far, _):
        for _ in range(40):
            sock = connected(port)
            assert sock.recv(2) == b"hi"
            reset(sock)
        for _ in range(40):  # some before they stand
            reset(connected(port))
        until(lambda: nothing_is_left(near, far))


def test_a_reset_crosses_as_one_either_way(deaf: Deaf) -> None:
    port = free_port()
    with beside(port, deaf.port) as (near, far, _):
        first = connected(port)
        assert first.recv(2) == b"hi"
        reset(first)
        with pytest.raises(ConnectionResetError):
            deaf.kept[0].recv(1)
        with connected(port) as second:
            assert second.recv(2) == b"hi"
            reset(deaf.kept[1])
            with pytest.raises(ConnectionResetError):
                second.recv(1)
        until(lambda: nothing_is_left(near, far))


@pytest.mark.parametrize("where", ["host", "guest"])
def test_connections_to_a_sandbox_are_bounded(deaf: Deaf, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    port = free_port()
    with beside(port, deaf.port) as (near, far, _), contextlib.ExitStack() as stack:
        if where == "host":
            monkeypatch.setattr(peer_port, "MOST_CONNECTIONS", 2)
        else:
            far.tunnels._dialling.update({1000 + number: lambda: None for number in range(tunnels.MOST - 2)})
        for _ in range(2):
            assert stack.enter_context(connected(port)).recv(2) == b"hi"
        with pytest.raises(ConnectionResetError), connected(port) as third:
            third.recv(2)
        assert near.log[-1].outcome == "failed"
        assert f"there are {2 if where == 'host' else tunnels.MOST} connections" in near.log[-1].why


def test_connections_to_services_are_bounded(deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "MOST_TO_SERVICES", 2)
    port = free_port()
    with beside(port, deaf.port) as (near, far, _):
        for _ in range(3):  # those that ended, and those that never stood, leave their place
            socks = [connected(port) for _ in range(2)]
            assert [sock.recv(2) for sock in socks] == [b"hi", b"hi"]
            with pytest.raises(ConnectionResetError), connected(port) as third:  # it may come before the answer is read
                third.recv(2)
            assert near.log[-1].why == "there are 2 connections to services already, the most there may be"
            for sock in socks:
                reset(sock)
            until(lambda: nothing_is_left(near, far) and not near.egress._to_services)


def test_who_gives_up_while_the_backlog_is_full_leaves_nothing() -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        near, far, _ = stack.enter_context(beside(port, full.getsockname()[1]))
        sock = connected(port)
        until(lambda: bool(far.tunnels._dialling))
        reset(sock)
        until(lambda: nothing_is_left(near, far))
