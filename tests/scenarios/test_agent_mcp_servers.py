"""Our MCP client against servers of the official package: inside a sandbox, on standard streams, and over HTTP on loopback."""

from __future__ import annotations

import http.server
import importlib.metadata
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.tools.mcp import McpKit
from sandbox import DockerEnvironment, LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.errors import SandboxError
from tests.integration.observing import within

SERVERS = Path(__file__).parents[1] / "servers"
OFFICIAL = SERVERS / "mcp_official.py"


@dataclass
class Where:
    """A setting, as much of one as the kit needs."""

    environment: Environment
    mcp_urls: tuple[str, ...] = field(default=())


class Used:
    """A kit of one server, and calls of its tools by their names there."""

    def __init__(self, environment: Environment, declared: dict[str, Any], *urls: str) -> None:
        self.environment = environment
        self.kit = McpKit(Where(environment, urls), {"notes": declared})

    def call(self, tool: str, **args: Any) -> dict[str, Any]:
        action = next(a for a in self.kit.actions() if a.metadata["mcp_tool"] == tool)
        return self.environment.execute_action(action, args)

    def call_for(self, seconds: float, tool: str, /, **args: Any) -> dict[str, Any]:
        """As if that had been declared as its timeout: for all calls it must be long enough for a busy machine."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.kit._servers[0], "_seconds", seconds)
            return self.call(tool, **args)

    def does_all(self) -> None:
        """What every server of the official package must do by our client."""
        names = [action.name for action in self.kit.actions()]
        assert names == [f"notes_{tool}" for tool in ("add", "end", "fail", "keep", "wait", "where")]
        assert self.call("add", a=2, b=3)["result"] == {"structured": {"result": 5}, "text": "5"}
        note = {"text": "héllo\n\u2028", "authors": [{"name": "Ann"}]}
        assert self.call("keep", note=note)["result"]["structured"] == {"result": [note]}
        assert len(self.call("keep", note=note)["result"]["structured"]["result"]) == 2, "it keeps its state"
        failed = self.call("fail")
        assert failed["code"] == "tool_error"
        assert "fail" in failed["error"]
        wrong = self.call("add", a="x", b=3)
        assert wrong["tool_executed"] is False
        keep = next(a for a in self.kit.actions() if a.name == "notes_keep")
        assert "$ref" not in str(keep.parameters)
        assert "authors" in str(keep.parameters)


def test_on_standard_streams() -> None:
    with LocalEnvironment() as env:
        used = Used(env, {"command": f"exec {sys.executable} {OFFICIAL}", "timeout_seconds": 15})
        used.does_all()
        slow = used.call_for(1.0, "wait", seconds=30)
        assert (slow["code"], slow["effects"]) == ("timeout", "unknown")
        assert used.call("wait", seconds=0)["result"] == {"structured": {"result": "waited"}, "text": "waited"}
        dead = used.call("end")
        assert dead["code"] == "command_ended"
        assert "exit code 7" in dead["error"]
        assert "ended as asked" in dead["error"]
        assert used.call("add", a=1, b=1)["tool_executed"] is True
        used.kit.close()
        assert not [c for c in env.processes().unwrap().commands if c.running]


def packages_of(name: str, found: set[str]) -> set[str]:
    """The distributions that ``name`` needs here."""
    wanted = re.split(r"[ ;<>=!~\[(]", name)[0]
    key = re.sub(r"[-_.]+", "-", wanted).lower()
    if key in found:
        return found
    try:
        needed = importlib.metadata.requires(wanted) or []
    except importlib.metadata.PackageNotFoundError:
        return found
    found.add(key)
    for requirement in needed:
        if "extra ==" not in requirement:
            packages_of(requirement, found)
    return found


def packed(target: Path) -> None:
    """What the official package needs, copied from where it is installed."""
    found: set[str] = set()
    for name in ("mcp", "cryptography"):  # the latter is an extra of what the former needs
        packages_of(name, found)
    for name in found:
        for file in importlib.metadata.distribution(name).files or ():
            source, place = Path(str(file.locate())), target / str(file)
            if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)


@pytest.mark.engine
def test_in_a_sandbox(docker_env: Callable[..., DockerEnvironment], tmp_path: Path) -> None:
    """The server, all it imports, and all it does are inside, where there is no network."""
    env = docker_env()
    inside = env.run("python3 -c 'import sys; print(*sys.version_info[:2])'").unwrap().output.split()
    if inside != [str(number) for number in sys.version_info[:2]]:
        pytest.skip(f"the packages of this Python do not run in that of the image, {'.'.join(inside)}")
    packed(tmp_path / "packages")
    env.upload(tmp_path / "packages", "packages").unwrap()
    env.upload(OFFICIAL, "server.py").unwrap()
    used = Used(env, {"command": "exec python3 server.py", "env": {"PYTHONPATH": "packages"}, "timeout_seconds": 20})
    used.does_all()
    assert used.call("where")["result"]["text"] == "1000 /workspace True"
    assert env.run("echo beside").unwrap().output == "beside\n"
    assert used.call("end")["code"] == "command_ended"
    used.kit.close()
    assert not [c for c in env.processes().unwrap().commands if c.running]


@pytest.mark.engine
def test_a_server_that_does_harm_does_it_in_the_sandbox(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env()
    env.upload(SERVERS / "mcp_hostile.py", "hostile.py").unwrap()
    used = Used(env, {"command": "exec python3 hostile.py endless"})
    assert "without a line end" in used.call("echo", text="x")["error"]
    used.kit.close()
    fine = Used(env, {"command": "exec python3 hostile.py noise"})
    assert fine.call("echo", text="still here")["result"] == "still here"
    env.close()
    assert fine.call("echo", text="x")["tool_executed"] is False


@pytest.fixture(params=["", "--json"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of the official package on loopback, that answers with streams of events or with JSON."""
    command = [sys.executable, str(OFFICIAL), "--http", *request.param.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.kill()


def test_over_http(address: str) -> None:
    used = Used(Environment(), {"url": address, "timeout_seconds": 15}, address)
    used.does_all()
    assert used.call_for(1.0, "wait", seconds=30)["code"] == "timeout"
    assert used.call("add", a=1, b=1)["tool_executed"] is True
    assert used.call("end")["code"] == "connection_failed"
    used.kit.close()
    used.kit.close()


class Harmful(http.server.BaseHTTPRequestHandler):
    """Answers every request as its path says."""

    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        """See the base class."""
        asked = self.rfile.read(int(self.headers["content-length"]))
        what = self.path.strip("/")
        if what == "pings" and b'"result"' in asked:
            time.sleep(20)  # it asked, and does not take the answer
            return
        if what in ("head", "late"):
            self._slow(what)
            return
        kind = "text/event-stream" if what in ("event", "drip", "pings", "others") else "application/json"
        self.send_response({"redirect": 302, "denied": 401}.get(what, 200))
        if what == "redirect":
            self.send_header("location", "http://127.0.0.1:9/elsewhere")
        if what == "packed":
            self.send_header("content-encoding", "gzip")
        self.send_header("content-type", kind)
        self.end_headers()
        try:
            self._body(what)
        except OSError:
            pass  # the client has had enough

    def _slow(self, what: str) -> None:
        """A head that never ends, or one word just before the time is over and nothing more."""
        try:
            if what == "late":
                self.wfile.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                time.sleep(0.8)
                self.wfile.write(b": not yet\n")
                time.sleep(20)
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            for number in range(200):
                self.wfile.write(f"x-{number}: y\r\n".encode())
                time.sleep(0.1)
        except OSError:
            pass  # the client has had enough

    def _body(self, what: str) -> None:
        messages = {"pings": b'"id": 7, "method": "ping"', "others": b'"id": 999, "result": {}'}
        if what in messages:
            for _ in range(200):
                self.wfile.write(b'data: {"jsonrpc": "2.0", ' + messages[what] + b"}\n\n" * (50 if what == "pings" else 1))
                time.sleep(0.1)
        if what == "drip":
            for _ in range(100):
                self.wfile.write(b": still here\n\n")
                time.sleep(0.1)
        elif what == "event":
            self.wfile.write(b"data: ")
        if what in ("large", "event"):
            for _ in range(100):
                self.wfile.write(b"x" * (1 << 20))
        elif what == "nothing":
            self.wfile.write(b"<html>")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def harmful() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Harmful) as listener:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("large", "more than 4 MiB"), ("event", "more than 4 MiB"), ("nothing", "not a message"), ("redirect", "status 302"),
        ("denied", "status 401"), ("packed", "compressed"), ("drip", "within 1 seconds"),
        ("pings", "within 1 seconds"), ("others", "within 1 seconds"), ("head", "within 1 seconds"), ("late", "within 1 seconds"),
    ],
)  # fmt: skip
def test_an_address_that_does_harm(harmful: str, path: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.mcp.client.START_SECONDS", 1.0 if "within" in words else 30.0)
    url = f"{harmful}/{path}"

    def use() -> None:
        with pytest.raises(SandboxError, match=words):
            Used(Environment(), {"url": url}, url)

    within(2.5 if "within" in words else 60.0, use)
