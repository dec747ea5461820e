"""The HTTP server end that services with credentials and the package cache share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.network.relay import Relay
from sandbox.network.services.http_server import ServedRelays
from sandbox.network.services.service import Service
from sandbox.network.services.service_server import ServiceServer
from sandbox.packages.cache import PackageCache
from sandbox.packages.cache_server import CacheServer
from tests.leaks import descriptors, left_open

Server = CacheServer | ServiceServer


def cache_server(folder: Path) -> CacheServer:
    cache = PackageCache(folder / "cache", "https://index.example.com/simple", "")
    return CacheServer(cache, cache.upstreams())


def service_server(_: Path) -> ServiceServer:
    return ServiceServer(Service("llm", "https://api.example.com", methods=("GET",), paths=("/v1/*",)))


async def exchange(server: Server, sent: bytes, ended: list[BaseException | None] | None = None) -> bytes:
    """What a server answers until it ends the connection; ``ended`` gets the error that it ended with."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.serve(reader, writer)
        except Exception as error:
            if ended is None:
                raise
            ended.append(error)
        else:
            if ended is not None:
                ended.append(None)

    async with asyncio.timeout(10), await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(sent)
        writer.write_eof()
        got = await reader.read()
        writer.close()
        await writer.wait_closed()
        return got


both = pytest.mark.parametrize("made", [cache_server, service_server])


@both
def test_a_connection_that_is_closed_before_it_is_served_leaves_no_socket(
    made: Callable[[Path], Server], tmp_path: Path
) -> None:
    """The package cache left both sockets of a pair open (review of the sandbox, 5.7)."""

    async def go() -> None:
        server = made(tmp_path)
        await asyncio.sleep(0)
        before = descriptors()
        for _ in range(5):
            relay, _ = await server.dial(lambda: Relay(1, lambda *_: None))
            await server.close()
            relay.abort("closed")
        await asyncio.sleep(0.05)
        assert left_open(before, 30) == []

    asyncio.run(go())


@both
def test_a_body_that_no_answer_waits_for_is_not_the_next_request(
    made: Callable[[Path], Server], tmp_path: Path
) -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
    first = b"GET /other HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    got = asyncio.run(exchange(made(tmp_path), first + hidden))
    assert b"hidden" not in got
    assert got.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 403 "))


@both
def test_what_is_no_http_is_answered_in_words(made: Callable[[Path], Server], tmp_path: Path) -> None:
    got = asyncio.run(exchange(made(tmp_path), b"\x16\x03\x01 hello\r\n\r\n"))
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"malformed" in got


def test_an_address_that_is_no_url_is_answered_in_words(tmp_path: Path) -> None:
    got = asyncio.run(exchange(cache_server(tmp_path), b"GET http://[ HTTP/1.1\r\nHost: h\r\n\r\n"))
    assert got.startswith(b"HTTP/1.1 400 'http://[' is not a URL")


@both
def test_a_client_that_leaves_before_it_is_refused_is_no_bug(
    made: Callable[[Path], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox could fill the log of the host with tracebacks."""

    async def gone(_: asyncio.StreamWriter) -> None:
        raise ConnectionResetError("Connection lost")

    monkeypatch.setattr(asyncio.StreamWriter, "drain", gone)
    ended: list[BaseException | None] = []
    got = asyncio.run(exchange(made(tmp_path), b"\x16\x03\x01 hello\r\n\r\n", ended))
    assert got.startswith(b"HTTP/1.1 400 ")
    assert ended == [None]


def test_a_bug_of_the_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _relay: Relay) -> None:
        writer.close()
        raise ValueError("a bug")

    async def go() -> None:
        relays = ServedRelays(fails)
        relay, task = await relays.open(lambda: Relay(1, lambda *_: None))
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert not relays.tasks
        relay.abort("over")

    asyncio.run(go())
    assert "a connection of a sandbox failed" in caplog.text
