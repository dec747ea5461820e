"""The wire of E2B over plain HTTP: what its clients send, on an image with nothing but a shell."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.observing import eventually
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@dataclass
class Client:
    """Requests as a client of E2B sends them: the key for the API, the token of one sandbox for what is in it."""

    http: httpx.Client
    key: str
    made: dict[str, Any]

    @property
    def id(self) -> str:
        """The sandbox."""
        return str(self.made["sandboxID"])

    def api(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.request(method, path, headers={"X-API-KEY": self.key}, json=body, **options)

    def envd(self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        token = {"X-Access-Token": self.made["envdAccessToken"], "E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49983"}
        return self.http.request(method, path, headers={**token, **(headers or {})}, **options)

    def call(self, method: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        answer = self.envd("POST", f"/{method}", headers, json=body or {})
        return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["code"])

    def stream(self, method: str, body: Any, headers: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the messages of a stream; the last one is its end."""
        text = json.dumps(body).encode()
        token = {"X-Access-Token": self.made["envdAccessToken"], "Content-Type": "application/connect+json", **(headers or {})}
        sent = b"\0" + len(text).to_bytes(4, "big") + text
        with self.http.stream("POST", f"/{method}", headers=token, content=sent) as answer:
            assert answer.status_code == 200, answer.read()
            data = b""
            for piece in answer.iter_bytes():
                data += piece
                while len(data) >= 5 and len(data) >= 5 + (size := int.from_bytes(data[1:5], "big")):
                    message = json.loads(data[5 : 5 + size])
                    yield {"last": message} if data[0] == 2 else message["event"]
                    data = data[5 + size :]

    def start(self, command: str, **fields: Any) -> Iterator[dict[str, Any]]:
        process = {"cmd": "/bin/sh", "args": ["-c", command], **fields.pop("process", {})}
        headers = fields.pop("headers", None)
        return self.stream("process.Process/Start", {"process": process, "stdin": False, **fields}, headers)

    def run(self, command: str, **fields: Any) -> tuple[bytes, bytes, dict[str, Any]]:
        """Return the output of both streams, and the end."""
        out, err = b"", b""
        end: dict[str, Any] = {}
        for event in self.start(command, **fields):
            data = event.get("data", {})
            out += base64.b64decode(data.get("stdout", data.get("pty", "")))
            err += base64.b64decode(data.get("stderr", ""))
            end = event.get("end", end)
            if "last" in event and not end:
                return out, err, event["last"]
        return out, err, end


@pytest.fixture(scope="module")
def client(service: ServiceProcess, api: Api) -> Iterator[Client]:
    with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as http:
        made = Client(http, service.key, {})
        tenant = api.call("GET", "/whoami")["tenant"]
        api.call("PATCH", f"/tenants/{tenant}", {"ceiling": {"largest": {"memory_bytes": SMALL["memory_bytes"]}}})
        body = {"templateID": "base", "timeout": 300, "metadata": {"a b": "c&d"}, "envVars": {"COLOUR": "red"}}
        answer = made.api("POST", "/v2/sandboxes", body)
        assert answer.status_code == 201, answer.text
        made.made = answer.json()
        yield made
        assert made.api("DELETE", f"/sandboxes/{made.id}").status_code == 204
        assert made.api("DELETE", f"/sandboxes/{made.id}").status_code == 404
        gone = made.envd("GET", "/health")
        assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")


def test_lists_and_times(client: Client) -> None:
    found = client.api("GET", f"/sandboxes/{client.id}").json()
    assert (found["state"], found["templateID"], found["metadata"]) == ("running", "base", {"a b": "c&d"})
    (listed,) = client.api("GET", "/v2/sandboxes", params={"metadata": "a%20b=c%26d", "state": "running"}).json()
    assert listed["sandboxID"] == client.id
    assert client.api("GET", "/v2/sandboxes", params={"metadata": "a=b"}).json() == []
    assert client.api("POST", f"/sandboxes/{client.id}/timeout", {"timeout": 600}).status_code == 204
    client.api("POST", f"/v2/sandboxes/{client.id}/connect", {"timeout": 60})
    assert client.api("GET", f"/sandboxes/{client.id}").json()["endAt"] > found["endAt"]
    (metrics,) = client.api("GET", f"/sandboxes/{client.id}/metrics").json()
    assert metrics["memTotal"] == SMALL["memory_bytes"]
    for body, status in (
        ({"templateID": "none"}, 404),
        ({"templateID": "base", "timeout": 0}, 400),
        ({"templateID": "base", "autoPauseMemory": False}, 400),
    ):
        answer = client.api("POST", "/v2/sandboxes", body)
        assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert client.api("GET", "/secrets").status_code == 501


