"""Ports of a sandbox over HTTP and WebSocket at names of their own: who may reach them, and what passes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from sandbox import AsyncRemoteEnvironment, RemoteEnvironment
from sandbox.network.connections import Connection
from tests.integration.observing import eventually
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess, shared_service

from .api import Api

pytestmark = pytest.mark.engine
SERVER = Path(__file__).parents[2] / "servers/in_sandbox.py"
PORT = 8000
TRY = "python3 -c 'import urllib.request as u; u.urlopen(\"http://{}\")'"


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """Requests to the service that the worker's tests share."""
    with Api(shared_service()) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(api: Api) -> Iterator[str]:
    """A sandbox with a server at PORT."""
    ident = str(api.call("POST", "/sandboxes", {}, status=201)["id"])
    api.http.put(f"/v1/sandboxes/{ident}/files", params={"path": "server.py"}, content=SERVER.read_bytes())
    server = api.run(ident, f"exec python3 server.py {PORT}", background=True)["result"]["id"]
    assert api.call("POST", f"/sandboxes/{ident}/wait_for", {"id": server, "log": "ready"})["tool_executed"]
    yield ident
    api.call("DELETE", f"/sandboxes/{ident}", status=204)


@pytest.fixture(scope="module")
def port(sandbox: str) -> Iterator[httpx.Client]:
    """Requests to the port without a key."""
    service = shared_service()
    headers = {"Host": host_of(sandbox)}
    with httpx.Client(base_url=service.url, headers=headers, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def public(api: Api, sandbox: str) -> Iterator[None]:
    """Everybody may reach the port."""
    api.call("PUT", f"/sandboxes/{sandbox}/ports/{PORT}", {"public": True})
    yield
    api.call("DELETE", f"/sandboxes/{sandbox}/ports/{PORT}", status=204)


def host_of(sandbox: str, port: int = PORT) -> str:
    return f"{port}-{sandbox}.localhost:{shared_service().port}"


def keyed() -> dict[str, str]:
    return {"X-API-Key": shared_service().key}


def refusal(answer: httpx.Response, status: int) -> str:
    """The code of a problem."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    return str(answer.json()["code"])


def raw(sandbox: str, text: str, host: str | None = None) -> socket.socket:
    """A connection on which the head of a request was sent."""
    made = socket.create_connection(("127.0.0.1", shared_service().port), timeout=30)
    made.sendall(text.replace("HOST", host or host_of(sandbox)).replace("\n", "\r\n").encode())
    return made


def received(sock: socket.socket, until: bytes = b"\r\n\r\n") -> bytes:
    data = b""
    while until not in data and (more := sock.recv(65536)):
        data += more
    return data


# --- who may -----------------------------------------------------------------------------------------------------------------


def test_a_port_is_private_until_its_owner_opens_it(api: Api, sandbox: str, port: httpx.Client) -> None:
    path = f"/sandboxes/{sandbox}/ports"
    assert refusal(port.get("/x"), 401) == "unauthorized"
    assert refusal(port.get("/x", headers={"X-API-Key": "e2b_" + "0" * 40}), 401) == "unauthorized"
    assert port.get("/x", headers=keyed()).json()["path"] == "/x"
    assert port.get("/x", headers={"Authorization": f"Bearer {shared_service().key}"}).status_code == 200
    found = api.call("PUT", f"{path}/{PORT}", {"public": True})
    assert found == {"port": PORT, "public": True, "url": f"http://{host_of(sandbox)}/"}
    assert api.call("GET", path)["items"] == [found]
    assert port.get("/x").json()["method"] == "GET"
    api.call("DELETE", f"{path}/{PORT}", status=204)
    assert refusal(port.get("/x"), 401) == "unauthorized"
    assert api.call("GET", path)["items"] == []
    for wrong in ("0", "65536", "-1", "x", "8e3"):
        assert api.call("GET", f"{path}/{wrong}", status=422)["code"] == "invalid_query"


def test_a_key_that_may_only_look_reaches_no_port(api: Api, sandbox: str, port: httpx.Client) -> None:
    made = api.call("POST", "/keys", {"scope": "read"}, status=201)
    assert refusal(port.get("/x", headers={"X-API-Key": made["key"]}), 403) == "forbidden"
    with Api(shared_service(), made["key"]) as reader:
        assert reader.call("GET", f"/sandboxes/{sandbox}/ports")["items"] == []
        assert reader.call("PUT", f"/sandboxes/{sandbox}/ports/1", {"public": True}, status=403)["code"] == "forbidden"
        assert reader.call("POST", f"/sandboxes/{sandbox}/ports/1/tokens", {}, status=403)["code"] == "forbidden"


def test_a_token_is_for_one_port_and_ends_with_its_key(api: Api, sandbox: str, port: httpx.Client) -> None:
    key = api.call("POST", "/keys", {"scope": "use"}, status=201)
    with Api(shared_service(), key["key"]) as user:
        made = user.call("POST", f"/sandboxes/{sandbox}/ports/{PORT}/tokens", {"expires_seconds": 60}, status=201)
    token = {"X-Gamebox-Token": made["token"]}
    assert "x-gamebox-token" not in dict(port.get("/x", headers=token).json()["headers"])
    assert refusal(port.get("/x", headers={**token, "Host": host_of(sandbox, PORT + 1)}), 401) == "unauthorized"
    assert port.get(f"/x?a=1&gamebox_token={made['token']}").json()["path"] == "/x?a=1"
    api.call("DELETE", f"/keys/{key['id']}", status=204)
    assert refusal(port.get("/x", headers=token), 401) == "unauthorized"


def test_a_browser_gets_a_cookie_for_its_token(api: Api, sandbox: str, port: httpx.Client) -> None:
    made = api.call("POST", f"/sandboxes/{sandbox}/ports/{PORT}/tokens", {}, status=201)
    assert made["browser_url"].startswith(f"http://{host_of(sandbox)}/?gamebox_token=")
    page = port.get(f"{made['browser_url'].rpartition('/')[2]}&a=1", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, f"http://{host_of(sandbox)}/?a=1")
    assert (page.headers["referrer-policy"], page.headers["cache-control"]) == ("no-referrer", "no-store")
    set_cookie = page.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= set(set_cookie.split("; "))
    cookie = {"Cookie": f"{set_cookie.partition(';')[0]}; own=1"}
    port.cookies.clear()
    found = dict(port.get("/x", headers=cookie).json()["headers"])
    assert found["cookie"] == "own=1"
    others = {"Origin": "http://8000-other.localhost"}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}
    for other in others:
        assert refusal(port.post("/x", headers={**cookie, **other}), 403) == "origin_refused"


def test_what_is_not_there(api: Api, sandbox: str, port: httpx.Client) -> None:
    unknown = {"Host": host_of("a" * 20)}
    assert refusal(port.get("/x", headers=unknown), 404) == "sandbox_not_found"
    assert refusal(port.get("/x", headers={**unknown, **keyed()}), 404) == "sandbox_not_found"
    assert refusal(port.get("/x", headers={"Host": host_of(sandbox, 99999), **keyed()}), 404) == "invalid_query"
    answer = port.get("/x", headers={"Host": host_of(sandbox, 8001), **keyed()})
    assert refusal(answer, 502) == "port_closed"
    assert answer.json()["detail"] == "Nothing listens on port 8001 of the sandbox."
    assert refusal(port.get("/none", headers=keyed()), 502) == "port_failed"
    with pytest.raises(httpx.RemoteProtocolError):
        port.get("/cut", headers=keyed())
    api.call("POST", f"/sandboxes/{sandbox}/pause")
    try:
        assert refusal(port.get("/x", headers=keyed()), 409) == "sandbox_paused"
    finally:
        api.call("POST", f"/sandboxes/{sandbox}/resume")


# --- what passes -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("public")
def test_headers_go_through_but_for_ours(sandbox: str, port: httpx.Client) -> None:
    sent = {**keyed(), "Authorization": f"Bearer {shared_service().key}", "X-Forwarded-For": "6.6.6.6", "X-Other": "1"}
    answer = port.get("/a%2Fb//c?q=%20", headers=sent)
    found = answer.json()
    got = {name.lower(): value for name, value in found["headers"]}
    assert found["path"] == "/a%2Fb//c?q=%20"
    assert not {"x-api-key", "authorization"} & set(got)
    assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert got["host"] == got["x-forwarded-host"] == host_of(sandbox)
    assert (answer.headers["x-own"], answer.headers["set-cookie"]) == ("yes", "a=b")
    assert not {"x-hop", "x-request-id", "x-content-type-options"} & set(answer.headers)
    assert len(answer.headers.get_list("date")) == 1
    own = port.get("/x", headers={"Authorization": "Basic eDp5", "X-API-Key": "another"}).json()
    assert {("authorization", "Basic eDp5"), ("x-api-key", "another")} <= {(name, value) for name, value in own["headers"]}
    head = port.head("/x")
    assert (head.status_code, head.content, int(head.headers["content-length"]) > 100) == (200, b"", True)


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_are_streamed(port: httpx.Client, *, chunked: bool) -> None:
    data = os.urandom(5_000_000)
    found = port.post("/x", content=iter([data[:1], data[1:]]) if chunked else data).json()
    assert (found["size"], found["digest"]) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.usefixtures("public")
def test_nothing_is_held_back_in_either_direction(sandbox: str) -> None:
    """Each piece comes back before the next one is sent."""
    with raw(sandbox, "POST /stream HTTP/1.1\nHost: HOST\nTransfer-Encoding: chunked\n\n") as sock:
        for text in (b"one", b"two"):
            sock.sendall(b"3\r\n%s\r\n" % text)
            assert text in received(sock, text)
        sock.sendall(b"0\r\nX-Trailer: 2\r\n\r\n")
        assert received(sock, b"0\r\n\r\n").endswith(b"0\r\n\r\n")  # without the trailer, which nobody has asked for
        sock.sendall(f"GET /x HTTP/1.1\r\nHost: {host_of(sandbox)}\r\n\r\n".encode())  # the connection stays
        assert received(sock).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("public")
def test_a_server_may_refuse_a_body_before_it_is_sent(sandbox: str) -> None:
    head = "POST {} HTTP/1.1\nHost: HOST\nContent-Length: 5\nExpect: 100-continue\n\n"
    with raw(sandbox, head.format("/413")) as sock:
        assert received(sock).startswith(b"HTTP/1.1 413 ")
    with raw(sandbox, head.format("/x")) as sock:
        assert received(sock).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"hello")
        assert received(sock).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("public")
def test_a_client_that_leaves_takes_its_connection_along(api: Api, sandbox: str) -> None:
    def connected() -> int:
        """Connections to the port that stand in the sandbox: 1F40 is the port, 01 is ESTABLISHED."""
        return int(api.run(sandbox, "grep -c ' 0100007F:1F40 [^ ]* 01 ' /proc/net/tcp")["result"]["output"])

    with raw(sandbox, "POST /stream HTTP/1.1\nHost: HOST\nTransfer-Encoding: chunked\n\n3\none\n") as sock:
        assert b"one" in received(sock, b"one")
        assert connected() != 0
    assert eventually(lambda: connected() == 0)


UPGRADE = """GET /ws HTTP/1.1
Host: HOST
Connection: keep-alive, Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: KEY
X-Forwarded-For: 6.6.6.6
"""


def upgrade(*more: str) -> str:
    key = base64.b64encode(os.urandom(16)).decode()
    return UPGRADE.replace("KEY", key) + "".join(f"{each}\n" for each in more) + "\n"


def test_the_bytes_of_a_websocket_pass_as_they_are(sandbox: str) -> None:
    with raw(sandbox, upgrade(f"X-API-Key: {shared_service().key}")) as sock:
        answer = received(sock, b"first")
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"x-client: 127.0.0.1\r\n" in answer
        sock.sendall(b"\xff\x00 no frame at all")
        assert received(sock, b"at all") == b"raw \xff\x00 no frame at all"
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(10) == b""
    with raw(sandbox, upgrade()) as sock:
        assert b'"code": "unauthorized"' in received(sock, b"}")
    with raw(sandbox, upgrade(f"X-API-Key: {shared_service().key}"), host_of(sandbox, 8001)) as sock:
        assert b'"code": "port_closed"' in received(sock, b"}")
    with raw(sandbox, upgrade(f"X-API-Key: {shared_service().key}").replace("/ws", "/413")) as sock:
        assert received(sock).startswith(b"HTTP/1.1 413 ")


def test_a_websocket_ends_when_its_port_is_private_again(api: Api, sandbox: str) -> None:
    api.call("PUT", f"/sandboxes/{sandbox}/ports/{PORT}", {"public": True})
    with raw(sandbox, upgrade()) as sock:
        assert received(sock, b"first").startswith(b"HTTP/1.1 101 ")
        api.call("DELETE", f"/sandboxes/{sandbox}/ports/{PORT}", status=204)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


# --- hosts and origins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/v1/whoami", "/v1/sandboxes", "/none", "/v1/sandboxes/x/files?path=y"])
@pytest.mark.parametrize("host", ["evil.example.com", "localhost.example.com", "x.localhost", "8000-x.example.com", "a b", ""])
def test_a_request_for_another_host_is_refused(path: str, host: str) -> None:
    headers = {"Host": host, **keyed()}
    assert refusal(httpx.get(f"{shared_service().url}{path}", headers=headers, trust_env=False), 421) == "wrong_host"


def test_a_name_that_leads_here_is_taken(api: Api) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080"):
        assert api.http.get("/healthz", headers={"Host": host}).status_code == 200


def page_opens(address: str, origin: str) -> Any:
    options: dict[str, Any] = {"additional_headers": keyed(), "origin": origin, "proxy": None}
    return connect(address, **options)


def test_no_page_of_another_host_opens_a_websocket(sandbox: str) -> None:
    service = shared_service()
    place = f"ws://127.0.0.1:{service.port}/v1/sandboxes/{sandbox}"
    for path in ("terminals", f"ports/{PORT}/tunnel"):
        for origin in ("http://evil.example.com", f"http://{host_of(sandbox)}", "null", f"http://127.0.0.1:{service.port + 1}"):
            with pytest.raises(InvalidStatus) as caught:
                page_opens(f"{place}/{path}", origin)
            assert json.loads(caught.value.response.body or b"")["code"] == "origin_refused"
        with page_opens(f"{place}/{path}", service.url):
            pass
        with raw(sandbox, upgrade().replace("/ws", f"/v1/sandboxes/{sandbox}/{path}"), "evil.example.com") as sock:
            assert b'"code": "wrong_host"' in received(sock, b"}")


def test_behind_a_proxy_its_word_counts_for_clients_and_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that setting it does not: see the tests above."""
    (tmp_path / "data").mkdir()
    for name, value in (("BEHIND_PROXY", "127.0.0.0/8"), ("DOMAIN", "example.net"), ("ALLOWED_HOSTS", "gamebox.example.com")):
        monkeypatch.setenv(f"GAMEBOX_SERVICE_{name}", value)
    service = ServiceProcess(tmp_path / "data", "--stop-all").start()
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "6.6.6.6, 192.0.2.9, 127.0.0.7"}
    try:
        with Api(service) as api:
            api.http.headers["Host"] = "gamebox.example.com"
            ident = str(api.call("POST", "/sandboxes", {}, status=201)["id"])
            found = api.call("GET", f"/sandboxes/{ident}/ports/80", headers=said)
            assert found["url"] == f"https://80-{ident}.example.net/"
            api.http.put(f"/v1/sandboxes/{ident}/files", params={"path": "server.py"}, content=SERVER.read_bytes())
            server = api.run(ident, "exec python3 server.py 80", background=True)["result"]["id"]
            assert api.call("POST", f"/sandboxes/{ident}/wait_for", {"id": server, "log": "ready"})["tool_executed"]
            name = f"80-{ident}.example.net"
            got = dict(api.http.get("/x", headers={**said, "Host": name}).json()["headers"])
            assert (got["x-forwarded-for"], got["x-forwarded-proto"], got["x-forwarded-port"]) == ("192.0.2.9", "https", "443")
            with socket.create_connection(("127.0.0.1", service.port), timeout=30) as sock:
                head = upgrade(f"X-API-Key: {service.key}").replace("6.6.6.6", "192.0.2.9").replace("HOST", name)
                sock.sendall(head.replace("\n", "\r\n").encode())
                assert b"x-client: 192.0.2.9\r\n" in received(sock, b"first")
            assert refusal(api.http.get("/healthz", headers={"Host": "example.net"}), 421) == "wrong_host"
    finally:
        service.stop()


