"""Connections from tasks of this process to a port of a sandbox: bytes, ends, cuts on either side; nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from sandbox.network.dialling import UnreachableError
from sandbox.network.policy import Network
from sandbox.network.services.peer_port import GONE, NO_SERVER, PeerPort

from .test_peer_port_ends import Deaf, nothing_is_left, reset
from .test_service_names import closed_port, until
from .test_tunnels import Ends, ends

LIMIT = 1 << 16


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    with contextlib.closing(Deaf()) as server:
        yield server


@pytest.fixture
def inside() -> Iterator[Ends]:
    """A sandbox whose loopback is this one's."""
    with ends(Network.none()) as made:
        yield made


def way(inside: Ends, port: int) -> PeerPort:
    return PeerPort(inside.egress.streams, lambda: next(inside.channels), port)


def test_bytes_go_both_ways_and_the_halves_end_apart(inside: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                data = b"".join(iter(lambda: sock.recv(65536), b""))
                sock.sendall(data + b"end")

        server = threading.Thread(target=serve)
        server.start()

        async def talk() -> bytes:
            stream = await way(inside, listener.getsockname()[1]).open_stream(LIMIT)
            stream.writer.write(bytes(1_000_000))
            await stream.writer.drain()
            stream.writer.write_eof()
            found = await stream.reader.read(-1)
            stream.writer.close()
            return found

        assert asyncio.run(talk()) == bytes(1_000_000) + b"end"
        server.join(60)
        until(lambda: nothing_is_left(inside, inside))


def test_a_reset_crosses_as_one_either_way(inside: Ends, deaf: Deaf) -> None:
    async def talk() -> None:
        first = await way(inside, deaf.port).open_stream(LIMIT)
        assert await first.reader.readexactly(2) == b"hi"
        first.abort("the client has left")
        first.abort("again")
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(deaf.kept[0].recv, 1)
        second = await way(inside, deaf.port).open_stream(LIMIT)
        assert await second.reader.readexactly(2) == b"hi"
        reset(deaf.kept[1])
        with pytest.raises(ConnectionResetError):
            await second.reader.read(1)
        second.writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await second.writer.drain()
        second.abort("it is over")

    asyncio.run(talk())
    until(lambda: nothing_is_left(inside, inside))


def test_those_who_give_up_leave_nothing(inside: Ends, deaf: Deaf) -> None:
    async def give_up(rounds: int) -> None:
        task = asyncio.ensure_future(way(inside, deaf.port).open_stream(LIMIT))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await task).abort("too late")

    async def many() -> None:
        await asyncio.gather(*(give_up(number % 40) for number in range(200)))

    asyncio.run(many())
    until(lambda: nothing_is_left(inside, inside))


def test_where_nothing_listens_and_where_nothing_is(inside: Ends) -> None:
    async def why(port: int) -> str:
        with pytest.raises(UnreachableError) as caught:
            await way(inside, port).open_stream(LIMIT)
        return caught.value.why

    with closed_port() as port:
        assert asyncio.run(why(port)) == NO_SERVER
    until(lambda: nothing_is_left(inside, inside))
    inside.egress.streams.close()
    assert asyncio.run(why(80)) == GONE
