"""Services of the host: the secret goes to the upstream and nowhere else, and what may be asked is narrowed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import gzip
import http.server
import json
import logging
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox import LocalEnvironment
from sandbox.errors import SandboxError
from sandbox.guest.protocol.wire import Kind, pack_message, unpack_message
from sandbox.network.connections import Connection, ConnectionLog
from sandbox.network.egress import Egress
from sandbox.network.policy import Network
from sandbox.network.relay import Relay
from sandbox.network.services import service_server
from sandbox.network.services.host_services import split_services
from sandbox.network.services.service import Service
from sandbox.network.services.service_server import ServiceServer
from tests.leaks import descriptors, left_open

SECRET = "s3cr3t-token-0123456789"


class Upstream(http.server.BaseHTTPRequestHandler):
    """Tells what it was asked, the headers with the secret too; /stream comes in pieces that cut the secret in two."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size).decode()
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length).decode()
                self.rfile.readline()
            self.rfile.readline()
        if self.path == "/v1/packed":
            told = gzip.compress(json.dumps(dict(self.headers)).encode())
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)
            return
        if self.path == "/v1/moved":
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/v1/x")
            self.send_header("Set-Cookie", "session=of-another")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path == "/v1/encoded":
            value = self.headers["Authorization"]
            forms = [
                base64.b64encode(f"user:{value}".encode()).decode(),
                urllib.parse.quote(value),
                value.encode().hex(),
            ]
            told = "\n".join(forms).encode()
            self.send_response(200, value)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)
            return
        if self.path == "/v1/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (f"data: 1 {SECRET[:7]}", f"{SECRET[7:]}\n\n", "data: 2\n\n"):
                self.wfile.write(f"{len(piece):x}\r\n{piece}\r\n".encode())
                self.wfile.flush()
                time.sleep(0.1)
            self.wfile.write(b"0\r\n\r\n")
            return
        told = json.dumps(
            {"path": self.path, "method": self.command, "headers": dict(self.headers), "body": body}
        ).encode()
        self.send_response(200, "fine")
        self.send_header("X-Echo", self.headers.get("Authorization", ""))
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def exchange(service: Service, sent: bytes, *, until: bytes = b"") -> bytes:
    """What a sandbox gets for the bytes ``sent``: all until the end of the connection, or until ``until`` is in it."""

    async def talk() -> bytes:
        near, far = socket.socketpair()
        end = ServiceServer(service)
        reader, writer = await asyncio.open_connection(sock=far)
        serving = asyncio.create_task(end.serve(reader, writer))
        own_reader, own_writer = await asyncio.open_connection(sock=near)
        own_writer.write(sent)
        found = b""
        async with asyncio.timeout(20):
            while piece := await own_reader.read(65536):
                found += piece
                if until and until in found:
                    break
            own_writer.close()
            await serving
            await own_writer.wait_closed()
        await end.close()
        return found

    return asyncio.run(talk())


def service(upstream: str, methods: tuple[str, ...] = (), paths: tuple[str, ...] = ()) -> Service:
    return Service("llm", upstream, {"Authorization": f"Bearer {SECRET}"}, methods, paths)


def test_the_upstream_gets_the_secret_and_the_sandbox_only_stars(upstream: str) -> None:
    asked = b"GET /v1/models?a=b HTTP/1.1\r\nHost: llm.internal\r\nAuthorization: mine\r\nConnection: close\r\n\r\n"
    got = exchange(service(upstream), asked)
    assert SECRET.encode() not in got
    head, _, body = got.partition(b"\r\n\r\n")
    told = json.loads(body)
    assert told["path"] == "/v1/models?a=b"
    assert told["headers"]["Authorization"] == "*" * len(f"Bearer {SECRET}")
    assert told["headers"]["Host"] == upstream.removeprefix("http://")
    assert b"mine" not in got
    assert b"****" in head


