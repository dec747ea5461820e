"""Threat: code in the sandbox gets at a credential that the host adds to its requests, or uses it for what is not open."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from sandbox import DockerEnvironment, Limits, Network, Service
from sandbox.docker.engine.client import connect

pytestmark = pytest.mark.engine

KEY = "sk-attacked-0123456789abcdef"
INSIDE = "value-for-commands-0123456789"
Make = Callable[..., DockerEnvironment]


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with all it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        getattr(self.server, "asked").append((self.command, self.path, dict(self.headers)))  # noqa: B009
        body = json.dumps({"path": self.path, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Echo", self.headers.get("Authorization", ""))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Upstream(http.server.ThreadingHTTPServer):
    daemon_threads = True
    asked: list[tuple[str, str, dict[str, str]]]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream(("127.0.0.1", 0), Echo) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def env(docker_env: Make, upstream: Upstream) -> DockerEnvironment:
    address = f"http://127.0.0.1:{upstream.server_address[1]}/base"
    service = Service("llm", address, {"Authorization": f"Bearer {KEY}"}, ("GET", "POST"), ("/v1/*",))
    return docker_env(limits=Limits(memory_bytes=512 << 20), network=Network.none(), services=[service])


# Sends raw bytes to the service and writes what comes back, reversed: no mask of the host's finds anything in that.
RAW = """
import socket, sys
for request in open('requests', 'rb').read().split(b'----'):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
        sock.settimeout(float(sys.argv[3]))
        sock.sendall(request)
        got = b''
        try:
            while data := sock.recv(65536): got += data
        except TimeoutError: pass
        print(got.decode('latin-1')[::-1])
"""


def said(env: DockerEnvironment, *requests: bytes, place: str = "llm.internal 80", seconds: float = 30.0) -> str:
    env.write("raw.py", RAW).unwrap()
    env.upload(b"----".join(requests), "requests").unwrap()
    return env.run(f"python3 raw.py {place} {seconds} 2>&1", timeout_seconds=60).unwrap().output[::-1]


def test_an_echo_does_not_bring_it_inside(env: DockerEnvironment, upstream: Upstream) -> None:
    got = said(env, b"GET /v1/x HTTP/1.1\r\nHost: llm.internal\r\nConnection: close\r\n\r\n")
    assert upstream.asked[0][2]["Authorization"] == f"Bearer {KEY}"
    assert "X-Echo: ***" in got
    assert KEY not in got


def test_no_header_of_the_sandbox_goes_before_the_hosts(env: DockerEnvironment, upstream: Upstream) -> None:
    names = (b"Authorization", b"AUTHORIZATION", b"authorization", b"Proxy-Authorization")
    said(
        env,
        *(
            b"GET /v1/x HTTP/1.1\r\nHost: llm.internal\r\n%b: of-the-sandbox\r\nConnection: close\r\n\r\n" % n
            for n in names
        ),
    )
    assert len(upstream.asked) == len(names)
    assert "of-the-sandbox" not in str(upstream.asked)


def test_nothing_but_what_is_open_is_asked_however_it_is_written(env: DockerEnvironment, upstream: Upstream) -> None:
    host = b" HTTP/1.1\r\nHost: llm.internal\r\nConnection: close\r\n\r\n"
    paths = (
        b"/admin", b"//admin", b"/v1/../admin", b"/v1/%2e%2e/admin", b"/v1/%2E%2E%2Fadmin", b"/v1/..%5cadmin", b"/v1/..;/admin",
        b"/v1/%252e%252e/admin", b"http://llm.internal/admin", b"http://169.254.169.254/v1/x", b"http://llm.internal@127.0.0.1/v1/x",
        b"http://127.0.0.1/v1/x", b"*", b"v1/x",
    )  # fmt: skip
    got = said(env, *(b"GET " + path + host for path in paths), b"DELETE /v1/x" + host, b"TRACE /v1/x" + host)
    assert upstream.asked == []
    assert got.count("HTTP/1.1 40") == len(paths) + 2


def test_no_second_request_hides_in_the_first(env: DockerEnvironment, upstream: Upstream) -> None:
    start = b"POST /v1/x HTTP/1.1\r\nHost: llm.internal\r\n"
    hidden = b"GET /admin HTTP/1.1\r\nHost: llm.internal\r\n\r\n"
    said(
        env,
        start + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        start + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + hidden,
        start + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
        start + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden,
        start + b"X: a\rGET /admin HTTP/1.1\r\n\r\n",
        start + b"X: a\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/x\r\nGET /admin HTTP/1.1\r\nHost: h\r\n\r\n",
        seconds=3.0,
    )
    assert not [path for _, path, _ in upstream.asked if "admin" in path]


def test_the_host_it_is_asked_of_is_the_owners_choice(env: DockerEnvironment, upstream: Upstream) -> None:
    port = upstream.server_address[1]
    said(
        env,
        *(
            b"GET /v1/x HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % h
            for h in (b"evil.example.com", b"127.0.0.1:1")
        ),
    )
    assert [headers["Host"] for _, _, headers in upstream.asked] == [f"127.0.0.1:{port}"] * 2
    assert [path for _, path, _ in upstream.asked] == ["/base/v1/x"] * 2
    assert "403" in said(env, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port, place="127.0.0.1 24128")


def test_neither_the_container_nor_a_file_of_it_holds_it(env: DockerEnvironment) -> None:
    env.secret("TOKEN", INSIDE)
    env.run("true").unwrap()
    known = json.dumps(connect().api.inspect_container(env.container_id))
    assert KEY not in known
    assert INSIDE not in known
    env.upload(KEY.encode(), "/tmp/key").unwrap()
    looking = "grep -rlsaF -f /tmp/key /etc /home /run /tmp /var /workspace /proc/1/environ /proc/1/cmdline; true"
    assert env.run(looking).unwrap().output == "/tmp/key\n"
    env.run("unset TOKEN; exec sleep 100", background=True, session=None).unwrap()
    assert env.run("cat /proc/1/environ").unwrap().exit_code == 1
