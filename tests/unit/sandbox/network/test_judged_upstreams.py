"""Upstreams that a tenant chose: the address that was judged is the one that is asked, directly and through the host's proxy."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from sandbox.network.ceiling import Ceiling
from sandbox.network.services.judged_transport import JudgedTransport

Answers = dict[str, list[str]]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """A resolver that answers each look-up of a name with the next address."""
    answers: Answers = {}
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *options: Any, **more: Any) -> list[Any]:
        if host in answers:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[host].pop(0), port))]
        assert host.startswith("127."), host
        return real(host, port, *options, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return answers


def with_server(work: Callable[[int, list[str]], Awaitable[None]]) -> None:
    """Have ``work(port, lines)`` use a server that answers every request, also one for a tunnel, and notes its first line."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            lines.append(head.split(b"\r\n")[0].decode())
            body = b"" if head.startswith(b"CONNECT") else b"it is me"
            length = b"" if head.startswith(b"CONNECT") else b"Content-Length: %d\r\n" % len(body)
            writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + body)
            await writer.drain()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(quiet, "127.0.0.1", 0)
        async with server:
            await work(server.sockets[0].getsockname()[1], lines)

    asyncio.run(run())


async def ask(url: str, ceiling: Ceiling) -> str:
    transport = JudgedTransport(lambda: ceiling, ssl.create_default_context(), httpx.Limits(max_connections=2))
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        return (await client.get(url)).text


def test_a_resolver_that_flips_its_answer_is_asked_once_for_a_connection(resolver: Answers) -> None:
    async def work(port: int, lines: list[str]) -> None:
        resolver["flip.example"] = ["127.0.0.1", "10.0.0.1", "169.254.169.254"]
        ceiling = Ceiling.public(f"127.0.0.1:{port}")
        url = f"http://flip.example:{port}/x"
        assert await ask(url, ceiling) == "it is me"
        assert resolver["flip.example"] == ["10.0.0.1", "169.254.169.254"]
        for _ in range(2):
            with pytest.raises(httpx.ConnectError, match=r"flip\.example has no public address"):
                await ask(url, ceiling)
        for closed in (f"http://127.0.0.1:{port}/", f"http://2130706433:{port}/", f"http://[::ffff:127.0.0.1]:{port}/"):
            with pytest.raises(httpx.ConnectError, match="the operator opens public addresses only"):
                await ask(closed, Ceiling.public())
        assert lines == ["GET /x HTTP/1.1"]

    with_server(work)


def test_the_proxy_of_the_host_gets_the_judged_address(resolver: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(port: int, lines: list[str]) -> None:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        resolver["api.example"] = ["93.184.216.34", "10.0.0.1"]
        assert await ask("http://api.example/v1", Ceiling.public()) == "it is me"
        assert lines == ["CONNECT 93.184.216.34:80 HTTP/1.1", "GET /v1 HTTP/1.1"]
        with pytest.raises(httpx.ConnectError, match="no public address"):
            await ask("https://api.example/v1", Ceiling.public())
        assert len(lines) == 2

    with_server(work)
