"""Connections to a service, over sockets that show what was sent together."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from sandbox.client.http.direct import DirectConnections

TIMEOUT = httpx.Timeout(10)
SOCKETS: list[socket.socket] = []
HEADERS = {"Authorization": "Bearer key"}
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Received:
    """A server that answers what is sent to it when it is whole, and keeps the pieces in which it came."""

    def __init__(self, end: bytes, answer: bytes = EMPTY, begun: Callable[[], object] = lambda: None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/below"
        self.pieces: list[bytes] = []
        self._end, self._answer, self._begun = end, answer, begun
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with closing(self._listener), closing(self._listener.accept()[0]) as connection:
            while data := connection.recv(1 << 20):
                self.pieces.append(data)
                self._begun()
                if b"".join(self.pieces).endswith(self._end):
                    connection.sendall(self._answer)

    @property
    def text(self) -> str:
        return b"".join(self.pieces).decode()


def connected(server: Received) -> DirectConnections:
    return DirectConnections(server.url, HEADERS, limits=httpx.Limits(), socket_options=(), opened=SOCKETS.append)


def send(connections: DirectConnections, method: str, address: str, content: Any = None, **params: str) -> httpx.Response:
    answer = connections.send(method, address, params, headers={"X-One": "1"}, content=content, timeout=TIMEOUT)
    answer.read()
    return answer


def test_head_and_body_are_sent_together() -> None:
    server = Received(b"{}")
    with closing(connected(server)) as connections:
        for _ in range(2):
            assert send(connections, "POST", "/v1/x", b"{}").status_code == 200
    assert len(server.pieces) == 2
    assert SOCKETS[-1].fileno() == -1  # the one that was opened, and is closed
    assert server.text.startswith("POST /below/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "\r\nAuthorization: Bearer key\r\nX-One: 1\r\nContent-Length: 2\r\n\r\n{}" in server.text


def test_the_head_of_a_body_that_is_not_there_yet_is_sent_at_once() -> None:
    begun = threading.Event()
    server = Received(b"0\r\n\r\n", begun=begun.set)

    def body() -> Iterator[bytes]:
        assert begun.wait(10)
        yield b"a line\r\n"

    with closing(connected(server)) as connections:
        assert send(connections, "PUT", "/v1/x", body()).is_success
    assert server.text.endswith("\r\n\r\n8\r\na line\r\n\r\n0\r\n\r\n")


def test_paths_and_parameters_are_escaped() -> None:
    server = Received(b"\r\n\r\n")
    with closing(connected(server)) as connections:
        send(connections, "GET", "/v1/a b", path="x&y=/ü")
    assert server.text.startswith("GET /below/v1/a%20b?path=x%26y%3D%2F%C3%BC HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "error", "seconds"),
    [
        (b"nonsense\r\n\r\n", httpx.RemoteProtocolError, 60),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n12", httpx.ReadTimeout, 0.2),
    ],
)
def test_errors_are_those_of_httpx(
    answer: bytes, error: type[Exception], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Received(b"\r\n\r\n", answer)
    monkeypatch.setattr("tests.unit.sandbox.client.test_direct.TIMEOUT", httpx.Timeout(seconds))
    with closing(connected(server)) as connections, pytest.raises(error):
        send(connections, "GET", "/v1/x")


def test_closed_ones_send_nothing() -> None:
    connections = connected(Received(b""))
    connections.close()
    with pytest.raises(RuntimeError, match="closed"):
        send(connections, "GET", "/v1/x")
