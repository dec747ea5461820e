"""The host's own way out through a company's proxy: which hosts take it, what it is told, and what it may answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socketserver
import threading
from collections.abc import Iterator

import pytest

from sandbox.network.dialling import Route, UnreachableError, dial, route
from sandbox.network.policy import Network
from sandbox.network.upstream_proxy import ProxyError, UpstreamProxy, find_proxy


class Collector(asyncio.Protocol):
    """Keeps what comes until the end."""

    def __init__(self) -> None:
        self.data = b""
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


@contextlib.contextmanager
def answering(answer: bytes, asked: list[bytes] | None = None) -> Iterator[int]:
    """A proxy that answers every CONNECT with these bytes and hangs up."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while (line := self.rfile.readline()).strip():
                head += line
            if asked is not None:
                asked.append(head)
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def through(port: int, host: str = "public.example.com") -> bytes:
    async def ask() -> bytes:
        found, shown = await dial(Route("*", (), UpstreamProxy("127.0.0.1", port, "me:s%3Ae")), host, 443, Collector)
        assert shown == f"127.0.0.1:{port}"
        await asyncio.wait_for(found.over, 5)
        return found.data

    return asyncio.run(ask())


def test_what_a_server_says_first_is_not_lost() -> None:
    """A banner that arrives together with the proxy's answer (SSH, SMTP) is the far end's."""
    asked: list[bytes] = []
    with answering(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nSSH-2.0-banner\r\n", asked) as port:
        assert through(port) == b"SSH-2.0-banner\r\n"
    assert asked[0].startswith(b"CONNECT public.example.com:443 HTTP/1.1\r\n")
    assert b"Basic " + base64.b64encode(b"me:s:e") in asked[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"", "it hung up"),
        (b"HTTP/1.1 200", "it hung up"),
        (b"x" * 20_000, "longer than 16384"),
        (b"SSH-2.0-x\r\n\r\n", "SSH-2.0"),
    ],
)
def test_a_proxy_that_opens_nothing_is_named_without_its_password(answer: bytes, said: str) -> None:
    with answering(answer) as port, pytest.raises(UnreachableError) as caught:
        through(port)
    assert said in caught.value.why
    assert f"127.0.0.1:{port}" in caught.value.why
    assert "s:e" not in caught.value.why
    assert "s%3Ae" not in caught.value.why


def test_settings_that_are_no_http_proxy_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("socks5://me:secret@proxy.example.com:1080", "http://me:secret@proxy.example.com:99999"):
        monkeypatch.setenv("HTTPS_PROXY", setting)
        with pytest.raises(ProxyError) as caught:
            find_proxy("public.example.com", 443)
        assert "proxy.example.com" in str(caught.value)
        assert "secret" not in str(caught.value)


def test_who_goes_by_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "near.example.com")
    pinned = {"public.example.com": "203.0.113.7", "near.example.com": "203.0.113.8", "own.example.com": "127.0.0.1"}
    network = Network.allow("*.example.com:*", "127.0.0.1:*", "8.8.8.8:*", names=pinned)
    expected = {
        "public.example.com": True,
        "near.example.com": False,
        "own.example.com": False,
        "127.0.0.1": False,
        "8.8.8.8": True,
    }
    for host, by_proxy in expected.items():
        way = asyncio.run(route(network, host, 8443))
        assert (way.proxy is not None) is by_proxy, host
        assert len(way.addresses) == 1
