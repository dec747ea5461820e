"""The socket that a service listens on, and who holds how many of its connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from sandbox.service.http.connections import Connection
from sandbox.service.http.problems import Problem
from sandbox.service.listener import REFUSED_AT_ONCE, client_network, listen
from sandbox.service.places import Places
from tests.integration.observing import eventually

PATIENCE_SECONDS = 20.0


def test_answers_are_not_held_back() -> None:
    """asyncio sets TCP_NODELAY only for sockets that name their protocol; without it a short answer took 40 ms more."""

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen("127.0.0.1", 0, Places(9, 9))
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            await found
            writer.close()
            await writer.wait_closed()
        return found.result()

    assert asyncio.run(accepted()) == 1


def test_nobody_has_more_places_than_are_left_for_others() -> None:
    places = Places(10, 6)
    assert [places.take("a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert [places.take("b") for _ in range(4)] == [True] * 2 + [False] * 2
    assert places.take("c")
    assert places.taken == 8
    places.give_back("a")
    assert (places.of("a"), places.taken) == (4, 7)
    with pytest.raises(Problem, match="This key already has 2") as caught, places.held("b", "This key"):
        pass
    assert caught.value.status == 429
    for holder in ("a", "a", "a", "a", "b", "b", "c"):
        places.give_back(holder)
    assert (places.taken, places.of("a")) == (0, 0)
    assert [Places(100, 2).take("a") for _ in range(3)] == [True] * 3
    limited = Places(100, 2)
    assert [limited.take("a") for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_what_a_client_is_counted_as(address: str, counted_as: str) -> None:
    assert client_network(address) == counted_as


def test_a_place_is_free_when_the_connection_is_closed_and_floods_are_closed_without_an_answer() -> None:
    places = Places(100, 2)
    with listen("127.0.0.1", 0, places) as listener, contextlib.ExitStack() as peers:
        listener.listen(REFUSED_AT_ONCE + 20)
        address = listener.getsockname()
        for _ in range(REFUSED_AT_ONCE + 10):
            peers.enter_context(socket.create_connection(address))
        accepted = [peers.enter_context(contextlib.closing(listener.accept()[0])) for _ in range(REFUSED_AT_ONCE + 2)]
        refused = [each for each in accepted if listener.refusal(each.fileno()) is not None]
        assert (len(refused), places.taken) == (REFUSED_AT_ONCE, 2)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # the rest was closed
            listener.accept()
        accepted[0].close()
        refused[0].close()
        assert (places.taken, places.of("127.0.0.1")) == (1, 1)
        peers.enter_context(socket.create_connection(address))
        listener.setblocking(True)
        with contextlib.closing(listener.accept()[0]) as another:
            assert listener.refusal(another.fileno()) is None


def test_a_trusted_proxy_counts_for_nobody() -> None:
    with listen("127.0.0.1", 0, places := Places(100, 1), ["127.0.0.0/8"]) as listener, contextlib.ExitStack() as open_ones:
        listener.listen(9)
        for _ in range(3):
            open_ones.enter_context(socket.create_connection(listener.getsockname()))
            accepted = open_ones.enter_context(contextlib.closing(listener.accept()[0]))
            assert listener.refusal(accepted.fileno()) is None
        assert (places.taken, places.of("127.0.0.1")) == (3, 0)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    at = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, at - dt.timedelta(1), at + dt.timedelta(1))
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    return folder / "cert.pem", folder / "key.pem"


@contextlib.contextmanager
def _served_with_tls(identity: tuple[Path, Path], places: Places) -> Iterator[tuple[uvicorn.Server, threading.Thread, int]]:
    async def answer(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[operator]

    listener = listen("127.0.0.1", 0, places)
    config = uvicorn.Config(
        answer,
        log_config=None,
        lifespan="off",
        ssl_certfile=identity[0],
        ssl_keyfile=identity[1],
        http=type("Bounded", (Connection,), {"listener": listener}),
        timeout_keep_alive=1000,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),))
    thread.start()
    try:
        assert eventually(lambda: server.started)
        yield server, thread, listener.getsockname()[1]
    finally:
        server.force_exit = server.should_exit = True
        thread.join(PATIENCE_SECONDS)


def test_a_service_with_tls_ends_at_once_and_counts_connections_before_their_handshake(identity: tuple[Path, Path]) -> None:
    """asyncio waits up to 30 s for a client of TLS that has nothing to say to agree to the end."""
    places = Places(9, 3)
    with _served_with_tls(identity, places) as (server, thread, port), contextlib.ExitStack() as open_ones:
        trusted = ssl.create_default_context(cafile=str(identity[0]))
        trusted.check_hostname = False
        peers = []
        for _ in range(2):
            plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
            peer = open_ones.enter_context(trusted.wrap_socket(plain))
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok"):
                answer += peer.recv(1000)
            peers.append(peer)
        silent = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
        assert eventually(lambda: places.of("127.0.0.1") == 3)
        silent.close()
        assert eventually(lambda: places.of("127.0.0.1") == 2)
        server.should_exit = True
        thread.join(30)  # uvicorn looks ten times a second; without the change it waits for its clients
        assert not thread.is_alive()
        assert [peer.recv(1) for peer in peers] == [b"", b""]  # told, not cut
