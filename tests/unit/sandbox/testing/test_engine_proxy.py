"""The proxy before an engine, against a real HTTP server at a socket that answers as an engine does: kept-alive connections."""

from __future__ import annotations

import http.client
import http.server
import os
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.errors import ErrorCode, SandboxError
from sandbox.testing import EngineProxy, Faults
from sandbox.testing.engine_proxy import request_kind

BODY = bytes(range(256)) * 1000


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        said = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY) + len(said)))
        self.end_headers()
        self.wfile.write(BODY + said)

    do_POST = do_DELETE = do_GET  # noqa: N815 - the server's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        return "local"


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that were cut."""


class Client(http.client.HTTPConnection):
    def __init__(self, address: str) -> None:
        super().__init__("engine", timeout=10)
        self._address = address.removeprefix("unix://")

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        try:
            self.sock.connect(self._address)
        except OSError:
            self.close()
            raise

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        self.request(method, path, body)
        answer = self.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def proxy() -> Iterator[EngineProxy]:
    with (
        tempfile.TemporaryDirectory(prefix="gamebox-") as folder,
        Server(os.path.join(folder, "sock"), Answering) as server,
    ):
        thread = threading.Thread(target=lambda: server.serve_forever(0.02))
        thread.start()
        with EngineProxy(f"unix://{folder}/sock") as made:
            yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def client(proxy: EngineProxy) -> Iterator[Client]:
    made = Client(proxy.address)
    yield made
    made.close()


def test_everything_passes(client: Client) -> None:
    for _ in range(3):
        assert client.ask("/v1.41/info") == (200, BODY)
    assert client.ask("/v1.41/containers/create", "POST", BODY) == (200, BODY + BODY)


def test_what_a_request_is_about() -> None:
    kinds = {
        ("POST", "/v1.41/containers/create?name=x"): "create",
        ("POST", "/v1.41/containers/abc/attach?stdin=1"): "attach",
        ("GET", "/v1.41/events?filters=%7B%7D"): "events",
        ("GET", "/containers/abc/json"): "inspect",
        ("GET", "/_ping"): "ping",
        ("DELETE", "/v1.41/containers/abc?force=1"): "remove",
    }
    assert {asked: request_kind(*asked) for asked in kinds} == kinds


def test_faults_hold_for_their_kind_on_a_connection_that_is_used_again(proxy: EngineProxy, client: Client) -> None:
    proxy.inject(Faults(cut_after_bytes=1000), "create")
    assert client.ask("/v1.41/info") == (200, BODY)
    with pytest.raises((http.client.IncompleteRead, http.client.RemoteDisconnected, ConnectionError)):
        client.ask("/v1.41/containers/create", "POST", b"{}")
    client.close()
    assert client.ask("/v1.41/info") == (200, BODY)


def test_late_and_slow(proxy: EngineProxy, client: Client) -> None:
    proxy.inject(Faults(delay_seconds=0.2))
    began = time.monotonic()
    assert client.ask("/v1.41/info") == (200, BODY)
    assert time.monotonic() - began > 0.2
    proxy.heal()
    proxy.inject(Faults(bytes_per_second=1_000_000), "info")
    began = time.monotonic()
    assert client.ask("/v1.41/info") == (200, BODY)
    assert time.monotonic() - began > 0.8 * len(BODY) / 1_000_000


def test_one_direction_stalls(proxy: EngineProxy, client: Client) -> None:
    proxy.inject(Faults(stalled=True), direction="up")
    client.request("GET", "/v1.41/info")
    client.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.sock.recv(1)
    client.sock.settimeout(10)
    proxy.heal()
    assert client.sock.recv(15).startswith(b"HTTP/1.1 200")
    client.close()


def test_cut_now(proxy: EngineProxy, client: Client) -> None:
    client.ask("/v1.41/info")
    proxy.cut("other")
    assert client.ask("/v1.41/info") == (200, BODY)
    proxy.cut("info")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        client.ask("/v1.41/info")


def test_answers_of_its_own(proxy: EngineProxy, client: Client) -> None:
    proxy.answer("create", 500, "no space left on device")
    assert client.ask("/v1.41/info") == (200, BODY)
    status, said = client.ask("/v1.41/containers/create", "POST", BODY)
    assert (status, said) == (500, b'{"message": "no space left on device"}')
    proxy.heal()
    assert client.ask("/v1.41/containers/create", "POST", b"") == (200, BODY)


def test_refused_connections(proxy: EngineProxy, client: Client) -> None:
    client.ask("/v1.41/info")
    proxy.refuse()
    assert client.ask("/v1.41/info") == (200, BODY)  # it was there already
    other = Client(proxy.address)
    with pytest.raises(ConnectionRefusedError):
        other.ask("/v1.41/info")
    proxy.heal()
    again = Client(proxy.address)
    assert again.ask("/v1.41/info") == (200, BODY)
    again.close()


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    with EngineProxy(f"unix://{tmp_path}/nowhere") as proxy:
        client = Client(proxy.address)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            client.ask("/v1.41/info")
        client.close()


def test_nothing_is_left(proxy: EngineProxy, client: Client) -> None:
    client.ask("/v1.41/info")
    proxy.close()
    proxy.close()
    assert not os.path.exists(os.path.dirname(proxy.address.removeprefix("unix://")))
    assert [thread.name for thread in threading.enumerate() if "_pump" in thread.name] == []


def test_only_local_sockets() -> None:
    with pytest.raises(SandboxError) as caught:
        EngineProxy("tcp://192.0.2.1:2375")
    assert caught.value.code is ErrorCode.invalid_configuration
