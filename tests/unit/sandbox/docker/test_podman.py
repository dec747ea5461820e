"""Engines that differ: what Podman answers, read as what it means, and engines that are reached over ssh."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import stat
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import docker
import docker.errors
import pytest
import requests

from sandbox.docker.container.create import OWNER_LABEL, owner
from sandbox.docker.container.disks.disk import remove_unused_volumes
from sandbox.docker.engine import over_ssh, podman
from sandbox.docker.engine.client import connect, is_local, is_missing, is_podman
from sandbox.docker.engine.events import SANDBOX_LABEL, EngineEvents
from sandbox.docker.kept import inventory, kept, orphans
from sandbox.errors import ErrorCode, SandboxError

_STATES = ("created", "running", "paused", "exited", "stopped", "stopping", "removing")


class Engine(BaseHTTPRequestHandler):
    """Answers as Podman 4.3.1 was recorded to."""

    protocol_version = "HTTP/1.1"
    removed: list[str]
    containers: list[dict[str, Any]]

    def _answer(self, body: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("Libpod-API-Version", "4.3.1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        """The ping, and every volume that matches one of the filters or another."""
        if self.path.endswith("/_ping"):
            self._answer("OK")
        elif self.path.endswith("/version"):
            self._answer('{"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}')
        elif "/containers/json" in self.path:
            self._list_containers(parse_qs(urlsplit(self.path).query))
        elif "/events" in self.path:
            assert "label" not in self.path
            labels = f'"{SANDBOX_LABEL}": "x", "exitCode": "137"'
            events = [("die", labels), ("remove", labels), ("die", '"exitCode": "0"')]
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for (action, said), ident in zip(events, ("ours", "ours", "theirs"), strict=True):
                line = f'{{"Type": "container", "Action": "{action}", "Actor": {{"ID": "{ident}", "Attributes": {{{said}}}}}}}\n'
                self.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())
            self.wfile.write(b"0\r\n\r\n")
        else:
            ours = f'{{"Name": "ours", "Labels": {{"{SANDBOX_LABEL}": "gamebox-0"}}}}'
            theirs = '{"Name": "somebody-elses", "Labels": {}}, {"Name": "bare", "Labels": null}'
            self._answer(f'{{"Volumes": [{ours}, {theirs}]}}')

    def _list_containers(self, query: dict[str, list[str]]) -> None:
        """List running ones, unless all are asked for; a state that it does not know is an error."""
        asked = json.loads(query.get("filters", ["{}"])[0]).get("status")
        states = asked or [*_STATES] if query.get("all") == ["1"] else ["running"]
        if unknown := [state for state in states if state not in _STATES]:
            self._answer(json.dumps({"message": f"unknown container state: {unknown[0]}: invalid argument"}), 500)
            return
        self._answer(json.dumps([each for each in self.containers if each["State"] in states]))

    def do_DELETE(self) -> None:
        """Remove a volume, or a container: not while it is paused."""
        name = self.path.partition("?")[0].rpartition("/")[2]
        if any(each["Id"] == name and each["State"] == "paused" for each in self.containers):
            self._answer(json.dumps({"message": f"sending signal to container {name}: container state improper"}), 500)
            return
        self.removed.append(name)
        self._answer("", 204)

    def do_POST(self) -> None:
        """Wake a container."""
        name = self.path.rpartition("/unpause")[0].rpartition("/")[2]
        for each in self.containers:
            each["State"] = "running" if each["Id"] == name else each["State"]
        self._answer("", 204)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        """A socket has no address."""
        return ""


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture
def client(tmp_path: Path) -> Iterator[docker.DockerClient]:
    Engine.removed, Engine.containers = [], []
    with _Server(str(tmp_path / "podman.sock"), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = connect(address=f"unix://{tmp_path}/podman.sock")
        yield made
        made.close()
        server.shutdown()


def test_no_volume_of_others_is_removed(client: docker.DockerClient) -> None:
    """Podman lists volumes that match any of several filters: all unused ones, whoever they belong to."""
    assert is_podman(client)
    remove_unused_volumes(client)
    assert Engine.removed == ["ours"]


def _container(number: int, state: str, owner: str) -> dict[str, Any]:
    name = f"gamebox-{number:016x}"
    labels = {SANDBOX_LABEL: name, OWNER_LABEL: owner}
    return {"Id": f"{number:064x}", "Names": [f"/{name}"], "Image": "image", "State": state, "Labels": labels, "Created": 1}


def test_paused_sandboxes_are_listed(client: docker.DockerClient) -> None:
    """Podman lists running containers alone where it is not asked for others."""
    mine = owner(os.getpid())
    Engine.containers = [_container(1, "running", mine), _container(2, "paused", mine), _container(3, "exited", mine)]
    assert [each.status for each in inventory.sandboxes(client)] == ["running", "paused"]
    assert len(inventory.sandboxes(client, every=True)) == 3
    with pytest.raises(SandboxError) as refused:
        kept.find(client, f"{2:064x}")
    assert "is not kept" in refused.value.message, refused.value


def test_a_paused_one_of_a_dead_process_is_swept(client: docker.DockerClient) -> None:
    """Podman refused it while it was paused, and the sweep left it."""
    mine = owner(os.getpid())
    dead = f"{mine.rpartition('/')[0]}/1"  # this number, of another process
    Engine.containers = [_container(1, "paused", mine), _container(2, "paused", dead)]
    orphans.sweep(client)
    assert f"{2:064x}" in Engine.removed
    assert f"{1:064x}" not in Engine.removed


def test_its_events_are_those_of_sandboxes(client: docker.DockerClient) -> None:
    events = EngineEvents(client)
    fate = events.fate("ours", 10, lambda fate: fate.removed)
    assert (fate.died, fate.removed, fate.exit_code) == (True, True, 137)
    assert not events.fate("theirs", 0).died


def test_limits_that_its_root_may_set(client: docker.DockerClient) -> None:
    named = {str(each.name): int(each.hard or 0) for each in podman.ulimits(client, 1024)}
    assert named["nofile"] == 1024
    assert 0 < named["nproc"] <= int(Path("/proc/sys/kernel/pid_max").read_text())


@pytest.mark.parametrize(
    ("status", "text", "missing"),
    [
        (404, "No such container: x", True),
        (500, "container x does not exist in database: no such container", True),
        (500, 'no container with name or ID "x" found: no such container', True),
        (500, "the disk is full", False),
        (409, "no such container", False),
    ],
)
def test_a_container_that_is_missing(status: int, text: str, missing: bool) -> None:
    response = requests.Response()
    response.status_code = status
    kind = docker.errors.NotFound if status == 404 else docker.errors.APIError
    assert is_missing(kind("error", response, text)) is missing


# Engines over ssh


def test_the_command_of_ssh() -> None:
    plain = over_ssh.command("ssh://example.com")
    assert plain[-5:] == ["--", "example.com", "docker", "system", "dial-stdio"]
    assert "BatchMode=yes" in plain
    full = over_ssh.command("ssh://me@example.com:2222/run/user/1000/docker's.sock")
    assert full[full.index("-l") + 1] == "me"
    assert full[full.index("-p") + 1] == "2222"
    assert full[full.index("--") :] == [
        "--", "example.com", "docker", "--host", "'unix:///run/user/1000/docker'\\''s.sock'", "system", "dial-stdio",
    ]  # fmt: skip


@pytest.mark.parametrize("address", ["ssh://", "ssh://me:secret@example.com", "ssh://example.com:x", "ssh://example.com?a=b", "ssh://a%00@example.com"])
def test_an_address_that_ssh_cannot_use(address: str) -> None:
    with pytest.raises(SandboxError) as raised:
        over_ssh.command(address)
    assert raised.value.code is ErrorCode.invalid_configuration


def test_a_host_is_never_an_option() -> None:
    argv = over_ssh.command("ssh://-oProxyCommand=x")
    assert argv.index("--") < argv.index("-oProxyCommand=x")


@pytest.mark.parametrize(
    ("address", "host", "user"),
    [("ssh://BuildBox", "BuildBox", None), ("ssh://a%40b@Box:22", "Box", "a@b"), ("ssh://me@[FE80::1]:22", "FE80::1", "me")],
)
def test_names_reach_ssh_as_they_are_meant(address: str, host: str, user: str | None) -> None:
    argv = over_ssh.command(address)
    assert argv[argv.index("--") + 1] == host
    assert (argv[argv.index("-l") + 1] if "-l" in argv else None) == user


def _ssh(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_what_ssh_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ssh(tmp_path, "echo 'me@example.com: Permission denied (publickey).' >&2; exit 255", monkeypatch)
    with pytest.raises(SandboxError) as raised:
        connect(address="ssh://me@example.com")
    assert raised.value.code is ErrorCode.engine_unavailable
    assert "Permission denied (publickey)" in raised.value.message


_MUCH = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2"


def test_an_ssh_that_says_much_is_not_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ssh(tmp_path, f"{_MUCH}; echo 'refused at last' >&2; exit 255", monkeypatch)
    assert over_ssh.explain("ssh://example.com") == "refused at last"
    _ssh(tmp_path, f"{_MUCH}; echo answer", monkeypatch)
    with over_ssh.dial("ssh://example.com") as connection:
        connection.settimeout(20)
        assert connection.recv(6) == b"answer"


def test_an_engine_behind_ssh(client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in the place of ssh connects its standard input and output with the socket, as ``dial-stdio`` does."""
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "def up():\n    while data := os.read(0, 65536): s.sendall(data)\n    s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    _ssh(tmp_path, f"exec {sys.executable} {relay} {tmp_path}/podman.sock", monkeypatch)
    over = connect(address="ssh://example.com")
    try:
        assert is_podman(over)
        assert not is_local(over)
        assert is_local(client)
        assert [each["Name"] for each in over.api.volumes()["Volumes"]] == ["ours", "somebody-elses", "bare"]
    finally:
        over.close()
    with over_ssh.dial("ssh://example.com") as connection:
        connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(12) == b"HTTP/1.1 200"
