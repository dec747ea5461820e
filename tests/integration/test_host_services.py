"""Services of the host: used from inside with nothing but a plain address, under no network at all."""

from __future__ import annotations

import http.server
import json
import os
import select
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits, Network, PackageCache, SandboxError, Service
from sandbox.messages.network import WITHOUT
from tests.programs import run_gamebox

from .observing import eventually

pytestmark = pytest.mark.engine

KEY = "sk-test-0123456789abcdef"
SMALL = Limits(memory_bytes=512 << 20)
Make = Callable[..., DockerEnvironment]


class Model(http.server.BaseHTTPRequestHandler):
    """Speaks as much of the OpenAI API as a client needs, and echoes the key where it should not."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        getattr(self.server, "keys").append(self.headers.get("Authorization"))  # noqa: B009
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self._answer(401, {"error": {"message": "Incorrect API key provided"}})
        elif asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in ("Hel", "lo", f" {KEY[:9]}", f"{KEY[9:]}"):
                event = f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n".encode()
                self._chunk(event)
                if not getattr(self.server, "has_first_line").wait(30):  # noqa: B009
                    self.close_connection = True  # it did not stream: this answer gets no end
                    return
                time.sleep(0.3)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        else:
            content = f"{len(asked['messages'][0]['content'])} characters; your key is {KEY}"
            self._answer(200, {"choices": [{"message": {"role": "assistant", "content": content}}]})

    def do_GET(self) -> None:
        if self.path == "/v1/has-first-line":
            getattr(self.server, "has_first_line").set()  # noqa: B009
        if self.path.startswith("/v1/large"):
            self.send_response(200)
            self.send_header("Content-Length", str(50 << 20))
            self.end_headers()
            for _ in range(50):
                self.wfile.write(b"x" * (1 << 20))
        else:
            self._answer(200, {"path": self.path, "headers": dict(self.headers)})

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Upstream(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Model)
        self.keys: list[str | None] = []
        self.has_first_line = threading.Event()
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def model() -> Iterator[Upstream]:
    server = Upstream()
    with served(server):
        yield server


def llm(model: Upstream, methods: tuple[str, ...] = (), paths: tuple[str, ...] = ()) -> Service:
    return Service("llm", f"http://127.0.0.1:{model.port}", {"Authorization": f"Bearer {KEY}"}, methods, paths)


def test_a_client_inside_needs_an_address_and_no_key(docker_env: Make, model: Upstream) -> None:
    env = docker_env(limits=SMALL, network=Network.none(), services=[llm(model)])
    code = (
        "import json, urllib.request as r\n"
        "data = json.dumps({'model': 'm', 'messages': [{'role': 'user', 'content': 'x' * 3_000_000}]}).encode()\n"
        "asked = r.Request('http://llm.internal/v1/chat/completions', data, {'Authorization': 'Bearer of-the-sandbox'})\n"
        "print(json.load(r.urlopen(asked))['choices'][0]['message']['content'])\n"
    )
    env.write("client.py", code).unwrap()
    said = env.run("python3 client.py 2>&1").unwrap().output
    assert said == f"3000000 characters; your key is {'*' * len(KEY)}\n"
    assert model.keys == [f"Bearer {KEY}"]
    assert "http://llm.internal/" in env.describe()["network"]
    assert eventually(lambda: any(c.sent_bytes > 3_000_000 for c in env.connections))
    assert [(c.host, c.port, c.rule, c.outcome) for c in env.connections] == [
        ("llm.internal", 80, "service", "allowed")
    ]


def test_answers_stream_and_large_ones_come_whole(docker_env: Make, model: Upstream) -> None:
    env = docker_env(limits=SMALL, services={"llm": llm(model)})
    code = (
        "import json, urllib.request as r\n"
        "data = json.dumps({'stream': True, 'messages': []}).encode()\n"
        "told = False\n"
        "with r.urlopen(r.Request('http://llm.internal/v1/chat/completions', data)) as answer:\n"
        "    for line in answer:\n"
        "        if line.strip(): print(line.decode().strip())\n"
        "        if not told: told = r.urlopen('http://llm.internal/v1/has-first-line').read()  # the server waits for it\n"
    )
    env.write("client.py", code).unwrap()
    said = env.run("python3 client.py 2>&1").unwrap().output
    assert said.endswith("data: [DONE]\n"), said
    assert KEY not in said
    assert '"Hel"' in said
    assert env.run("curl -sS http://llm.internal/v1/large | wc -c").unwrap().output.strip() == str(50 << 20)
    many = "for i in $(seq 40); do curl -sS http://llm.internal/v1/x$i -o x$i & done; wait; cat x* | grep -o '/v1/x[0-9]*' | wc -l"
    assert env.run(many).unwrap().output.strip() == "40"


def test_the_command_whose_request_is_refused_is_told_what_and_what_is_open(docker_env: Make, model: Upstream) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        down = Service("down", f"http://127.0.0.1:{nobody.getsockname()[1]}", {"X-Key": KEY})
        env = docker_env(limits=SMALL, services=[llm(model, methods=("GET",), paths=("/v1/*",)), down])
        refused = env.run("for i in 1 2; do curl -sS -X POST http://llm.internal/v1/x; done; curl -sS http://llm.internal/admin")
        assert [(n.code, n.message, n.hint) for n in refused.notices] == [
            ("service_refused",
             "llm.internal refused POST /v1/x, 2 times: POST is not one of the methods that are open: GET.",
             "Use only GET, or say at the end that the task needs more; asking again does not help."),
            ("service_refused",
             "llm.internal refused GET /admin: /admin is not one of the paths that are open: /v1/*.",
             "Ask for /v1/*; asking again does not help."),
        ]  # fmt: skip
        failed = env.run("curl -sS http://down.internal/x; python3 -c 'print(1)'")
    (notice,) = failed.notices
    assert notice.code == "service_failed"
    assert notice.message.startswith("down.internal could not serve GET /x: ConnectError: ")
    assert not env.run("curl -sS http://llm.internal/v1/x").notices


def test_a_path_that_holds_a_secret_is_masked_however_it_is_cut(docker_env: Make, model: Upstream) -> None:
    env = docker_env(limits=SMALL, services=[llm(model, paths=("/v1/*",))])
    env.secret("TOKEN", "topsecret-0123")
    asked = " ".join(f"http://llm.internal/{'x' * before}$TOKEN" for before in range(190, 240, 3))
    answer = env.run(f"curl -sSi {asked}")
    assert "***TOKEN***" in answer.unwrap().output
    told = answer.to_text() + " ".join(f"{one.why} {one.host}" for one in env.connections)
    assert "tops" not in told


def test_what_is_narrowed_is_refused_with_words_and_a_secret_is_masked_whoever_prints_it(
    docker_env: Make, model: Upstream
) -> None:
    env = docker_env(limits=SMALL, services=[llm(model, methods=("GET",), paths=("/v1/*",))])
    said = (
        env.run("curl -sS -X POST -d x http://llm.internal/v1/x; curl -sS --path-as-is http://llm.internal/v1/../admin")
        .unwrap()
        .output
    )
    assert "POST is not one of the methods that are open: GET" in said
    assert "not a plain path" in said
    assert env.run(f"echo {KEY}; echo {KEY} | base64").unwrap().output == "***llm***\n" * 2
    assert not model.keys
    refused = (
        env.run("curl -sS -i http://llm.internal:8080/ 2>&1; curl -sS http://other.internal/ 2>&1").unwrap().output
    )
    assert "200" not in refused


def test_an_upstream_that_is_not_there_is_told(docker_env: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    env = docker_env(limits=SMALL, services=[Service("llm", f"http://127.0.0.1:{port}")])
    said = env.run("curl -sS -i http://llm.internal/").unwrap().output
    assert said.startswith("HTTP/1.1 502 llm.internal could not be asked: ConnectError")


def test_forks_and_kept_sandboxes_have_them(docker_env: Make, model: Upstream, tmp_path: Path) -> None:
    env = docker_env(limits=SMALL, services=[llm(model)])
    asking = "curl -sS http://llm.internal/v1/x | grep -c '\\*\\*\\*'"
    assert env.run(asking).unwrap().output == "1\n"
    [fork] = env.fork().unwrap().environments
    with fork:
        assert fork.run(asking).unwrap().output == "1\n"
    kept = docker_env(limits=SMALL, services=[llm(model)], keep=True, keep_seconds=60.0)
    owner = kept
    try:
        kept.close()
        with pytest.raises(SandboxError) as unknown:
            DockerEnvironment.attach(kept.container_id, services=[Service("other", "http://127.0.0.1:1")])
        assert unknown.value.code == "invalid_configuration"
        assert "does not know other.internal" in unknown.value.message
        assert unknown.value.hint == "It knows llm.internal: bring only those, or make another sandbox."
        with pytest.raises(SandboxError, match="does not know packages"):
            DockerEnvironment.attach(kept.container_id, cache=PackageCache(tmp_path, pypi="", npm="http://127.0.0.1:1"))
        owner = DockerEnvironment.attach(kept.container_id)
        refused = owner.run("curl -sSi -m 5 http://llm.internal/v1/x")
        why = "the sandbox was made with llm.internal, and who attached to it did not bring that along"
        assert refused.unwrap().output.startswith(f"HTTP/1.1 403 llm.internal:80 is refused by the sandbox: {why}")
        assert [(n.code, n.message, n.hint) for n in refused.notices] == [
            ("network_denied", f"A connection to llm.internal:80 was refused: {why}.",
             WITHOUT),
        ]  # fmt: skip
        assert owner.describe()["network"].endswith("did not bring it along: llm.internal.")
        owner.close()
        owner = DockerEnvironment.attach(kept.container_id, services=[llm(model)])
        assert owner.run(asking).unwrap().output == "1\n"
        assert owner.run(f"echo {KEY}").unwrap().output == "***llm***\n"
    finally:
        owner.remove()


def test_the_command_line_has_services_and_writes_connections(model: Upstream, tmp_path: Path) -> None:
    log = tmp_path / "connections.jsonl"
    command = [
        "run", "--service", f"llm=http://127.0.0.1:{model.port}",
        "--service-header", "llm:Authorization=Bearer LLM_KEY", "--network-log", str(log), "--",
        "sh", "-c", "curl -sS http://llm.internal/v1/x; curl -sS http://evil.test/",
    ]  # fmt: skip
    ran = run_gamebox(*command, env={**os.environ, "LLM_KEY": KEY})
    assert "/v1/x" in ran.stdout, ran.stderr
    assert KEY not in ran.stdout
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {(one["host"], one["outcome"], one["rule"]) for one in lines} == {
        ("llm.internal", "allowed", "service"), ("evil.test", "denied", ""),
    }  # fmt: skip
    assert KEY not in log.read_text(encoding="utf-8")


def test_no_thread_or_task_is_left(docker_env: Make, model: Upstream) -> None:
    others = set(threading.enumerate())
    env = docker_env(limits=SMALL, services=[llm(model)])
    env.run("curl -sS http://llm.internal/v1/large | sleep 60", background=True).unwrap()
    assert eventually(lambda: bool(env._network.streams is not None and env._network.streams.busy))
    env.close()
    assert not [t for t in set(threading.enumerate()) - others if t.name == "gamebox-streams"]


class UpstreamProxy(socketserver.StreamRequestHandler):
    """CONNECT, for those who know the password."""

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.rfile.readline()
        getattr(self.server, "asked").append(head)  # noqa: B009
        if b"Proxy-Authorization: Basic dXNlcjpwYXNz" not in head:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        port = int(head.split()[1].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port)) as far:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            pair = [self.connection, far]
            while True:
                for sock in select.select(pair, [], [])[0]:
                    data = sock.recv(65536)
                    if not data:
                        return
                    (far if sock is self.connection else self.connection).sendall(data)


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of its own authority for api.example.com."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=api.example.com", "-addext", "subjectAltName=DNS:api.example.com,IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context


def test_an_upstream_with_a_certificate_of_the_house_behind_a_company_proxy(
    docker_env: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, context = certificate(tmp_path)
    upstream, proxy = Upstream(context), socketserver.ThreadingTCPServer(("127.0.0.1", 0), UpstreamProxy)
    proxy.daemon_threads = True
    proxy.asked = []  # type: ignore[attr-defined]
    headers = {"Authorization": f"Bearer {KEY}"}
    with served(upstream), served(proxy):
        trusted = Service("trusted", f"https://127.0.0.1:{upstream.port}", headers, ca_bundle=str(bundle))
        untrusted = Service("untrusted", f"https://127.0.0.1:{upstream.port}", headers)
        env = docker_env(limits=SMALL, services=[trusted, untrusted])
        assert "*" * len(KEY) in env.run("curl -sS http://trusted.internal/v1/x").unwrap().output
        said = env.run("curl -sS http://untrusted.internal/v1/x").unwrap().output
        assert "CERTIFICATE_VERIFY_FAILED" in said
        monkeypatch.setenv("https_proxy", f"http://user:pass@127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.setenv("no_proxy", "")
        far = Service("far", f"https://api.example.com:{upstream.port}", headers, ca_bundle=str(bundle))
        behind = docker_env(limits=SMALL, services=[far])
        assert "/v1/x" in behind.run("curl -sS http://far.internal/v1/x").unwrap().output
        assert KEY.encode() not in b"".join(proxy.asked)  # type: ignore[attr-defined]
        assert b"CONNECT api.example.com:" in proxy.asked[0]  # type: ignore[attr-defined]
