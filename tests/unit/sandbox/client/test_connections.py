"""The connections of a sandbox, as a service tells them."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from sandbox.client.http.service import Service
from sandbox.client.network import connections as module
from sandbox.client.network.connections import Connections
from sandbox.network.connections import Connection
from tests.integration.observing import eventually
from tests.servers.scripted_service import KEY, Scripted, says, scripted

PATH = "/v1/sandboxes/a/connections"
OVER = {"detail": "Gone.", "code": "sandbox_not_found"}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as made:
        yield made


@pytest.fixture
def connections(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)  # a list that is late is asked for again: one answer off
    service = Service(server.url, KEY)
    made = Connections(service, lambda: "/v1/sandboxes/a", lambda text: text.replace("s3cr3t", "***"))
    yield made
    made.end()
    service.close()


def numbered(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": n, **Connection(f"s3cr3t{n}.example.com", 443, "denied").to_dict()} for n in numbers]


def tells(*numbers: int) -> Callable[[BaseHTTPRequestHandler], None]:
    """A stream of events that is cut off behind them."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for each in numbered(*numbers):
            handler.wfile.write(f": comment\n\nid: {each['id']}\nevent: connection\ndata: {json.dumps(each)}\n\n".encode())
        handler.close_connection = True

    return answer


def test_a_stream_that_was_cut_goes_on_where_it_was(server: Scripted, connections: Connections) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    server.answers = [
        says(200, {"items": numbered(1, 2)}), tells(3), says(503, {"detail": "Full."}), tells(4, 5), says(404, OVER),
        says(200, {"items": numbered(4, 5, 6)}),
    ]  # fmt: skip
    connections.listen(lambda each: heard.put(each.host))
    assert [heard.get(timeout=30) for _ in range(3)] == [f"***{n}.example.com" for n in (3, 4, 5)]
    assert eventually(lambda: len(server.answers) == 1, 30)  # it has heard that the sandbox is gone
    connections.listen(None)
    assert heard.get(timeout=30) == "***6.example.com"
    assert heard.empty()
    asked = [(path, headers.get("Last-Event-ID")) for _, path, headers, _ in server.seen]
    assert asked == [(PATH, None), *((PATH, after) for after in "2335"), (PATH, None)]


def test_a_service_that_was_restarted_counts_anew(server: Scripted, connections: Connections) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    server.answers = [says(200, {"items": numbered(7)}), tells(8), says(404, OVER), says(200, {"items": numbered(1, 2)})]
    connections.listen(lambda each: heard.put(each.host))
    assert heard.get(timeout=30) == "***8.example.com"
    assert eventually(lambda: len(server.answers) == 1, 30)
    connections.listen(None)
    assert [heard.get(timeout=30) for _ in range(2)] == ["***1.example.com", "***2.example.com"]


def test_a_listener_may_fail_and_may_end_it(server: Scripted, connections: Connections) -> None:
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()

    def fail(each: Connection) -> None:
        heard.put(each.port)
        if heard.qsize() == 2:
            connections.listen(None)
        raise ValueError

    server.answers = [says(200, {"items": []}), tells(1, 2), says(404, OVER)]
    connections.listen(fail)
    assert [heard.get(timeout=30) for _ in range(2)] == [443, 443]


@pytest.mark.parametrize("answer", [{"items": [{"id": 1}]}, {"items": [{"host": "a"}]}, {"items": 5}, []])
def test_an_answer_that_is_none(server: Scripted, connections: Connections, answer: Any) -> None:
    server.answers = [says(200, answer)]
    assert connections.last() == ()


def test_a_service_that_is_not_there(connections: Connections, server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_WAIT_SECONDS", 0.01)
    server.shutdown()
    server.server_close()
    connections.listen(print)
    assert connections.listener is print
    connections.listen(None)
