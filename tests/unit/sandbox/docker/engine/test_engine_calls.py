"""How the engine is called: by crowds of threads, again and again, and by public ways alone. The engine is a server in the test."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker.container import removal
from sandbox.docker.container.root_changes import RootChange, list_root_changes
from sandbox.docker.engine import client as engine
from sandbox.errors import ErrorCode, SandboxError

NAME = "gamebox-0123456789abcdef"


class _Server(socketserver.ThreadingUnixStreamServer):
    """Counts its connections and what is asked on them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str) -> None:
        self.connections = 0
        self.asked: Counter[str] = Counter()
        self.answer: Callable[[str], tuple[int, Any]] = lambda _path: (200, {})
        super().__init__(path, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        self.connections += 1
        connected, _ = super().get_request()
        return connected, ("test", 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked[f"{self.command} {path}"] += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = (200, {"ApiVersion": "1.43"}) if path == "/version" else self.server.answer(path)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    path = str(tmp_path / "e.sock")
    with _Server(path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        known = set(engine._clients)
        yield server
        for mine in set(engine._clients) - known:
            engine._clients.pop(mine).close()
        server.shutdown()
        thread.join()


@pytest.mark.exhaustive
def test_a_crowd_of_threads_shares_few_connections(served: _Server) -> None:
    """One start in 320 failed with "'NoneType' object has no attribute 'qsize'" (trials, D16): docker-py closed a pool in use."""
    api = engine.connect().api

    def call(number: int) -> str:
        return str(api.inspect_container(f"c{number}"))

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(call, range(1000))) == {"{}"}
    assert served.connections <= 2 + 32  # to greet it, and what is kept


def test_no_pool_is_closed_while_it_is_used(served: _Server) -> None:
    adapter: Any = engine.connect().api.get_adapter("http+docker://localhost/")
    mine = adapter.get_connection("http+docker://localhost/v1.43/containers/mine/json")
    for number in range(200):
        adapter.get_connection(f"http+docker://localhost/v1.43/containers/c{number}/json")
    assert mine.pool is not None


def test_a_connection_that_is_taken_over_is_of_no_pool(served: _Server) -> None:
    adapter: Any = engine.connect().api.get_adapter("http+docker://localhost/")
    for kind in ("containers/c/attach", "events"):
        url = f"http+docker://localhost/v1.43/{kind}"
        assert adapter.get_connection(url) is not adapter.get_connection(url)


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", [409, 500])
def test_a_sick_engine_is_not_stormed(served: _Server, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """It was asked 200 times a second to remove and to go on (review of the sandbox, 5.8)."""
    monkeypatch.setattr(removal, "GONE_SECONDS", 1)
    served.answer = lambda _path: (status, {"message": "removal of container is already in progress"})
    engine.connect()
    removal.remove(NAME)
    assert 1 <= served.asked[f"DELETE /v1.43/containers/{NAME}"] <= 12


def test_a_removal_that_is_refused_is_asked_for_again(served: _Server) -> None:
    refusals = iter([(409, {"message": "removal of container is already in progress"}), (500, {"message": "busy"})])

    def answer(path: str) -> tuple[int, object]:
        return next(refusals, (404, {"message": "No such container"})) if path.endswith(f"/{NAME}") else (500, {"message": "sick"})

    served.answer = answer
    engine.connect()
    removal.remove(NAME)
    assert served.asked[f"DELETE /v1.43/containers/{NAME}"] == 3


def test_a_container_that_is_gone_is_asked_for_once(served: _Server) -> None:
    served.answer = lambda _path: (404, {"message": "No such container"})
    removal.remove(NAME)
    assert served.asked[f"DELETE /v1.43/containers/{NAME}"] == 1


def test_a_container_that_is_still_being_made_is_waited_for(served: _Server) -> None:
    early = iter(range(3))

    def answer(_path: str) -> tuple[int, Any]:
        return (200, {}) if next(early, None) is None else (404, {"message": "No such container"})

    served.answer = answer
    removal.remove(NAME, may_appear=True)
    assert served.asked[f"DELETE /v1.43/containers/{NAME}"] > 1


def test_what_was_written_is_asked_for_by_public_ways(served: _Server) -> None:
    served.answer = lambda path: (200, [{"Path": "/etc/new", "Kind": 1}] if path.endswith("/containers/abc/changes") else None)
    assert list_root_changes("abc") == (RootChange("/etc/new", "added"),)


def test_a_refusal_of_the_engine_keeps_its_words(served: _Server) -> None:
    served.answer = lambda _path: (500, {"message": "layer store is damaged"})
    with pytest.raises(SandboxError, match="layer store is damaged") as raised:
        list_root_changes("abc")
    assert raised.value.code is ErrorCode.engine_error


@pytest.mark.exhaustive
def test_an_engine_that_does_not_answer_holds_up_no_other(served: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of all clients was held while one was made (review of the sandbox, 5.4)."""
    address = engine.engine_address()
    silent = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        listening.bind(silent)
        listening.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{silent}")
        waiting = pool.submit(engine.connect, 2)
        visitor, _ = listening.accept()
        visitor.close()
        monkeypatch.setenv("DOCKER_HOST", address)
        assert engine.connect().api.inspect_container("c") == {}
        with pytest.raises(SandboxError):
            waiting.result()