def test_a_stream_is_passed_on_as_it_comes_and_masked_across_its_pieces(upstream: str) -> None:
    got = exchange(service(upstream), b"GET /v1/stream HTTP/1.1\r\nHost: llm.internal\r\n\r\n", until=b"0\r\n\r\n")
    assert SECRET.encode() not in got
    assert got.count(b"*") == len(SECRET)
    assert b"data: 2" in got


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"],
)
def test_bodies_go_through_in_either_framing(upstream: str, framing: bytes) -> None:
    got = exchange(service(upstream), b"POST /v1/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + framing)
    assert json.loads(got.partition(b"\r\n\r\n")[2])["body"] == "hello"


def test_several_requests_on_one_connection(upstream: str) -> None:
    one = b"GET /v1/a HTTP/1.1\r\nHost: h\r\n\r\n"
    last = b"GET /v1/b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    assert exchange(service(upstream), one + one + last).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"DELETE /v1/x", b"DELETE is not one of the methods"), (b"GET /admin", b"not one of the paths"),
        (b"GET /v1/../admin", b"a plain path"), (b"GET /v1/%2e%2e/admin", b"a plain path"), (b"GET /v1//admin", b"a plain path"),
        (b"GET /v1/..\\admin", b"a plain path"), (b"GET http://llm.internal/admin", b"not one of the paths"),
        (b"GET //v1/x", b"a plain path"), (b"GET //evil.example.com/v1/x", b"a plain path"),
        (b"GET /v1/..;/admin", b"a plain path"),
        (b"GET /v1/..%2fadmin", b"a plain path"), (b"GET /v1/%2e%2e%2fadmin", b"a plain path"),
        (b"GET /v1/%252e%252e/admin", b"a plain path"), (b"GET /v1/./x", b"a plain path"), (b"GET /v1/x%00y", b"a plain path"),
        (b"GET /v1/x%0d%0aHost:%20evil", b"a plain path"), (b"GET /v1/%5c..%5cadmin", b"a plain path"),
        (b"GET http://evil.example.com/v1/x", b"another host"), (b"GET http://llm.internal@evil.example.com/v1/x", b"another host"),
        (b"GET http://llm.internal:8080/v1/x", b"another host"), (b"GET http://evil.example.com#llm.internal/v1", b"another host"),
        (b"GET v1/x", b"a plain path"), (b"OPTIONS *", b"a plain path"), (b"TRACE /v1/x", b"never open"),
        (b"GET /v1/%c0%ae%c0%ae/admin", b"not UTF-8"), (b"GET /v1/%e0%80%ae%e0%80%ae/admin", b"not UTF-8"),  # B04
        (b"GET /v1/..%c0%afadmin", b"not UTF-8"), (b"GET /v1/%ff", b"not UTF-8"), (b"GET /v1/%u002e%u002e/admin", b"a plain path"),
        (b"GET /v1/%ef%bc%8e%ef%bc%8e/admin", b"a plain path"), (b"GET /v1/%e2%80%a5/admin", b"a plain path"),
        (b"GET /v1/x%ef%bc%8f..", b"a plain path"), (b"GET /v1/%ef%bc%852e", b"a plain path"),
        (b"get /admin", b"not one of the paths"), (b"CONNECT evil.example.com:443", b"a plain path"),
    ],
)  # fmt: skip
def test_what_is_not_open_is_refused_and_never_asked(upstream: str, line: bytes, said: bytes) -> None:
    narrowed = service(upstream, methods=("GET", "POST"), paths=("/v1/*",))
    got = exchange(narrowed, line + b" HTTP/1.1\r\nHost: llm.internal\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 403 ")
    assert said in got


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/x HTTP/1.1\r\n\r\n",  # no host
        (
            b"GET /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n"
        ),
        b"GET /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
        b"nonsense\r\n\r\n",
        b"GET /v1/x HTTP/1.1\r\nHost: h\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
def test_malformed_requests_are_refused_or_asked_as_one(upstream: str, request_bytes: bytes) -> None:
    narrowed = service(upstream, methods=("GET",), paths=("/v1/*",))
    got = exchange(narrowed, request_bytes, until=b"/v1/x")
    assert SECRET.encode() not in got
    assert b"/admin" not in got or b"403" in got


