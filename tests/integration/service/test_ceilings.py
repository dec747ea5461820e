"""What a tenant's rules open over HTTP: public addresses, whatever is written, and neither the service nor its host."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox.guest.protocol.constants import PROXY_PORT
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

EVERYTHING = {"mode": "open", "rules": ["*:*", "0.0.0.0/0:*", "[::/0]:*"]}


class Page(http.server.BaseHTTPRequestHandler):
    """A server of this host."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "14")
        self.end_headers()
        self.wfile.write(b"page of a host")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server on all addresses of this host; the operator opens it at 127.0.0.1 alone."""
    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def open_service(engine: OwnEngine, place: Path, tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[ServiceProcess]:
    """A service whose operator has opened one address of this host, and closed one port everywhere."""
    folder = tmp_path_factory.mktemp("open")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GAMEBOX_SERVICE_OPEN_NETWORKS", f"127.0.0.1:{port},10.99.0.0/16:5432")
        patched.setenv("GAMEBOX_SERVICE_CLOSED_HOSTS", "*:25")
        made = ServiceProcess(folder / "data", "--stop-all").start()
        yield made
        made.stop()


def through(api: Api, ident: str, *hosts: str, path: str = "/v1/whoami") -> dict[str, str]:
    """Ask the sandbox's proxy for a tunnel to each of these and send a request through it; return what came back for each."""
    request, proxy = f"GET {path} HTTP/1.0\\r\\n\\r\\n", f"busybox nc 127.0.0.1 {PROXY_PORT}"
    requests = "".join(f"printf 'CONNECT {host} HTTP/1.1\\r\\n\\r\\n{request}' | {proxy}; echo '//'; " for host in hosts)
    answer = api.run(ident, f"{{ {requests} }} | cat -v")
    return dict(zip(hosts, answer["result"]["output"].split("//\n"), strict=False))


def test_what_is_literal_is_refused_at_once(open_service: ServiceProcess) -> None:
    refused: list[dict[str, Any]] = [
        {"network": {"mode": "allow", "rules": ["example.com", rule]}}
        for rule in ("127.0.0.1", "2130706433", "[::ffff:10.0.0.1]:443", "10.0.0.0/8", "169.254.169.254", "[fd00:ec2::254]",
                     "10.99.0.1:22", "example.com:25", f"127.0.0.1:{open_service.port}")
    ]  # fmt: skip
    refused += [
        {"services": [{"name": "x", "upstream": url}]}
        for url in ("http://127.0.0.1", "http://169.254.169.254/latest", "https://[::1]", "http://0x7f.1", "http://x.example:25")
    ]
    with Api(open_service) as api:
        for body in refused:
            problem = api.call("POST", "/sandboxes", {"image": IMAGE, "limits": SMALL, **body}, status=403)
            assert problem["code"] == "forbidden_by_operator"
            asked = body["network"]["rules"][1] if "network" in body else "x"
            assert problem["asked"] == asked
            assert repr(asked) in problem["detail"]
        assert api.call("GET", "/sandboxes")["items"] == []
        for body in ({"network": {"mode": "bridge"}}, {"network": {"names": {"a.example": "10.0.0.1"}}}):
            assert api.call("POST", "/sandboxes", body, status=422)["code"] == "invalid_body"


def test_no_way_to_the_host_or_the_service_in_any_mode(open_service: ServiceProcess, port: int) -> None:
    own, name = f"127.0.0.1:{open_service.port}", socket.gethostname()
    closed = (
        own, f"0x7f.1:{open_service.port}", f"0.0.0.0:{open_service.port}", f"[::ffff:127.0.0.1]:{open_service.port}",
        f"[::1]:{open_service.port}", f"127.0.0.2:{port}", f"localhost:{open_service.port}",
        f"LOCALHOST.:{open_service.port}", f"{name}:{open_service.port}", "169.254.169.254:80",
        "[fd00:ec2::254]:80", "10.0.0.1:80", "172.17.0.1:2375",
        "mail.example.com:25",
    )  # fmt: skip
    with Api(open_service) as api:
        ident = api.create(image=IMAGE, network=EVERYTHING)
        for host, answer in through(api, ident, *closed).items():
            assert answer.startswith("HTTP/1.1 403 "), (host, answer)
            assert "the operator" in answer, (host, answer)
            assert "page of" not in answer
        notices = api.run(ident, f"printf 'CONNECT {own} HTTP/1.1\\r\\n\\r\\n' | busybox nc 127.0.0.1 {PROXY_PORT}")["notices"]
        assert [each["code"] for each in notices] == ["network_denied"]
        assert "the operator does not allow it" in notices[0]["hint"]
        # What the operator has opened can be named.
        opened = f"127.0.0.1:{port}"
        api.call("PATCH", f"/sandboxes/{ident}", {"network": {"mode": "allow", "rules": [opened]}})
        assert "page of a host" in through(api, ident, opened)[opened]
        problem = api.call("PATCH", f"/sandboxes/{ident}", {"network": {"mode": "open", "rules": ["10.0.0.1"]}}, status=403)
        assert problem["asked"] == "10.0.0.1"
        assert api.call("GET", f"/sandboxes/{ident}")["network"]["rules"] == [opened]
        fork = api.call("POST", f"/sandboxes/{ident}/fork", {}, status=201)["items"][0]["id"]
        open_service.kill()
    open_service.start()
    with Api(open_service) as api:
        for each in (ident, fork):
            assert "page of a host" in through(api, each, opened)[opened]
            api.call("PATCH", f"/sandboxes/{each}", {"network": EVERYTHING})
            answers = through(api, each, own, f"127.0.0.2:{port}")
            assert [answer[:13] for answer in answers.values()] == ["HTTP/1.1 403 "] * 2, answers
        # The service that was started again has counted what it refused, and what it let through, of both sandboxes.
        assert eventually(lambda: connections_of(open_service) == {"allowed": 2.0, "denied": 4.0}), connections_of(open_service)
        assert numbers_of(open_service)["gamebox_egress_denied_total"] == 4
        assert numbers_of(open_service)['gamebox_egress_bytes_total{direction="received"}'] >= 2 * len("page of a host")


def numbers_of(service: ServiceProcess) -> dict[str, float]:
    text = httpx.get(f"{service.url}/metrics", headers={"X-API-Key": service.key}).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def connections_of(service: ServiceProcess) -> dict[str, float]:
    """Return the connections of all sandboxes by their outcomes."""
    name = "gamebox_egress_connections_total{outcome="
    return {key[len(name) + 1 : -2]: value for key, value in numbers_of(service).items() if key.startswith(name)}