def test_commands(client: Client) -> None:
    out, err, end = client.run("echo $COLOUR $MORE; pwd; cat; echo oh >&2; exit 3", process={"envs": {"MORE": "1"}})
    assert (out, err) == (b"red 1\n/home/user\n", b"oh\n")
    assert end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert client.run("kill -TERM $$")[2]["status"] == "signal: terminated"
    assert client.run("pwd", process={"cwd": "/nowhere"})[2]["error"]["code"] == "invalid_argument"
    assert client.run("sleep 60", headers={"Connect-Timeout-Ms": "300"})[2]["error"]["code"] == "deadline_exceeded"
    assert client.run("id -u", headers={"Authorization": f"Basic {base64.b64encode(b'root:').decode()}"})[0] == b"0\n"

    events = client.start("read line; echo got $line; cat", stdin=True, tag="mine")
    pid = next(events)["start"]["pid"]
    (listed,) = client.call("process.Process/List")["processes"]
    assert (listed["pid"], listed["tag"], listed["config"]["cmd"]) == (pid, "mine", "/bin/sh")
    assert client.run(f"kill -0 {pid}")[2]["exitCode"] == 0, "the id is the one that it has in the sandbox"
    assert client.call("process.Process/SendInput", _input(pid, b"one\n")) == {}
    assert base64.b64decode(next(events)["data"]["stdout"]) == b"got one\n"
    assert client.call("process.Process/CloseStdin", {"process": {"tag": "mine"}}) == {}
    assert [*events][-2:] == [{"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}, {"last": {}}]

    events = client.start("sleep 60 & sleep 60")
    pid = next(events)["start"]["pid"]
    assert client.call("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}) == {}
    assert next(events)["end"] == {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}
    assert client.call("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}) == (404, "not_found")
    assert client.envd("POST", "/process.Process/List", {"Content-Type": "application/proto"}, content=b"").status_code == 415
    assert client.call("process.Process/Freeze") == (501, "unimplemented")


def _input(pid: int, data: bytes, kind: str = "stdin") -> dict[str, Any]:
    return {"process": {"pid": pid}, "input": {kind: base64.b64encode(data).decode()}}


def test_terminals(client: Client) -> None:
    events = client.start("stty size; read x; stty size; exit 5", pty={"size": {"rows": 20, "cols": 70}})
    pid = next(events)["start"]["pid"]
    assert base64.b64decode(next(events)["data"]["pty"]) == b"20 70\r\n"
    resized = {"process": {"pid": pid}, "pty": {"size": {"rows": 30, "cols": 90}}}
    assert client.call("process.Process/Update", resized) == {}
    assert client.call("process.Process/SendInput", _input(pid, b"\n", "pty")) == {}
    rest = [*events]
    printed = b"".join(base64.b64decode(each["data"]["pty"]) for each in rest if "data" in each)
    assert b"30 90\r\n" in printed
    assert rest[-2]["end"]["exitCode"] == 5
    assert client.call("process.Process/List") == {"processes": []}


def test_files(client: Client) -> None:
    form = [("file", ("a/one.txt", b"1" * 70_000)), ("file", ('b "2".txt', b"two"))]
    written = client.envd("POST", "/files", {"X-Metadata-Author": "me"}, files=form).json()
    assert [each["path"] for each in written] == ["/home/user/a/one.txt", '/home/user/b "2".txt']
    entry = client.call("filesystem.Filesystem/Stat", {"path": "a/one.txt"})["entry"]
    assert (entry["size"], entry["type"], entry["permissions"]) == ("70000", "FILE_TYPE_FILE", "-rw-r--r--")
    assert entry["metadata"] == {"author": "me"}
    raw = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    sent = client.envd("POST", "/files", raw, params={"path": "~/a/zip"}, content=gzip.compress(b"z" * 3_000_000))
    assert (sent.status_code, sent.json()[0]["name"]) == (200, "zip")
    assert client.envd("GET", "/files", {"Accept-Encoding": "gzip"}, params={"path": "a/zip"}).content == b"z" * 3_000_000
    part = client.envd("GET", "/files", {"Range": "bytes=1-3"}, params={"path": "a/one.txt"})
    assert (part.status_code, part.content) == (206, b"111")
    assert client.envd("GET", "/files", params={"path": "/proc/version"}).content.startswith(b"Linux")
    for path, status in (("nothing", 404), ("a", 400), ("/proc/1/mem", 403)):
        assert client.envd("GET", "/files", params={"path": path}).status_code == status, path
    for data in (b"", b"--x\r\n", b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nhalf"):
        cut = client.envd("POST", "/files", {"Content-Type": "multipart/form-data; boundary=x"}, content=data)
        assert cut.status_code == 400, data
    assert client.call("filesystem.Filesystem/Stat", {"path": "f"}) == (404, "not_found"), "half a file is none"

    fs = "filesystem.Filesystem"
    assert client.call(f"{fs}/MakeDir", {"path": "d/e"})["entry"]["type"] == "FILE_TYPE_DIRECTORY"
    assert client.call(f"{fs}/MakeDir", {"path": "d/e"}) == (409, "already_exists")
    assert client.call(f"{fs}/MakeDir", {"path": "a/zip"}) == (400, "invalid_argument")
    assert client.call(f"{fs}/Move", {"source": "a/zip", "destination": "new/zip"})["entry"]["path"] == "/home/user/new/zip"
    assert client.call(f"{fs}/Move", {"source": "a/zip", "destination": "x"}) == (404, "not_found")
    names = [each["path"] for each in client.call(f"{fs}/ListDir", {"path": "/home/user/d", "depth": 2})["entries"]]
    assert names == ["/home/user/d/e"]
    assert client.call(f"{fs}/ListDir", {"path": "new/zip"}) == (400, "invalid_argument")
    assert [client.call(f"{fs}/Remove", {"path": "new"}) for _ in range(2)] == [{}, {}]
    assert client.call(f"{fs}/CreateWatcher", {"path": "d"}) == (400, "failed_precondition"), "this image has no python3"


def test_signed_urls(client: Client) -> None:
    client.envd("POST", "/files", {"Content-Type": "application/octet-stream"}, params={"path": "signed"}, content=b"s")

    def get(until: int, path: str = "signed") -> httpx.Response:
        text = f"signed:read::{client.made['envdAccessToken']}:{until}"
        signature = "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        return client.http.get("/files", params={"path": path, "signature": signature, "signature_expiration": str(until)})

    assert get(int(time.time()) + 60).content == b"s"
    assert get(int(time.time()) - 60).json() == {"code": 401, "message": "signature is already expired"}
    assert get(int(time.time()) + 60, "other").status_code == 401


@pytest.fixture
def mortal(place: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that can be killed."""
    made = ServiceProcess(tmp_path / "data", "--stop-all").start()
    yield made
    made.stop()


def test_commands_are_known_after_a_restart(mortal: ServiceProcess) -> None:
    """Also what they print and how they have ended."""
    with httpx.Client(base_url=mortal.url, timeout=60, trust_env=False) as http:
        made = Client(http, mortal.key, {})
        made.made = made.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300}).json()
        said = "echo before; until test -e go; do sleep 0.1; done; echo after >&2; exit 5"
        running = made.start(said, tag="mine", process={"args": ["-c", said, "an arg"]})
        pid = next(running)["start"]["pid"]
        assert base64.b64decode(next(running)["data"]["stdout"]) == b"before\n"
        terminal = next(made.start("cat; exit 4", pty={"size": {"rows": 20, "cols": 70}}))["start"]["pid"]
        mortal.kill()
        with pytest.raises(httpx.TransportError):
            list(running)
        mortal.start()
        listed = {each["pid"]: each for each in made.call("process.Process/List")["processes"]}
        assert set(listed) == {pid, terminal}
        assert listed[pid] == {"config": {"cmd": "/bin/sh", "args": ["-c", said, "an arg"], "envs": {}}, "pid": pid, "tag": "mine"}
        again = made.stream("process.Process/Connect", {"process": {"tag": "mine"}})
        assert next(again) == {"start": {"pid": pid}}
        assert made.run("touch go")[2]["exitCode"] == 0
        assert base64.b64decode(next(again)["data"]["stderr"]) == b"after\n"
        assert [each.get("end", {}).get("exitCode") for each in again] == [5, None]
        late = made.stream("process.Process/Connect", {"process": {"pid": pid}})
        assert [each.get("end", {}).get("exitCode") for each in late] == [None, 5, None], "its end is known for a while"
        screen = made.stream("process.Process/Connect", {"process": {"pid": terminal}})
        next(screen)
        typed = {"process": {"pid": terminal}, "input": {"pty": base64.b64encode(b"hello\n\x04").decode()}}
        assert made.call("process.Process/SendInput", typed) == {}
        printed = list(screen)
        assert b"hello" in b"".join(base64.b64decode(each["data"]["pty"]) for each in printed if "data" in each)
        assert printed[-2]["end"]["exitCode"] == 4
        assert made.call("process.Process/List") == {"processes": []}
        assert made.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


def test_ports(client: Client) -> None:
    made = client.api("POST", "/sandboxes", {"templateID": "base", "timeout": 60, "network": {"allowPublicTraffic": False}}).json()
    assert made["domain"] == f"localhost:{client.http.base_url.port}"

    def ask(ident: str, headers: dict[str, str]) -> tuple[int, str]:
        answer = client.http.get("/", headers={"Host": f"8000-{ident}.localhost", **headers})
        found = answer.json()
        assert (found["code"], found["sandboxId"], found["port"]) == (answer.status_code, ident, 8000)
        return answer.status_code, found["message"]

    closed = (502, "The sandbox is running but port is not open")
    token = (403, "The sandbox is open only to requests with its traffic access token")
    assert ask(client.id, {}) == closed, "it is open to everybody, and nothing listens"
    assert ask(made["sandboxID"], {}) == token
    assert ask(made["sandboxID"], {"E2b-Traffic-Access-Token": "gbt_x"}) == token
    assert ask(made["sandboxID"], {"E2b-Traffic-Access-Token": made["trafficAccessToken"]}) == closed
    assert client.api("POST", f"/sandboxes/{made['sandboxID']}/pause", {}).status_code == 204
    assert ask(made["sandboxID"], {"E2b-Traffic-Access-Token": made["trafficAccessToken"]}) == (502, "The sandbox was not found")
    assert client.api("DELETE", f"/sandboxes/{made['sandboxID']}").status_code == 204


def test_the_api_has_a_name_of_its_own(client: Client) -> None:
    headers = {"Host": f"api.localhost:{client.http.base_url.port}", "X-API-KEY": client.key}
    assert client.http.get("/v2/sandboxes", headers=headers).json()[0]["sandboxID"] == client.id
    for path in ("/v1/whoami", "/metrics", "/healthz", "/process.Process/List", "//sandboxes", "/"):
        assert client.http.get(path, headers=headers).status_code == 501, path
    assert client.http.get("/v2/sandboxes", headers={**headers, "Host": "other.localhost"}).status_code == 421


def test_a_server_sees_the_host_that_was_asked_for(client: Client) -> None:
    network = {"allowPublicTraffic": True, "maskRequestHost": "localhost:${PORT}"}
    body = {"templateID": "base", "timeout": 60, "network": network}
    other = Client(client.http, client.key, client.api("POST", "/sandboxes", body).json())
    try:
        answer = "HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok"
        events = other.start(f"printf '{answer}' | nc -l -p 8000 > /tmp/asked")
        next(events)
        host = f"8000-{other.id}.localhost"
        assert eventually(lambda: client.http.get("/x", headers={"Host": host}).text == "ok")
        assert eventually(lambda: b"Host: localhost:8000" in other.run("cat /tmp/asked")[0])
        assert f"X-Forwarded-Host: {host}".encode() in other.run("cat /tmp/asked")[0]
        assert other.api("PUT", f"/sandboxes/{other.id}/network", {"maskRequestHost": "a"}).status_code == 400
        assert other.api("PUT", f"/sandboxes/{other.id}/network", {}).status_code == 204
        assert other.api("GET", f"/sandboxes/{other.id}").json()["network"] == network
    finally:
        other.api("DELETE", f"/sandboxes/{other.id}")
    for wrong in ("a b", "a\r\nX: y", "http://a", "a:${PORT}${PORT}", "x" * 301):
        refused = client.api("POST", "/sandboxes", {"templateID": "base", "network": {"maskRequestHost": wrong}})
        assert (refused.status_code, "maskRequestHost" in refused.json()["message"]) == (400, True), wrong


def test_pauses(client: Client) -> None:
    asked = {"templateID": "base", "timeout": 60, "autoPause": True, "autoResume": {"enabled": True}}
    made = client.api("POST", "/sandboxes", asked)
    other = Client(client.http, client.key, made.json())
    try:
        path = f"/sandboxes/{other.id}"
        assert [other.api("POST", f"{path}/pause", {}).status_code for _ in range(2)] == [204, 409]
        assert other.api("POST", f"{path}/connect", {"timeout": 30}).status_code == 201
        assert other.api("POST", f"{path}/timeout", {"timeout": 0}).status_code == 204
        assert eventually(lambda: other.api("GET", path).json()["state"] == "paused"), "at its end it is paused"
        assert other.run("echo woken")[0] == b"woken\n"
        assert other.api("GET", path).json()["state"] == "running"
        assert other.api("POST", f"{path}/pause", {}).status_code == 204
        answer = client.http.get("/", headers={"Host": f"8000-{other.id}.localhost"})
        assert answer.json()["message"] == "The sandbox is running but port is not open", "a request to a port wakes it, too"
        assert other.api("GET", path).json()["state"] == "running"
        events = other.start("sleep 60")
        next(events)
        assert other.api("DELETE", path).status_code == 204
        with pytest.raises(httpx.RemoteProtocolError):  # cut, as clients expect it
            next(events)
    finally:
        other.api("DELETE", f"/sandboxes/{other.id}")


def test_the_image_of_the_code_interpreter_is_made_by_the_operator(client: Client) -> None:
    answer = client.api("POST", "/v2/sandboxes", {"templateID": "code-interpreter-v1"})
    assert (answer.status_code, "gamebox setup --code-interpreter" in answer.json()["message"]) == (404, True)


def test_code_takes_the_token_of_the_sandbox(client: Client) -> None:
    named = {"E2b-Sandbox-Id": client.id, "E2b-Sandbox-Port": "49999"}
    token = {"X-Access-Token": client.made["envdAccessToken"]}

    def ask(path: str, **headers: str) -> httpx.Response:
        return client.http.post(path, headers={**named, **{name.replace("_", "-"): value for name, value in headers.items()}})

    missing = ask("/execute", **token)
    assert (missing.status_code, "no code interpreter" in missing.json()["detail"]) == (501, True)
    answer = "HTTP/1.1 200 OK\\r\\nSet-Cookie: a=b\\r\\nCache-Control: max-age=9\\r\\nContent-Length: 2\\r\\n\\r\\nok"
    events = client.start(f"while :; do printf '{answer}' | nc -l -p 49999 >> /tmp/asked || exit 1; done")
    next(events)
    assert eventually(lambda: ask("/contexts").text == "ok")
    wrong = token["X-Access-Token"].replace(client.id, f"{client.id}x")
    for headers in ({}, {"X-Access-Token": wrong}, {"E2b-Traffic-Access-Token": "gbt_x"}):
        for path in ("/execute", "//execute", "/contexts/../execute", "/contexts%2f..%2fexecute", "/"):
            refused = ask(path, **headers)
            assert (refused.status_code, "access token" in refused.json()["message"]) == (403, True), (path, headers)
        host = {"Host": f"49999-{client.id}.localhost"}
        assert client.http.post("/execute", headers={**host, **headers}).status_code == 403
    assert eventually(lambda: ask("/execute", **token).text == "ok"), "one program listens after the other"
    assert eventually(lambda: ask("/execute", X_API_KEY=client.key).text == "ok")
    stranger = ask("/contexts")
    assert eventually(lambda: ask("/contexts").text == "ok")
    while stranger.text != "ok":
        stranger = ask("/contexts")
    assert "set-cookie" not in stranger.headers, "it would be one of the service's own name"
    assert stranger.headers.get_list("cache-control") == ["no-store"]
    assert stranger.headers["content-security-policy"] == "sandbox"
    seen = client.run("cat /tmp/asked")[0]
    assert b"POST /execute" in seen
    assert b"gbe_" not in seen
    assert client.key.encode() not in seen
    for half in ({"E2b-Sandbox-Port": "49999"}, {**named, "E2b-Sandbox-Port": "x"}, {**named, "E2b-Sandbox-Id": "../x"}):
        assert client.http.post("/execute", headers=half).status_code == 400
    assert client.http.post("/execute", headers={**named, "E2b-Sandbox-Id": "unknown"}).status_code == 404