def test_an_upstream_that_is_not_there_is_said(upstream: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}"
        got = exchange(service(gone), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 502 llm.internal could not be asked")


@pytest.mark.parametrize(
    ("name", "address", "headers"),
    [
        ("llm", "https://a", {"X": "short"}), ("llm", "https://a", {"X Y": "long enough"}),
        ("llm", "https://a", {"X:": "long enough"}),
        ("LLM", "https://a", {}), ("a.b", "https://a", {}), ("", "https://a", {}), ("llm", "ftp://a", {}), ("llm", "https://", {}),
        ("llm", "https://u:p@a", {}), ("llm", "https://a?b=c", {}),
        ("llm", "https://a", {"X": "a\r\nb"}), ("llm", "https://a", {"X": ""}),
    ],
)  # fmt: skip
def test_a_service_that_cannot_be_is_refused(name: str, address: str, headers: dict[str, str]) -> None:
    with pytest.raises(SandboxError) as caught:
        Service(name, address, headers)
    assert caught.value.code == "invalid_configuration"


@pytest.mark.parametrize(
    ("methods", "paths", "said"),
    [
        ("GET", (), 'methods=("GET",)'), ((), "/v1/*", 'paths=("/v1/*",)'), ((), "*", 'paths=("/v1/*",)'), ((), b"/v1/*", "tuple"),
        (("GET POST",), (), "not a method"), (("",), (), "not a method"), ((), ("v1/*",), "begins with neither"),
        ((), ("",), "neither"), ((), (7,), "not a text"), ((None,), (), "not a text"), ((), None, "not a tuple"),
    ],
)  # fmt: skip
def test_what_narrows_otherwise_than_it_reads_is_refused(methods: Any, paths: Any, said: str) -> None:
    with pytest.raises(SandboxError) as caught:
        Service("llm", "https://a", methods=methods, paths=paths)
    assert caught.value.code == "invalid_configuration"
    assert said in str(caught.value)


def test_its_secrets_are_not_in_its_words() -> None:
    assert SECRET not in repr(service("https://a"))


def told_by(answer: bytes) -> dict[str, str]:
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2])["headers"])


@pytest.mark.parametrize("name", ["Authorization", "AUTHORIZATION", "authorization", "X-Api_Version", "x_api_version"])
def test_a_header_of_the_hosts_cannot_be_set_or_doubled(upstream: str, name: str) -> None:
    asked = Service("llm", upstream, {"Authorization": f"Bearer {SECRET}"}, plain_headers={"X-Api-Version": "7"})
    sent = f"GET /v1/x HTTP/1.1\r\nHost: llm.internal\r\n{name}: mine\r\n{name}: again\r\nConnection: close\r\n\r\n"
    got = exchange(asked, sent.encode())
    assert b"mine" not in got
    assert b"again" not in got
    headers = told_by(got)
    assert headers["X-Api-Version"] == "7"
    assert headers["Authorization"] == "*" * len(f"Bearer {SECRET}")


@pytest.mark.parametrize("host", ["evil.example.com", "127.0.0.1:1", "llm.internal, evil.example.com", ""])
def test_the_host_header_is_never_the_sandboxs(upstream: str, host: str) -> None:
    sent = f"GET /v1/x HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: a\r\nConnection: close\r\n\r\n"
    assert told_by(exchange(service(upstream), sent.encode()))["Host"] == upstream.removeprefix("http://")


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: h\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: h\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 1\r\nContent-Length: 30\r\n\r\nxGET /admin HTTP/1.1\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 3, 3\r\nContent-Length: 5\r\n\r\nabcde",
        b"A: b\nC: d\r\n\r\n" + b"\0",
        b"A : b\r\n\r\n",
    ],
)
def test_a_second_request_cannot_hide_in_the_first(upstream: str, framing: bytes) -> None:
    got = exchange(
        service(upstream, paths=("/v1/*",)), b"POST /v1/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + framing
    )
    assert got.count(b"HTTP/1.1 ") == 1
    assert b'"/admin"' not in got
    assert got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 200"))
    assert not got.startswith(b"HTTP/1.1 200") or b"chunked" not in framing


