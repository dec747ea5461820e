"""An MCP server at an address that answers as it likes, byte for byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agent.mcp.http import CLOSE_SECONDS, HttpWire, _events

Answer = Callable[[socket.socket], None]
Serve = Callable[[Answer], str]
SESSION = b'{"jsonrpc":"2.0","id":1,"result":{}}'
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


def with_session(at_the_end: Answer) -> Answer:
    """A server that gives a session, and answers its end by ``at_the_end``."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if connection.recv(65536).startswith(b"DELETE"):
                at_the_end(connection)
                return
            head = b"mcp-session-id: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(SESSION)
            connection.sendall(BEGIN + head + SESSION)

    return answer


def drips(connection: socket.socket) -> None:
    """Headers that come one by one, each in time."""
    connection.sendall(BEGIN)
    for _ in range(100):
        connection.sendall(b"x-a: b\r\n")
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_the_end_is_not_held_up_by_headers_that_drip(serve: Serve) -> None:
    wire = HttpWire(serve(with_session(drips)))
    wire.ask({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, 5)
    begun = time.monotonic()
    wire.close()
    assert time.monotonic() - begun < CLOSE_SECONDS + 2


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

    wire = HttpWire(serve(with_session(floods)))
    wire.ask({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, 5)
    wire.close()
    assert gone.wait(10)
    assert len(sent) < 50  # MiB: what the buffers of the kernel take
    assert wire.ended


ANSWER = b'event: message\ndata: {"jsonrpc": "2.0",\ndata: "id": 1, "result": {"a": "b"}}\n\n: more\n'


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_where_they_end_however_they_are_cut(end: bytes) -> None:
    """Each way to cut a stream in two, and one byte at a time; nothing is waited for that is not needed."""
    sent = ANSWER.replace(b"\n", end)
    wanted = [{"jsonrpc": "2.0", "id": 1, "result": {"a": "b"}}]
    for at in range(len(sent) + 1):
        assert list(_events(iter([sent[:at], b"", sent[at:]]))) == wanted, at
    assert list(_events(sent[at : at + 1] for at in range(len(sent)))) == wanted
    whole_event = sent[: sent.index(b": more")].removesuffix(b"\n") if end == b"\r\n" else sent[: sent.index(b": more")]
    assert next(_events(iter([whole_event]))) == wanted[0]


def test_an_answer_cut_in_a_line_end_arrives(serve: Serve) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(BEGIN + b"content-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for part in (b'data: {"jsonrpc": "2.0",\r', b'\ndata: "id": 1, "result": {}}\r\n\r\n'):
                connection.sendall(part)
                time.sleep(0.2)

    wire = HttpWire(serve(answer))
    assert wire.ask({"jsonrpc": "2.0", "id": 1, "method": "ping"}, 5)["result"] == {}
    wire.close()
