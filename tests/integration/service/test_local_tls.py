"""A service with a certificate of its own: clients that trust it, over HTTPS and WebSockets, before and after kill -9."""

from __future__ import annotations

import asyncio
import shlex
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox import AsyncRemoteEnvironment, RemoteEnvironment
from sandbox.errors import SandboxError
from tests.integration.own_engine import IMAGE
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
DOMAIN = "sandboxes.localhost"
# With something before it, it is longer than a name may be.
NOWHERE = ".".join(["x" * 60] * 4)


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(place / "tls-data", "--tls-local", "--stop-all").start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def trusted(service: ServiceProcess) -> dict[str, Any]:
    """Options of a client that trusts the service."""
    return {"url": service.url, "api_key": service.key, "ca_file": service.folder / "tls/ca.pem"}


@pytest.fixture(scope="module")
def sandbox(trusted: dict[str, Any]) -> Iterator[RemoteEnvironment]:
    with RemoteEnvironment(IMAGE, profile="conformance", **trusted) as made:
        yield made


def test_programs_of_ours_trust_it(service: ServiceProcess, sandbox: RemoteEnvironment, trusted: dict[str, Any]) -> None:
    assert sandbox.run("echo over TLS").unwrap().output == "over TLS\n"
    server = sandbox.run("echo from the port | nc -l -p 8000", background=True).unwrap()
    assert sandbox.wait_for(id=server.id, port=8000).ok
    with sandbox.forward(8000).unwrap() as port, socket.create_connection((port.host, port.port), timeout=30) as tunnel:
        assert tunnel.recv(100) == b"from the port\n"

    async def run() -> str:
        env = await AsyncRemoteEnvironment.attach(sandbox.id, **trusted)
        try:
            return str((await env.run("echo in a loop")).unwrap().output)
        finally:
            await env.close()

    assert asyncio.run(run()) == "in a loop\n"
    with pytest.raises(SandboxError) as caught:
        RemoteEnvironment(url=service.url, api_key=service.key).start()
    assert "certificate verify failed" in caught.value.message
    assert "GAMEBOX_CA_FILE" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"no certificate\n"])
def test_a_file_without_authorities_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SandboxError) as caught:
        RemoteEnvironment(url="https://127.0.0.1:1", api_key="e2b_00", ca_file=path)
    assert str(path) in caught.value.message
    assert "GAMEBOX_CA_FILE" in str(caught.value)


def test_clients_of_e2b_find_each_sandbox_by_its_name(service: ServiceProcess, place: Path) -> None:
    options = ["serve", "--tls-local", "--data", str(service.folder), "--port", str(service.port), "--print-env"]
    lines = run_gamebox(*options, "e2b").stdout.splitlines()
    found = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert found["E2B_DOMAIN"] == f"{DOMAIN}:{service.port}"
    context = ssl.create_default_context(cafile=found["SSL_CERT_FILE"])
    with httpx.Client(verify=context, trust_env=False, timeout=60) as http:

        def ask(method: str, name: str, path: str, **options: Any) -> httpx.Response:
            """Send a request as one does who resolves the name."""
            headers = {"Host": f"{name}.{found['E2B_DOMAIN']}", **options.pop("headers", {})}
            names = {"sni_hostname": f"{name}.{DOMAIN}"}
            return http.request(method, f"{found['E2B_API_URL']}{path}", headers=headers, extensions=names, **options)

        key, body = {"X-API-KEY": found["E2B_API_KEY"]}, {"templateID": "base", "timeout": 60}
        limits = {"ceiling": {"largest": {"memory_bytes": SMALL["memory_bytes"]}}}
        assert http.patch(f"{service.url}/v1/tenants/default", headers=key, json=limits).status_code == 200
        made = ask("POST", "api", "/v2/sandboxes", headers=key, json=body).json()
        assert made["domain"] == found["E2B_DOMAIN"]
        envd, token = f"49983-{made['sandboxID']}", {"X-Access-Token": made["envdAccessToken"]}
        assert ask("GET", envd, "/health", headers=token).status_code == 204
        sent = ask("POST", envd, "/files?path=a.txt", headers=token, files={"file": ("a.txt", b"sent")})
        assert sent.status_code == 200, sent.text
        assert ask("GET", envd, "/files?path=a.txt", headers=token).text == "sent"
        assert ask("GET", f"8000-{made['sandboxID']}", "/").status_code == 502
        assert ask("DELETE", "api", f"/sandboxes/{made['sandboxID']}", headers=key).status_code == 204
    ours = dict(shlex.split(line)[1].split("=", 1) for line in run_gamebox(*options, "gamebox").stdout.splitlines())
    assert ours["GAMEBOX_CA_FILE"] == str(service.folder / "tls/ca.pem")


def test_after_kill_9_clients_trust_what_comes_after(service: ServiceProcess, sandbox: RemoteEnvironment) -> None:
    service.kill()
    service.start()
    assert sandbox.run("echo again").unwrap().output == "again\n"


def test_check_says_what_programs_have_to_trust(service: ServiceProcess) -> None:
    shown = run_gamebox("serve", "--check", "--tls-local", "--domain", NOWHERE, "--data", str(service.folder)).stdout
    assert f"8000-sandbox.{NOWHERE} does not resolve" in shown
    assert f"The next start makes a new authority. Programs have to trust {service.folder / 'tls/ca.pem'}" in shown
