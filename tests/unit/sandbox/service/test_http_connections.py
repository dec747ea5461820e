"""How bytes come in and go out on a connection of the service, with a small application behind it."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from sandbox.service.http.connections import Connection

OK: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]}
WRITTEN: list[bytes] = []


class Noted(Connection):
    """Notes what is written together."""

    def connection_made(self, transport: Any) -> None:
        write = transport.write

        def noted(data: bytes) -> None:
            if data:
                WRITTEN.append(bytes(data))
            write(data)

        transport.write = noted
        super().connection_made(transport)


async def answer_digest(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the digest of the body, of which every third part is read late; /late is answered after /go was."""
    digest, number, more = hashlib.sha256(), 0, True
    while more:
        if number % 3 == 0:
            await asyncio.sleep(0.01)
        message = await receive()
        digest.update(message.get("body", b""))
        more, number = message["more_body"], number + 1
    state = scope["app_state"]
    if scope["path"] == "/go":
        state.set()
    await send(OK)
    if scope["path"] == "/late":
        await asyncio.wait_for(state.wait(), 20)
    await send({"type": "http.response.body", "body": digest.hexdigest().encode()})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    gone = asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_digest({**scope, "app_state": gone}, receive, send)

    server = uvicorn.Server(uvicorn.Config(application, http=Noted, lifespan="off", log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join(20)
    listener.close()


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
def test_bodies_arrive_whole_and_in_order(port: int, size: int) -> None:
    numbers = random.Random(size)
    body = numbers.randbytes(size)
    with closing(socket.create_connection(("127.0.0.1", port), 20)) as peer:
        for _ in range(2):
            data = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + body
            cut = 200  # the head and the beginning of the body
            while data:
                peer.sendall(data[:cut])
                data, cut = data[cut:], numbers.choice((1, 40, 1_000, 70_000, 900_000))
            answer = http.client.HTTPResponse(peer)
            answer.begin()
            assert answer.read().decode() == hashlib.sha256(body).hexdigest()


def test_an_answer_is_written_at_once(port: int) -> None:
    WRITTEN.clear()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", "/")
        assert len(connection.getresponse().read()) == 64
    assert len(WRITTEN) == 1


def test_the_head_of_an_answer_does_not_wait_long_for_its_body(port: int) -> None:
    with (
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as late,
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection,
    ):
        late.request("GET", "/late")
        answer = late.getresponse()
        connection.request("GET", "/go")
        assert len(connection.getresponse().read()) == len(answer.read()) == 64
