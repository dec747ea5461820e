"""Names of services: the guest's sockets for them, the way through two pipes, and who may not take them over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from sandbox.guest.network import service_names
from sandbox.guest.network.service_names import ServiceNames
from sandbox.network.policy import Network
from sandbox.network.relay import Relay
from sandbox.network.services.names import Name, for_guest
from sandbox.network.services.peer_port import PeerPort

from .test_tunnels import Echo, Ends, Server, ends, everything

ADDRESS = "127.24.0.2"
NAME = "db"


@pytest.fixture
def echo() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine at which nothing listens, nor anything of other tests."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@contextlib.contextmanager
def beside(port: int, behind: int) -> Iterator[tuple[Ends, Ends, ServiceNames]]:
    """Return a sandbox that knows db at ``port``, and one in which a server listens at ``behind``."""
    with ends(Network.none()) as near, ends(Network.none()) as far:
        peer_port = PeerPort(far.egress.streams, lambda: next(far.channels), behind)
        near.egress._services = {(NAME, port): peer_port.dial}
        made: list[ServiceNames] = []
        ready = threading.Event()
        told = for_guest((Name(NAME, ADDRESS, (port,)),))

        def listen() -> None:
            made.append(ServiceNames(near.reactor, lambda: near.tunnels, near._noted, told))
            ready.set()

        near.reactor.hand_over(listen)
        assert ready.wait(60)
        try:
            yield near, far, made[0]
        finally:
            for each in made[0].sockets:
                each.close()


def connected(port: int) -> socket.socket:
    sock = socket.create_connection((ADDRESS, port), timeout=60)
    sock.settimeout(60)
    return sock


def test_bytes_go_through_both_sandboxes_and_the_halves_end_apart(echo: int) -> None:
    port = free_port()
    with beside(port, echo) as (near, _, _), connected(port) as sock:
        sent = bytes(range(256)) * 8192

        def write() -> None:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        assert everything(sock) == sent + b"bye"
        writer.join()
        until(lambda: bool(near.log))
        [one] = near.log
        assert (one.host, one.port, one.outcome, one.rule) == (NAME, port, "allowed", "service")
        assert (one.sent_bytes, one.received_bytes) == (len(sent), len(sent) + 3)


def test_many_at_a_time(echo: int) -> None:
    port = free_port()
    with beside(port, echo), contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connected(port)) for _ in range(40)]
        for number, sock in enumerate(socks):
            sock.sendall(b"%d" % number)
            sock.shutdown(socket.SHUT_WR)
        assert [everything(sock) for sock in socks] == [b"%dbye" % number for number in range(40)]


def test_a_connection_to_a_closed_port_is_reset() -> None:
    port = free_port()
    with closed_port() as closed, beside(port, closed) as (near, _, _):
        with pytest.raises(ConnectionResetError), connected(port) as sock:
            sock.recv(1)
        until(lambda: bool(near.log))
        assert [(one.outcome, one.why) for one in near.log] == [("failed", "nothing listens there")]


def test_a_failed_connection_is_reported_with_its_command_before_the_client_notices() -> None:
    port = free_port()
    with closed_port() as closed, beside(port, closed) as (near, _, _):
        near.held = []
        with connected(port) as sock:
            near.reset_once_reported(sock)
            (told,) = near.notices
            assert told["ends"][0] == sock.getsockname()
        assert (told["code"], told["host"], told["port"]) == ("service_failed", NAME, port)
        assert told["why"] == "nothing listens there"


def test_a_name_at_the_http_port_that_nobody_serves_is_refused_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept sandbox has the name, and the host that attached did not bring the service."""
    monkeypatch.setattr(service_names, "REFUSAL_SECONDS", 30.0)  # for a client that is slow to read the answer
    with ends(Network.none()) as near:
        made: list[ServiceNames] = []
        ready = threading.Event()

        def listen() -> None:
            told = [("llm.internal", "127.24.0.77", [80])]
            made.append(ServiceNames(near.reactor, lambda: near.tunnels, near._noted, told))
            ready.set()

        near.reactor.hand_over(listen)
        assert ready.wait(60)
        with socket.create_connection(made[0].sockets[0].getsockname(), timeout=60) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: llm.internal\r\n\r\n")
            answer = everything(sock)
        until(lambda: not made[0].callers)  # it has seen that the client is gone
        for each in made[0].sockets:
            each.close()
    assert answer.startswith(b"HTTP/1.1 403 llm.internal:80 is refused by the sandbox: this sandbox has no network\r\n")
    assert [one["code"] for one in near.notices] == ["network_denied"]


def test_a_service_whose_sandbox_is_gone_is_reported(echo: int) -> None:
    port = free_port()
    with beside(port, echo) as (near, far, _):
        with connected(port) as standing:
            standing.sendall(b"x")
            assert standing.recv(1) == b"x"
            far.egress.streams.close()
            with pytest.raises(ConnectionResetError):  # what stood is cut
                standing.recv(1)
        with pytest.raises(ConnectionResetError), connected(port) as sock:  # it may come before connect() has returned
            sock.recv(1)
        until(lambda: len(near.log) == 2)
        assert near.log[-1].why == "its sandbox is gone"


def test_a_client_that_goes_before_the_answer_leaves_nothing(echo: int) -> None:
    port = free_port()
    asked = threading.Event()
    go_on = threading.Event()
    with beside(port, echo) as (near, far, _):
        way = near.egress._services[NAME, port]

        async def slow(protocol: Callable[[], Relay]) -> tuple[Relay, str]:
            asked.set()
            await asyncio.to_thread(go_on.wait, 5)
            return await way(protocol)

        near.egress._services = {(NAME, port): slow}
        sock = connected(port)
        assert asked.wait(60)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        until(lambda: not near.tunnels._asked)
        go_on.set()
        until(lambda: not near.egress.streams._relays and not far.egress.streams._relays)


def test_nothing_else_can_listen_where_a_name_is_served(echo: int) -> None:
    port = free_port()
    with beside(port, echo):
        for address in (ADDRESS, "0.0.0.0"):
            with socket.socket() as thief:
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                with pytest.raises(OSError, match="Address already in use"):
                    thief.bind((address, port))


def test_other_ports_of_a_name_are_refused_and_not_looked_up(echo: int) -> None:
    port = free_port()
    with beside(port, echo) as (near, _, _), near.connect() as sock:
        near.egress.change(Network.open())
        sock.sendall(b"CONNECT DB.:%d HTTP/1.1\r\n\r\n" % (port % 65535 + 1))
        answer = everything(sock)
        assert b" 403 " in answer
        assert b"db is a service of this sandbox, and serves port %d only" % port in answer


def test_names_are_reached_by_the_proxy_too(echo: int) -> None:
    port = free_port()
    with beside(port, echo) as (near, _, _), near.connect() as sock:
        sock.sendall(b"CONNECT db:%d HTTP/1.1\r\n\r\nhello" % port)
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock).endswith(b"\r\n\r\nhellobye")


def until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    waiting = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if done():
            return
        waiting.wait(0.01)
    assert done()