def test_what_an_upstream_packs_all_the_same_is_masked(upstream: str) -> None:
    got = exchange(service(upstream), b"GET /v1/packed HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert b"*****" in got
    assert b"gzip" not in got.lower().partition(b"\r\n\r\n")[0]


def test_every_form_of_the_secret_is_masked_and_the_words_of_the_status(upstream: str) -> None:
    got = exchange(service(upstream), b"GET /v1/encoded HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert SECRET.encode() not in got
    assert SECRET.encode().hex().encode() not in got
    assert base64.b64encode(SECRET[3:].encode())[:-4] not in got
    assert got.split(b"\r\n")[0] == b"HTTP/1.1 200 " + b"*" * len(f"Bearer {SECRET}")


def test_a_redirect_within_the_upstream_leads_to_the_service_and_its_cookies_to_nobody_else(upstream: str) -> None:
    moved = b"GET /v1/moved HTTP/1.1\r\nHost: h\r\n\r\n"
    last = b"GET /v1/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    got = exchange(service(upstream), moved + last)
    assert b"http://llm.internal/v1/x\r\n" in got
    assert b"session=of-another" in got.partition(b"\r\n\r\n")[0]
    assert b"session" not in got.partition(b"\r\n\r\n")[2]


def test_nothing_of_it_is_logged(upstream: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    exchange(service(upstream), b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert "X-Echo" in caplog.text
    assert SECRET not in caplog.text


def test_what_the_application_logs_itself_stays_as_it_is(upstream: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every record of httpx in the whole application was rewritten while a sandbox had a service (review of the sandbox, 5.6)."""
    caplog.set_level("DEBUG")
    end = ServiceServer(service(upstream))
    end._upstream()
    try:
        # Not "httpx": litellm, once imported, filters the records of that one, too.
        logging.getLogger("httpcore.http11").info("a request of the application with %s", SECRET)
    finally:
        asyncio.run(end.close())
    (record,) = [each for each in caplog.records if "of the application" in each.msg]
    assert record.args == (SECRET,)


@pytest.mark.parametrize("given", [["x"], {"other": Service("llm", "https://a")}, [Service("a", "https://a")] * 2])
def test_services_that_do_not_fit_are_refused(given: Any) -> None:
    with pytest.raises(SandboxError) as caught:
        split_services(given)
    assert caught.value.code == "invalid_configuration"


def test_a_bundle_that_is_not_there_is_refused() -> None:
    with pytest.raises(SandboxError, match="nowhere"):
        split_services([Service("llm", "https://a", ca_bundle="nowhere.pem")])


@pytest.mark.parametrize(
    ("lines", "outcome", "said"),
    [
        (["GET /v1/x"], "allowed", ""),
        (["GET /admin"], "denied", "/admin is not one of the paths"),
        (["GET /v1/x", "DELETE /v1/x"], "allowed", "DELETE is not one of the methods"),
    ],
)
def test_what_a_service_refuses_is_in_the_log_of_connections(
    upstream: str, lines: list[str], outcome: str, said: str
) -> None:
    ended: list[Connection] = []
    opened = threading.Event()  # set by the first frame, which says so
    end = ServiceServer(service(upstream, methods=("GET",), paths=("/v1/*",)))
    egress = Egress(
        Network.none(), lambda *_: opened.set(), ConnectionLog(ended.append), services={("llm.internal", 80): end.dial}
    )
    egress.streams.at_end.append(end.close)
    channel = 1 << 31 | 1
    try:
        egress.streams.take(Kind.OPEN, channel, pack_message({"host": "llm.internal", "port": 80}))
        assert opened.wait(20)
        for number, line in enumerate(lines):
            close = "Connection: close\r\n" if number == len(lines) - 1 else ""
            egress.streams.take(Kind.DATA, channel, f"{line} HTTP/1.1\r\nHost: h\r\n{close}\r\n".encode())
        egress.streams.take(Kind.END, channel, b"")
        deadline = time.monotonic() + 120
        while not ended and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        egress.streams.close()
    (one,) = ended
    assert (one.outcome, bool(one.address), one.rule) == (outcome, outcome == "allowed", "service")
    assert one.why.startswith(said)
    assert bool(one.why) is bool(said)


@pytest.mark.parametrize(
    ("sent", "code", "what", "why", "kind"),
    [
        ("DELETE /v1/x", "service_refused", "DELETE /v1/x", "DELETE is not one of the methods that are open: GET", "method"),
        ("GET /admin?a", "service_refused", "GET /admin?a", "/admin is not one of the paths that are open: /v1/*", "path"),
        ("GET /v1/../x", "service_refused", "GET /v1/../x", "'/v1/../x' is not a plain path", "form"),
        ("GET nonsense\x01", "service_refused", "a request", "it is malformed: ", "form"),
        ("GET /v1/x", "service_failed", "GET /v1/x", "ConnectError: ", "upstream"),
    ],
)
def test_the_command_whose_request_is_not_served_is_told_before_the_answer(
    sent: str, code: str, what: str, why: str, kind: str
) -> None:
    frames: list[tuple[int, bytes]] = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        end = ServiceServer(service(f"http://127.0.0.1:{nobody.getsockname()[1]}", methods=("GET",), paths=("/v1/*",)))
        egress = Egress(
            Network.none(), lambda k, _, data=b"", /: frames.append((k, bytes(data))), ConnectionLog(),
            services={("llm.internal", 80): end.dial},
        )  # fmt: skip
        egress.streams.at_end.append(end.close)
        channel = 1 << 31 | 1
        try:
            egress.streams.take(Kind.OPEN, channel, pack_message({"host": "llm.internal", "port": 80}))
            deadline = time.monotonic() + 120
            while not frames and time.monotonic() < deadline:  # until it is open
                time.sleep(0.01)
            egress.streams.take(Kind.DATA, channel, f"{sent} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            while not any(k == Kind.DATA for k, _ in frames) and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            egress.streams.close()
    kinds = [k for k, _ in frames if k in (Kind.NOTICE, Kind.DATA)]
    assert kinds[:2] == [Kind.NOTICE, Kind.DATA]
    told, _ = unpack_message(next(data for k, data in frames if k == Kind.NOTICE))
    assert (told["code"], told["host"], told["port"], told["what"]) == (code, "llm.internal", 80, what)
    assert told["why"].startswith(why)
    assert told["kind"] == kind


def test_a_model_is_not_told_that_only_the_sandbox_can_be_reached_where_services_can() -> None:
    from sandbox import DockerEnvironment

    told = DockerEnvironment(services=[service("https://api.example.com")]).describe()["network"]
    assert told.startswith("No network beyond servers inside this sandbox (127.0.0.1) and the services named here")
    assert "http://llm.internal/" in told
    assert "only" not in told
    assert DockerEnvironment().describe()["network"] == Network.none().describe()
    beside = DockerEnvironment(network=Network.allow("a.test"), services=[service("https://api.example.com")])
    told = beside.describe()["network"]
    assert told.startswith("Only these hosts and the services named behind them can be reached: a.test.")
    assert "http://llm.internal/" in told


@pytest.mark.parametrize("given", [{"services": []}, {"cache": 1}, {"network": Network.open()}])
def test_a_local_environment_says_what_it_cannot_have(given: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        LocalEnvironment(**given)
    assert caught.value.code == "operation_not_supported"
    assert f"DockerEnvironment({next(iter(given))}=...)" in caught.value.hint


@pytest.mark.parametrize(
    "target", ["/repos/a/secrets#/issues", "/repos/a%2Fissues", "/repos/a%2f/issues", "/repos/a/issues?b#c"]
)
def test_the_path_that_is_judged_is_the_one_that_is_sent(upstream: str, target: str) -> None:
    narrowed = service(upstream, paths=("/repos/*/issues",))
    got = exchange(narrowed, f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 403 ")
    assert narrowed.problem("GET", target) is not None


def test_an_encoded_slash_is_sent_where_no_paths_are_given_and_a_query_may_have_one(upstream: str) -> None:
    end = b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    got = exchange(service(upstream), b"GET /v1/a%2Fb" + end)
    assert json.loads(got.partition(b"\r\n\r\n")[2])["path"] == "/v1/a%2Fb"
    based = service(upstream + "/base/", paths=("/v1/*",))
    got = exchange(based, b"GET /v1/a?b=c%2Fd" + end)
    assert json.loads(got.partition(b"\r\n\r\n")[2])["path"] == "/base/v1/a?b=c%2Fd"


@pytest.mark.parametrize(
    "name",
    [
        "X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method", "X-Original-URL", "X-Rewrite-URL", "X_Original_URL",
        "X-Forwarded-Host", "X-Forwarded-Prefix", "X_Forwarded_Uri", "Forwarded", "Range", "If-Range",
    ],
)  # fmt: skip
def test_headers_that_ask_for_another_thing_or_for_a_part_are_not_passed_on(upstream: str, name: str) -> None:
    sent = f"GET /v1/x HTTP/1.1\r\nHost: h\r\n{name}: mine\r\nX-Own: kept\r\nConnection: close\r\n\r\n"
    headers = told_by(exchange(service(upstream), sent.encode()))
    assert "mine" not in headers.values()
    assert headers["x-own"] == "kept"


def test_what_the_sandbox_has_cut_is_asked_no_further() -> None:
    async def cut(upstream: asyncio.Server, ended: asyncio.Event, begun: asyncio.Event) -> None:
        end = ServiceServer(service(f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"))
        relay, _ = await end.dial(lambda: Relay(1, lambda *_: None))
        relay.begin()
        relay.take(b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n")
        await begun.wait()
        relay.abort("cut")
        await ended.wait()
        async with asyncio.timeout(60):
            while end._relays.tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await end.close()

    async def main() -> None:
        ended, begun = asyncio.Event(), asyncio.Event()

        async def thinking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            await reader.read()
            ended.set()
            writer.close()

        async with asyncio.timeout(10), await asyncio.start_server(thinking, "127.0.0.1", 0) as upstream:
            await cut(upstream, ended, begun)

    asyncio.run(main())


def test_requests_beyond_the_bound_are_told_so(upstream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_server, "TURN_SECONDS", 0.05)
    monkeypatch.setattr(service_server, "AT_ONCE", 0)
    got = exchange(service(upstream), b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 503 llm.internal has 0 requests of this sandbox going on")


def test_a_dial_that_is_cancelled_leaves_no_socket(upstream: str) -> None:
    async def main() -> None:
        end = ServiceServer(service(upstream))
        gc.disable()
        before = descriptors()
        for steps in range(8):
            dial = asyncio.create_task(end.dial(lambda: Relay(1, lambda *_: None)))
            for _ in range(steps):
                await asyncio.sleep(0)
            if dial.cancel():
                with contextlib.suppress(asyncio.CancelledError):
                    await dial
            elif not dial.cancelled():
                dial.result()[0].abort("cut")
        await asyncio.sleep(0.1)
        assert not end._relays.tasks
        assert left_open(before, 30) == []

    try:
        asyncio.run(main())
    finally:
        gc.enable()


@pytest.mark.parametrize("address", [f"https://a.example.com/v1?key={SECRET}", f"https://a.example.com/#{SECRET}"])
def test_an_upstream_with_a_key_in_it_is_refused_without_the_key(address: str) -> None:
    with pytest.raises(SandboxError) as caught:
        Service("llm", address)
    assert "https://a.example.com" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_b04_a_path_in_any_script_is_sent_as_it_is(upstream: str) -> None:
    end = b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    narrowed = service(upstream, paths=("/v1/*",))
    for path in ("/v1/%C3%A9t%C3%A9", "/v1/%E6%97%A5%E6%9C%AC", "/v1/a%E2%80%A6", "/v1/%C2%BD"):
        got = exchange(narrowed, b"GET " + path.encode() + end)
        assert json.loads(got.partition(b"\r\n\r\n")[2])["path"] == path


# --- forms of the secret in answers: B03 ------------------------------------------------------------------
BEARER = f"Bearer {SECRET}"
ECHOES: dict[str, tuple[bytes, dict[str, str]]] = {
    "x-gzip": (gzip.compress(BEARER.encode()), {"Content-Encoding": "x-gzip"}),
    "X-GZIP, identity": (gzip.compress(BEARER.encode()), {"Content-Encoding": "X-GZIP, identity"}),
    "gzip twice": (gzip.compress(gzip.compress(BEARER.encode())), {"Content-Encoding": "gzip, x-gzip"}),
    "percent": ("".join(f"%{byte:02X}" for byte in SECRET.encode()).encode(), {}),
    "json": ("".join(f"\\u{ord(char):04x}" for char in SECRET).encode(), {}),
    "entities": ("".join(f"&#{ord(char)};" for char in SECRET).encode(), {}),
    "utf-16": (SECRET.encode("utf-16"), {}),
    "upper": (SECRET.upper().encode(), {}),
    "beginning": (b"the key is " + SECRET[:12].encode(), {}),
    "end": (SECRET[10:].encode() + b" was the key", {}),
    "gzip file": (gzip.compress(b"x" * 200_000 + SECRET.encode()), {"Content-Type": "application/gzip"}),
    "gzip file of two members": (gzip.compress(b"x") + gzip.compress(SECRET.encode()), {}),
    "unknown": (SECRET.encode()[::-1], {"Content-Encoding": "br"}),
}


@pytest.fixture(scope="module")
def echoing() -> Iterator[str]:
    """An upstream that answers with the credential in the form that its path names."""

    class Echo(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, headers = ECHOES.get(urllib.parse.unquote(self.path[1:]), (gzip.compress(b"a file"), {}))
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("form", ECHOES)
def test_b03_an_answer_shows_no_form_of_the_secret_that_is_promised(form: str, echoing: str) -> None:
    got = exchange(service(echoing), f"GET /{urllib.parse.quote(form)} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    head, _, body = got.partition(b"\r\n\r\n")
    if form == "unknown":
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b"compressed as 'br'" in body
    elif "gzip file" in form:
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert len(body) < length, "it breaks off"
        assert gzip.compress(SECRET.encode())[12:] not in body
    else:
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"********" in body
        assert not any(part in body for part in (SECRET[:8].encode(), SECRET[-8:].encode(), ECHOES[form][0]))


def test_b03_a_compressed_file_without_a_secret_is_passed_on_as_it_is(echoing: str) -> None:
    got = exchange(service(echoing), b"GET /clean HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert gzip.decompress(got.partition(b"\r\n\r\n")[2]) == b"a file"