# --- tunnels -----------------------------------------------------------------------------------------------------------------


def tunnel(sandbox: str, port: int = PORT, key: str | None = None) -> Any:
    service = shared_service()
    place = f"ws://127.0.0.1:{service.port}/v1/sandboxes/{sandbox}/ports/{port}/tunnel"
    return connect(place, additional_headers={"X-API-Key": key or service.key}, proxy=None, compression=None)


def test_a_tunnel_carries_bytes_and_each_end(sandbox: str) -> None:
    with tunnel(sandbox) as wire:
        wire.send(b"GET /x HTTP/1.0\r\nHost: y\r\n\r\n")
        data = b""
        while isinstance(message := wire.recv(), bytes):
            data += message
        assert (data.startswith(b"HTTP/1.1 200 "), json.loads(message)) == (True, {"type": "end"})
        wire.send('{"type":"end"}')
        with pytest.raises(ConnectionClosed) as caught:
            wire.recv()
    assert str(caught.value.rcvd) == "1000 (OK) ended"


def test_a_tunnel_says_why_it_ends(api: Api, sandbox: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        tunnel(sandbox, 8001)
    assert json.loads(refused.value.response.body or b"")["code"] == "port_closed"
    with pytest.raises(InvalidStatus) as refused:
        tunnel("a" * 20)
    assert refused.value.response.status_code == 404
    with tunnel(sandbox) as wire:
        wire.send("nonsense")
        assert closed(wire) == 1007
    with tunnel(sandbox) as wire:
        wire.send(bytes((1 << 20) + 1))
        assert closed(wire) == 1009
    key = api.call("POST", "/keys", {"scope": "use"}, status=201)
    with tunnel(sandbox, key=key["key"]) as wire:
        api.call("DELETE", f"/keys/{key['id']}", status=204)
        assert closed(wire) == 1008
    server = api.run(sandbox, "exec python3 server.py 8002", background=True)["result"]["id"]
    assert api.call("POST", f"/sandboxes/{sandbox}/wait_for", {"id": server, "log": "ready"})["tool_executed"]
    with tunnel(sandbox, 8002) as wire:
        wire.send(b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
        api.call("POST", f"/sandboxes/{sandbox}/kill", {"id": server})
        assert closed(wire) in (4502, 1000)


def closed(wire: Any) -> int:
    """The code with which the service closes."""
    try:
        while True:
            wire.recv()
            wire.send('{"type": "end"}')
    except ConnectionClosed as error:
        return 1006 if error.rcvd is None else int(error.rcvd.code)


def test_more_connections_than_a_sandbox_may_have(api: Api, sandbox: str) -> None:
    socks: list[socket.socket] = []
    try:
        def open_one() -> None:
            socks.append(raw(sandbox, upgrade(f"X-API-Key: {shared_service().key}")))

        threads = [threading.Thread(target=open_one) for _ in range(128)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(received(each, b"first").startswith(b"HTTP/1.1 101 ") for each in socks)
        with raw(sandbox, upgrade(f"X-API-Key: {shared_service().key}")) as sock:
            assert b'"code": "too_many_connections"' in received(sock, b"}")
        with pytest.raises(InvalidStatus) as refused:
            tunnel(sandbox)
        assert refused.value.response.status_code == 429
        assert api.run(sandbox, "echo on")["result"]["output"] == "on\n"
    finally:
        for each in socks:
            each.close()


# --- the other direction -------------------------------------------------------------------------------------------------------


def test_the_connections_that_a_sandbox_has_tried(api: Api, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}/connections"
    before = len(api.call("GET", path)["items"])
    program = "import urllib.request as u; u.urlopen('http://example.com:81/')"
    with api.events(path, method="GET") as events:
        api.run(sandbox, f'python3 -c "{program}"')
        said = next(events)
        tried = (said.data["host"], said.data["port"], said.data["outcome"])
        assert (said.name, tried) == ("connection", ("example.com", 81, "denied"))
        assert said.id == said.data["id"]
    with api.events(path, method="GET", after=before) as events:
        assert next(events) == said
    items = api.call("GET", path)["items"]
    assert items[before] == said.data
    with RemoteEnvironment.attach(sandbox, url=shared_service().url, api_key=shared_service().key) as env:
        assert env.connections[before].why == said.data["why"]
        assert len(env.connections) == len(items)
    assert env.connections == ()


def test_connections_are_passed_on_as_they_end(sandbox: str) -> None:
    service = shared_service()
    heard: list[str] = []

    def listen(connection: Connection) -> None:
        heard.append(f"{connection.host} {connection.outcome}")

    with RemoteEnvironment.attach(sandbox, url=service.url, api_key=service.key) as env:
        env.secret("HOST", "s3cr3t-host")
        env.run(TRY.format("before.example.com"))
        env.on_connection = listen
        env.run(TRY.format("s3cr3t-host.example.com"))
        assert eventually(lambda: heard == ["***HOST***.example.com denied"], 30)
        env.run(TRY.format("last.example.com"))
        env.on_connection = None  # is told of what has ended
        env.run(TRY.format("after.example.com"))
    assert heard[1:] == ["last.example.com denied"]

    async def use() -> None:
        env = await AsyncRemoteEnvironment.attach(sandbox, url=service.url, api_key=service.key)
        env.on_connection = listen
        await env.run(TRY.format("loop.example.com"))
        await env.close()

    asyncio.run(use())
    assert heard[2:] == ["loop.example.com denied"]


def test_connections_are_written_to_a_file(sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = shared_service()
    monkeypatch.setenv("GAMEBOX_URL", service.url)
    monkeypatch.setenv("GAMEBOX_API_KEY", service.key)
    log = tmp_path / "log"
    run_gamebox("run", "--in", sandbox, "--network-log", log, "--", "sh", "-c", TRY.format("written.example.com"))
    (written,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (written["host"], written["outcome"]) == ("written.example.com", "denied")


def test_a_forwarded_port_is_closed_without_a_word(sandbox: str, caplog: pytest.LogCaptureFixture) -> None:
    service = shared_service()
    with RemoteEnvironment.attach(sandbox, url=service.url, api_key=service.key) as env:
        forward = env.forward(PORT).unwrap()
        with socket.create_connection((forward.host, forward.port), timeout=30) as sock:
            sock.sendall(b"POST /stream HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
            assert b"one" in received(sock, b"one")
            forward.close()
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    assert [each for each in caplog.records if each.name == "asyncio"] == []
