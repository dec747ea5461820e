"""An MCP server at an address that answers as it likes, byte for byte."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from agent.mcp.client import McpClient
from agent.mcp.http import CLOSE_SECONDS, Events, HttpWire
from sandbox.errors import OperationError

Answer = Callable[[socket.socket], None]
Serve = Callable[[Answer], str]
BEGIN = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """An address, each of whose connections is given to the function."""
    with contextlib.ExitStack() as stack:

        def listening(answer: Answer) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        threading.Thread(target=answer, args=(connection,), daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"

        yield listening


def request_of(connection: socket.socket) -> Any:
    """The message that is posted, or the end of the session as one; empty for a connection that nothing is sent on."""
    sent = b""
    while b"\r\n\r\n" not in sent:
        piece = connection.recv(65536)
        if not piece:
            return {}
        sent += piece
    head, _, body = sent.partition(b"\r\n\r\n")
    method, *headers = head.lower().split(b"\r\n")
    if method.startswith(b"delete"):
        return {"method": "DELETE"}
    size = int(dict(line.split(b": ", 1) for line in headers)[b"content-length"])
    while len(body) < size:
        piece = connection.recv(65536)
        if not piece:
            return {}
        body += piece
    return json.loads(body)


def with_session(at_the_end: Answer) -> Answer:
    """A server that gives a session, and answers its end by ``at_the_end``."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            message = request_of(connection)
            if not message:
                return  # closed before a request was sent
            if message["method"] == "DELETE":
                at_the_end(connection)
                return
            ident, method = message.get("id"), message["method"]
            answers: dict[str, Any] = {
                "initialize": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"},
                },
                "tools/list": {"tools": []},
            }
            result = {"result": answers[method]} if method in answers else {"error": {"code": -32601, "message": "no"}}
            body = json.dumps({"jsonrpc": "2.0", "id": ident, **result}).encode()
            head = b"mcp-session-id: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            connection.sendall(BEGIN + b"connection: close\r\n" + head + body)

    return answer


def drips(connection: socket.socket) -> None:
    """Headers that come one by one, each in time."""
    connection.sendall(BEGIN)
    for _ in range(1000):
        connection.sendall(b"x-a: b\r\n")
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_the_end_is_not_held_up_by_headers_that_drip(serve: Serve) -> None:
    client = McpClient(HttpWire(serve(with_session(drips))))
    client.connect()
    begun = time.monotonic()
    client.close()
    assert time.monotonic() - begun < CLOSE_SECONDS + 30


def test_what_the_end_is_answered_with_is_not_read(serve: Serve) -> None:
    sent: list[int] = []
    gone = threading.Event()

    def floods(connection: socket.socket) -> None:
        connection.sendall(BEGIN + b"content-length: 99999999999\r\n\r\n")
        try:
            for _ in range(200):
                connection.sendall(b"x" * (1 << 20))
                sent.append(1)
        except OSError:
            gone.set()

    client = McpClient(HttpWire(serve(with_session(floods))))
    client.connect()
    client.close()
    assert gone.wait(10)
    assert len(sent) < 50  # MiB: what the buffers of the kernel take
    assert client.wire.ended


def events(pieces: Iterable[bytes]) -> Iterator[Any]:
    decoder = Events()
    for piece in pieces:
        yield from decoder.feed(piece)
    yield from decoder.end()


ANSWER = b'event: message\ndata: {"jsonrpc": "2.0",\ndata: "id": 1, "result": {"a": "b"}}\n\n: more\n'


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_where_they_end_however_they_are_cut(end: bytes) -> None:
    """Each way to cut a stream in two, and one byte at a time; nothing is waited for that is not needed."""
    sent = ANSWER.replace(b"\n", end)
    wanted = [{"jsonrpc": "2.0", "id": 1, "result": {"a": "b"}}]
    for at in range(len(sent) + 1):
        assert list(events(iter([sent[:at], b"", sent[at:]]))) == wanted, at
    assert list(events(sent[at : at + 1] for at in range(len(sent)))) == wanted
    whole_event = sent[: sent.index(b": more")].removesuffix(b"\n") if end == b"\r\n" else sent[: sent.index(b": more")]
    assert next(events(iter([whole_event]))) == wanted[0]


def test_an_answer_cut_in_a_line_end_arrives(serve: Serve) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            asked = request_of(connection)
            assert asked
            connection.sendall(BEGIN + b"content-type: text/event-stream\r\nconnection: close\r\n\r\n")
            result = b'{"supportedVersions": ["2026-07-28"], "tools": []}'
            for part in (
                b'data: {"jsonrpc": "2.0",\r',
                b'\ndata: "id": %d, "result": %b}\r\n\r\n' % (asked["id"], result),
            ):
                connection.sendall(part)
                time.sleep(0.2)

    client = McpClient(HttpWire(serve(answer)))
    client.connect()
    assert client.tools() == []
    client.close()


def refused(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        if request_of(connection):
            connection.sendall(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("header", [" sesame-12345 ", "sesame-12345\x00", "sesame-12345\udc80", "fine"])
def test_no_failure_quotes_a_key(serve: Serve, header: str) -> None:
    client = McpClient(HttpWire(f"{serve(refused)}?api_key=sesame-12345", {"authorization": header}))
    with pytest.raises(OperationError) as caught:
        client.connect()
    assert "/mcp" in str(caught.value)
    assert "sesame" not in str(caught.value)
