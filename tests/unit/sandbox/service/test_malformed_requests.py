"""What no well-behaved client sends: each is answered with a clear problem or the connection is closed, and the service goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sandbox.docker.spec import SandboxSpec
from sandbox.service.app import make_app, make_house
from sandbox.service.clock import now
from sandbox.service.http import connections
from sandbox.service.http.connections import Connection
from sandbox.service.http.heads import HEAD_BYTES
from sandbox.service.http.payloads import slow_bodies
from sandbox.service.keys import DEFAULT_TENANT, Scope
from sandbox.service.listener import listen
from sandbox.service.places import Places
from sandbox.service.settings import read_settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import sandboxes as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord
from tests.integration.observing import eventually

SANDBOX = "a" * 20
PATIENCE_SECONDS = 20.0
MOST, MOST_OF_ADDRESS = 60, 25


@dataclass
class Served:
    """A real server on loopback, without an engine."""

    port: int
    key: str
    server: uvicorn.Server

    def say(self, data: bytes, *, end: bool = False) -> tuple[int, dict[str, Any] | None]:
        """Send bytes; return the status and the JSON of the first answer, or 0 if the connection is closed without one."""
        with self.connected() as peer:
            with contextlib.suppress(OSError):
                peer.sendall(data)
                if end:
                    peer.shutdown(socket.SHUT_WR)
            return first_answer(peer)

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)

    def request(self, line: str, *headers: str, body: bytes = b"") -> bytes:
        """Return a request with a key."""
        head = [f"{line} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}", *headers]
        return "\r\n".join([*head, "", ""]).encode("latin-1") + body

    def with_body(self, line: str, body: bytes, *headers: str) -> bytes:
        """Return a request with a body of its length."""
        return self.request(line, f"Content-Length: {len(body)}", *headers, body=body)

    def is_alive(self) -> bool:
        return self.say(self.request("GET /v1/whoami"))[0] == 200


def first_answer(peer: socket.socket) -> tuple[int, dict[str, Any] | None]:
    data = b""
    while True:
        head, separator, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if separator and length is not None and len(body) >= int(length[1]):
            text = body[: int(length[1])]
            return int(head.split()[1]), json.loads(text) if text else None
        try:
            more = peer.recv(1 << 16)
        except ConnectionError:
            more = b""
        if not more:
            return (int(head.split()[1]), None) if separator else (0, None)
        data += more


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DOCKER_HOST", f"unix://{folder}/none.sock")
        patched.setattr(Connection, "drop_seconds", 0.2)
        with _running(folder) as made:
            yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service waits for less time than it does for its users."""
    monkeypatch.setattr(Connection, "head_seconds", 0.5)
    monkeypatch.setattr(Connection, "take_seconds", 0.5)
    monkeypatch.setattr(slow_bodies.TimedBody, "wait_seconds", 0.5)


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[Served]:
    database = Database(folder / "db")
    house = make_house(read_settings({"data": folder, "body_bytes": 4 << 20}), database)
    listener = listen("127.0.0.1", 0, Places(MOST, MOST_OF_ADDRESS))
    config = uvicorn.Config(
        make_app(house),
        log_config=None,
        access_log=False,
        http=type("Bounded", (Connection,), {"listener": listener}),
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    server = uvicorn.Server(config)
    keys: list[str] = []

    async def serve() -> None:
        key, _ = await house.keys.make(DEFAULT_TENANT, "", Scope.admin)
        keys.append(key)
        over = SandboxRecord(
            id=SANDBOX,
            tenant=DEFAULT_TENANT,
            ident=f"gamebox-{'a' * 16}",
            state="lost",
            created_at=now(),
            ends_at=now() + 60,
            ended_at=now(),
            time_to_live_seconds=60,
            reason="removed",
            spec=SandboxSpec().to_data(),
        )
        await database.call(lambda connection: rows.insert(connection, over))
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        made = Served(listener.getsockname()[1], "", server)
        while not (server.started and keys):
            assert thread.is_alive()
            threading.Event().wait(0.01)
        made.key = keys[0]
        yield made
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        database.close()


JSON_BODIES = {
    "no JSON": (b"{", 400, "invalid_json"),
    "two objects": (b"{}{}", 400, "invalid_json"),
    "a list": (b"[]", 400, "invalid_json"),
    "NaN": (b'{"time_to_live_seconds": NaN}', 400, "invalid_json"),
    "infinity": (b'{"time_to_live_seconds": -Infinity}', 400, "invalid_json"),
    "infinity by size": (b'{"time_to_live_seconds": 1e999}', 422, "invalid_body"),
    "a name twice": (b'{"image": "a", "image": "b"}', 400, "invalid_json"),
    "a name twice within": (b'{"metadata": {"a": "1", "a": "2"}}', 400, "invalid_json"),
    "deep": (b'{"a":' * 5000 + b"1" + b"}" * 5000, 400, "invalid_json"),
    "deep lists": (b'{"a":' + b"[" * 100_000, 400, "invalid_json"),
    "not closed and deep, in a text": (b'{"a": "' + b"[" * 100_000, 400, "invalid_json"),
    "a number of 5000 digits": (b'{"time_to_live_seconds": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
    "a number of 4000 digits": (b'{"time_to_live_seconds": ' + b"9" * 4000 + b"}", 422, "invalid_body"),
    "half a pair of surrogates": (b'{"metadata": {"a": "\\ud800"}}', 422, "invalid_body"),
    "no UTF-8": (b'{"image": "\xff"}', 400, "invalid_json"),
    "UTF-16": ('{"image": "a"}'.encode("utf-16"), 422, "invalid_body"),
    "another type": (b'{"time_to_live_seconds": "60"}', 422, "invalid_body"),
    "an unknown field": (b'{"workspace": "/"}', 422, "invalid_body"),
    "too large": (b'{"image": "' + b"a" * (1 << 20) + b'"}', 413, "body_too_large"),
}
RUN = f"POST /v1/sandboxes/{SANDBOX}/run"


@pytest.mark.parametrize("name", JSON_BODIES)
def test_bodies(served: Served, name: str) -> None:
    body, status, code = JSON_BODIES[name]
    answer = served.say(served.with_body("POST /v1/sandboxes", body))
    assert (answer[0], (answer[1] or {}).get("code")) == (status, code), answer
    assert answer[1]
    assert answer[1]["hint"]
    assert served.is_alive()


def test_bodies_of_operations(served: Served) -> None:
    deep = served.with_body(RUN, b'{"command": ' + b"[" * 60 + b"]" * 60 + b"}")
    assert served.say(deep)[0] == 200, "an envelope says what is wrong with it"
    assert served.say(served.with_body(RUN, b'{"command": "\\udcff"}'))[0] == 200, "it stands for a byte"
    assert served.say(served.with_body(RUN, b'{"command": "a", "request_id": "\\ud800"}'))[0] == 422
    assert served.say(served.with_body(RUN, b'{"command": "' + b"," * (3 << 20) + b'"}'))[0] == 200, "a long text is none"
    for large in (b'{"command": "' + b"a" * (5 << 20) + b'"}', b'{"command": [' + b"[]," * 400_000 + b"[]]}"):
        status, problem = served.say(served.with_body(RUN, large))
        assert (status, (problem or {}).get("code")) == (413, "body_too_large")
    form = b'--x\r\nContent-Disposition: form-data; name="command"\r\n\r\ntrue\r\n--x--\r\n'
    multipart = served.with_body(RUN, form, "Content-Type: multipart/form-data; boundary=x")
    assert served.say(multipart)[0] == 400


def _requests(served: Served) -> dict[str, tuple[bytes, tuple[int, ...]]]:
    chunked = "Transfer-Encoding: chunked"
    get = "GET /v1/whoami"
    key = f"Authorization: Bearer {served.key}"
    return {
        "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n", (400,)),
        "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 421)),
        "no version": (b"GET /v1/whoami\r\n\r\n", (400,)),
        "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", (400, 421)),
        "two hosts": (served.request(get, "Host: localhost"), (400,)),
        "two keys": (served.request(get, key), (400,)),
        "a key in two headers": (served.request(get, f"X-API-Key: {served.key}"), (400,)),
        "two lengths": (served.request("POST /v1/keys", "Content-Length: 2", "Content-Length: 3", body=b"{}{"), (400,)),
        "one length twice": (served.request("POST /v1/keys", "Content-Length: 2", "Content-Length: 2", body=b"{}"), (400, 201)),
        "a length and chunks": (served.request("POST /v1/keys", "Content-Length: 2", chunked, body=b"0\r\n\r\n"), (400,)),
        "another coding": (served.request("POST /v1/keys", "Transfer-Encoding: gzip", body=b"{}"), (400, 501)),
        "a negative length": (served.request("POST /v1/keys", "Content-Length: -1"), (400,)),
        "a length in words": (served.request("POST /v1/keys", "Content-Length: two"), (400,)),
        "an enormous length": (served.request("POST /v1/keys", f"Content-Length: {'9' * 30}"), (400, 413)),
        "a chunk of no size": (served.request("POST /v1/keys", chunked, body=b"zz\r\n{}\r\n0\r\n\r\n"), (400, 0)),
        "a chunk of any size": (served.request("POST /v1/keys", chunked, body=b"f" * 30 + b"\r\n"), (400, 413, 0)),
        "a line break in a header": (served.request(get, "X-A: b\rc"), (400,)),
        "a folded header": (served.request(get, "X-A: b", " Transfer-Encoding: chunked"), (400,)),
        "a header folded by a tab": (served.request(get, "X-A: b", "\tc"), (400,)),
        "a folded request line": (b" " + served.request(get), (400,)),
        "chunks before HTTP/1.1": (served.request("POST /v1/keys", chunked, body=b"0\r\n\r\n").replace(b"1.1", b"1.0"), (400,)),
        "two codings": (served.request("POST /v1/keys", "Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"), (400, 501)),
        "chunks twice": (served.request("POST /v1/keys", chunked, chunked, body=b"0\r\n\r\n"), (400, 501)),
        "a space before the colon": (served.request(get, "X-A : b"), (400,)),
        "NUL in a header": (served.request(get, "X-A: \0"), (400,)),
        "a large head": (served.request(get, f"X-A: {'a' * (HEAD_BYTES + 1)}"), (400, 431)),
        "many headers": (served.request(get, *(f"X-{n}: a" for n in range(10_000))), (400, 431)),
        "a long path": (served.request(f"GET /{'a' * 30_000}"), (404,)),
        "a path that is too long": (served.request(f"GET /{'a' * HEAD_BYTES}"), (400, 431)),
        "dots": (served.request("GET /v1/sandboxes/../whoami"), (404,)),
        "escaped dots": (served.request("GET /v1/sandboxes/%2e%2e/whoami"), (404,)),
        "two slashes": (served.request("GET //v1//whoami"), (404,)),
        "a slash at the end": (served.request("GET /v1/whoami/"), (404,)),
        "an escaped slash": (served.request("GET /v1%2Fwhoami"), (400,)),
        "an escaped NUL": (served.request(f"GET /v1/sandboxes/{SANDBOX}%00"), (400,)),
        "a bare NUL": (served.request("GET /v1/who\0ami"), (400,)),
        "an escaped line break": (served.request("GET /v1/sandboxes/%0d%0aX-A:%20b"), (400,)),
        "no UTF-8": (served.request("GET /v1/sandboxes/%ff%fe"), (400,)),
        "a backslash": (served.request("GET /v1\\whoami"), (400,)),
        "letters that are not ASCII": (served.request("GET /v1/sandboxes/é"), (400,)),
        "no path": (served.request("GET whoami"), (404,)),
        "a star": (served.request("OPTIONS *"), (404,)),
        "a tunnel": (served.request("CONNECT example.com:443"), (404, 400)),
        "another method": (served.request("BREW /v1/whoami"), (405,)),
        "a method without end": (b"A" * 20_000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", (404, 400)),
        "another host": (served.request("GET http://evil.example.com/v1/whoami"), (421,)),
        "an absolute address": (served.request("GET http://localhost/v1/whoami?x=1"), (200,)),
        "an absolute address without a path": (served.request("GET http://localhost"), (404,)),
        "a cursor of our form": (served.request("GET /v1/sandboxes?cursor=W05hTiwgImEiXQ=="), (422,)),
        "a cursor of another form": (served.request("GET /v1/sandboxes?cursor=%00"), (422,)),
        "a deep cursor": (served.request(f"GET /v1/sandboxes?cursor={'W1tb' * 5000}"), (422,)),
        "a limit in words": (served.request("GET /v1/sandboxes?limit=all"), (422,)),
        "a limit of many digits": (served.request(f"GET /v1/sandboxes?limit={'9' * 5000}"), (422,)),
        "an id of an event in words": (served.request("GET /v1/events?seconds=0", "Last-Event-ID: last"), (422,)),
        "an enormous id of an event": (served.request("GET /v1/events?seconds=0", f"Last-Event-ID: {'9' * 5000}"), (422,)),
        "seconds without end": (served.request("GET /v1/events?seconds=inf"), (422,)),
        "an idempotency key with spaces": (served.with_body("POST /v1/sandboxes", b"{}", "Idempotency-Key: a b"), (400, 422)),
        "a long id of a request": (served.with_body(RUN, b"{}", f"X-Request-Id: {'a' * 65}"), (422,)),
        "another kind of bytes": (served.with_body(RUN, b"{}", "X-Gamebox-Bytes: hex"), (422,)),
    }


def test_heads(served: Served) -> None:
    wrong = []
    for name, (data, statuses) in _requests(served).items():
        status, problem = served.say(data)
        if status not in statuses or (status >= 400 and not (problem and problem["code"] and problem["hint"])):
            wrong.append(f"{name}: {status} {problem}")
        if not served.is_alive():
            wrong.append(f"{name}: the service is gone")
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("impatient")
def test_requests_that_do_not_come_to_their_end(served: Served) -> None:
    """A head that drips, a connection that says nothing, a body that stops, one that drips, and one that is cut."""
    with served.connected() as silent, served.connected() as drips:
        for char in b"GET /v1/whoami HTTP/1.1\r\nHost: localho":
            with contextlib.suppress(OSError):
                drips.sendall(bytes([char]))
        for peer in (silent, drips):
            status, problem = first_answer(peer)
            assert (status, (problem or {}).get("code")) == (408, "request_timeout")
            assert peer.recv(1) == b""
    late = [
        served.request(RUN, "Content-Length: 10", body=b"{"),
        served.request("POST /v1/sandboxes", "Transfer-Encoding: chunked", body=b"1\r\n{\r\n"),
        served.request(f"PUT /v1/sandboxes/{SANDBOX}/ports/80", "Content-Length: 10"),
    ]
    for data in late:
        status, problem = served.say(data)
        assert (status, (problem or {}).get("code")) == (408, "request_timeout"), data
    assert served.say(late[0], end=True)[0] in (0, 400)
    assert served.is_alive()


def test_a_body_that_nobody_wants_ends(served: Served) -> None:
    """An answer comes before the end of an endless body, and the connection does not go on for it."""
    with served.connected() as peer:
        peer.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        status, _ = first_answer(peer)
        assert status == 401
        _send_without_end(peer)
    with served.connected() as peer:
        peer.sendall(served.request("POST /v1/sandboxes", "Transfer-Encoding: chunked"))
        _send_without_end(peer)
    assert served.is_alive()


def _send_without_end(peer: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        for _ in range(1 << 20):
            peer.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
        pytest.fail("64 GiB were read")


@pytest.mark.usefixtures("impatient")
def test_a_client_that_reads_nothing_is_cut(served: Served) -> None:
    many = served.request("GET /openapi.json") * 400
    with served.connected() as peer:
        peer.sendall(many)
        open_ones = served.server.server_state.connections
        assert eventually(lambda: len(open_ones) > 0)
        assert eventually(lambda: len(open_ones) == 0), "it waits for ever"
        size = 0
        with contextlib.suppress(ConnectionError):
            while more := peer.recv(1 << 20):
                size += len(more)
    assert 0 < size < 40 << 20, "400 documents of more than 200 KiB each"
    assert served.is_alive()


def test_requests_one_after_another_without_waiting(served: Served) -> None:
    with served.connected() as peer:
        peer.sendall(served.request("GET /v1/whoami") * 20 + served.request("GET /v1/none", "Connection: close"))
        data = b""
        while more := peer.recv(1 << 16):
            data += more
    statuses = re.findall(rb"HTTP/1.1 (\d+)", data)
    assert statuses == [b"200"] * 20 + [b"404"]


@pytest.mark.parametrize("path", ["/healthz", "/v1/whoami", "/v1/sandboxes", "/v1/none", "/v1/events"])
def test_head_is_get_without_its_body(served: Served, path: str) -> None:
    """Also that of a stream without an end: the next request on the connection is answered."""
    with served.connected() as peer:
        peer.sendall(served.request(f"HEAD {path}") + served.request("GET /v1/none", "Connection: close"))
        data = b""
        while more := peer.recv(1 << 16):
            data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    assert rest.startswith(b"HTTP/1.1 404 ")  # nothing between both
    if path != "/v1/events":
        whole = served.say(served.request(f"GET {path}"))
        assert int(head.split()[1]) == whole[0]
        assert re.search(rb"content-length: [1-9]", head)
    else:
        assert b"text/event-stream" in head


def test_head_is_refused_where_get_is_not_there(served: Served) -> None:
    with served.connected() as peer:
        peer.sendall(served.request("HEAD /v1/sandboxes/x/pause"))
        answer = peer.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert re.search(rb"allow: POST\r\n", answer, re.IGNORECASE)
    status, problem = served.say(served.request("DELETE /v1/whoami"))
    assert (status, (problem or {})["type"]) == (405, "/problems/method_not_allowed")
    status, meaning = served.say(b"GET /problems/method_not_allowed HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, meaning) == (200, {"code": "method_not_allowed", "meaning": "the route has other methods"})
    assert served.say(b"GET /problems/none HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 404


def test_an_address_leaves_connections_for_others(served: Served) -> None:
    with contextlib.ExitStack() as open_ones:
        peers = [open_ones.enter_context(served.connected()) for _ in range(MOST_OF_ADDRESS + 5)]
        answers = [first_answer(peer) for peer in peers[-3:]]
        assert [(status, (problem or {}).get("code")) for status, problem in answers] == [(429, "too_many_connections")] * 3
        assert f"127.0.0.1 already has {MOST_OF_ADDRESS} " in (answers[0][1] or {})["detail"]
        other = open_ones.enter_context(
            socket.create_connection(("127.0.0.1", served.port), PATIENCE_SECONDS, source_address=("127.0.0.2", 0))
        )
        other.sendall(served.request("GET /v1/whoami"))
        assert first_answer(other)[0] == 200
    assert eventually(served.is_alive)


def test_the_numbers_of_a_service() -> None:
    assert (connections.HEAD_SECONDS, connections.TAKE_SECONDS, slow_bodies.WAIT_SECONDS) == (15.0, 60.0, 60.0)
