"""What docker-py raises becomes a SandboxError: against real sockets, with an engine's real words."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests.exceptions
import urllib3.exceptions

from sandbox.docker.engine import client as engine
from sandbox.docker.images.runtime import RuntimeVolume
from sandbox.docker.setup import provision
from sandbox.docker.setup.provision import ensure_engine
from sandbox.errors import ErrorCode, SandboxError

VERSION = {"ApiVersion": "1.41", "Version": "20.10.24"}
Speaker = Callable[[int, str], str]


def answer(status: int, message: str) -> bytes:
    body = json.dumps(VERSION if status == 200 else {"message": message}).encode()
    head = [
        f"HTTP/1.1 {status} X",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


@pytest.fixture
def speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Speaker]:
    """An engine on a socket that tells its version and answers everything else with one status and message.

    Status 0: it takes the connection and says nothing.
    """
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "engine.sock"
    listener.bind(str(path))
    listener.listen()
    held: list[socket.socket] = []
    said: list[tuple[int, str]] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            request = connection.recv(65536)
            if not request:  # it only knocked
                continue
            if b"/version" in request.split(b"\r\n", 1)[0] and said[0][0]:
                connection.sendall(answer(200, ""))
            elif said[0][0]:
                connection.sendall(answer(*said[0]))
            else:
                continue
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)

    def start(status: int, message: str) -> str:
        said.append((status, message))
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        return str(path)

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)
    for connection in held:
        connection.close()


def ask(timeout_seconds: int = 60) -> None:
    """One call to the engine that DOCKER_HOST names."""
    client = engine.connect(timeout_seconds=timeout_seconds)
    try:
        with engine.translated():
            client.api.create_container("some-image", command=["true"])
    finally:
        client.close()


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (404, "No such image: some-image:latest", ErrorCode.image_not_found),
        (400, "invalid reference format", ErrorCode.invalid_configuration),
        (403, "authorization denied by plugin", ErrorCode.engine_permission_denied),
        (409, 'Conflict. The container name "/x" is already in use', ErrorCode.engine_error),
        (500, "mkdir /var/lib/docker/overlay2/x: no space left on device", ErrorCode.host_disk_full),
        (400, "failed to create shim task: OCI runtime create failed: exec: not found", ErrorCode.start_failed),
        (500, "OCI runtime create failed: container_linux.go:380: exec format error", ErrorCode.start_failed),
        (500, "something else", ErrorCode.engine_error),
    ],
)
def test_an_answer_with_an_error_keeps_the_engines_words(
    speaks: Speaker, status: int, message: str, code: ErrorCode
) -> None:
    speaks(status, message)
    with pytest.raises(SandboxError) as caught:
        ask()
    assert caught.value.code is code
    assert caught.value.hint
    assert (message in caught.value.message) or code is ErrorCode.image_not_found


def test_a_missing_image_is_named(speaks: Speaker) -> None:
    speaks(404, "No such image: some-image:latest")
    with pytest.raises(SandboxError) as caught:
        ask()
    assert "'some-image:latest'" in caught.value.message
    assert "docker pull some-image:latest" in caught.value.hint


def test_a_mute_engine_is_a_timeout_with_unknown_effects(speaks: Speaker) -> None:
    path = speaks(0, "")
    with pytest.raises(SandboxError) as caught:
        ask(timeout_seconds=1)
    assert caught.value.code is ErrorCode.engine_timeout
    assert caught.value.effects == "unknown"
    assert path in caught.value.message


@pytest.mark.parametrize("dead", [False, True], ids=["no socket", "nobody listens"])
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: bool) -> None:
    path = tmp_path / "engine.sock"
    if dead:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    calls: list[Callable[[], object]] = [engine.connect, lambda: ensure_engine(print)]
    for call in calls:
        with pytest.raises(SandboxError) as caught:
            call()
        assert caught.value.code is ErrorCode.engine_unavailable
        assert str(path) in caught.value.message
        assert "DOCKER_HOST" in caught.value.hint


def test_an_engine_that_was_named_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    said: list[str] = []
    with pytest.raises(SandboxError):
        ensure_engine(said.append)
    assert said == []


def test_an_engine_over_ssh_that_does_not_answer_is_named_with_what_ssh_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", "ssh://someone@example.com")
    with pytest.raises(SandboxError) as caught:
        engine.connect()
    assert caught.value.code is ErrorCode.engine_unavailable
    assert "ssh://someone@example.com" in caught.value.message
    assert "Host key verification failed" in caught.value.message
    assert "`ssh`" in caught.value.hint


def test_a_forbidden_socket() -> None:
    refused = urllib3.exceptions.ProtocolError("Connection aborted.", PermissionError(13, "Permission denied"))
    with pytest.raises(SandboxError) as caught, engine.translated():
        raise requests.exceptions.ConnectionError(refused)
    assert caught.value.code is ErrorCode.engine_permission_denied
    assert "uid" in caught.value.message


def test_a_wait_that_ran_out_is_a_timeout() -> None:
    inner = urllib3.exceptions.ProtocolError("Connection aborted.", TimeoutError("Read timed out."))
    with pytest.raises(SandboxError) as caught, engine.translated():
        raise requests.exceptions.ConnectionError(inner)  # what docker-py's wait() raises, and not ReadTimeout
    assert caught.value.code is ErrorCode.engine_timeout


def test_our_own_errors_and_bugs_pass_unchanged() -> None:
    ours = SandboxError(ErrorCode.setup_failed, "x")
    with pytest.raises(SandboxError) as caught, engine.translated():
        raise ours
    assert caught.value is ours
    with pytest.raises(KeyError), engine.translated():
        raise KeyError("a bug")


def test_one_client_per_address_and_timeout(speaks: Speaker) -> None:
    speaks(500, "x")
    first = engine.connect(timeout_seconds=7)
    assert engine.connect(timeout_seconds=7) is first
    assert engine.connect(timeout_seconds=8) is not first
    engine.connect(timeout_seconds=8).close()
    first.close()


THERE = "images gamebox/base and gamebox/e2b, runtime volume gamebox-runtime-1"


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({}, [f"nothing to do: Docker Engine 27.1 at unix:///x.sock, {THERE}"]),
        ({"gamebox/e2b": "building gamebox/e2b"}, ["building gamebox/e2b"]),
    ],
)
def test_setup_says_what_is_there_if_nothing_was_missing(
    monkeypatch: pytest.MonkeyPatch, steps: dict[str, str], told: list[str]
) -> None:
    """Finding UX 14."""

    def ensure_image(_: object, name: str, *, report: Callable[[str], None], **__: object) -> None:
        if name in steps:
            report(steps[name])

    facts = engine.EngineFacts("27.1", "1.46", "", "", "", 2, "", False, 0, 1)
    for name, value in (
        ("ensure_engine", lambda _: None), ("_has_image", lambda _: True), ("ensure_image", ensure_image),
        ("ensure_runtime", lambda *_, **__: RuntimeVolume("gamebox-runtime-1")), ("describe", lambda _: facts),
        ("engine_address", lambda: "unix:///x.sock"),
    ):  # fmt: skip
        monkeypatch.setattr(provision, name, value)
    lines: list[str] = []
    provision.setup(lines.append)
    assert lines == told


def test_where_no_engine_answers_the_hint_is_one_that_a_reader_without_a_makefile_can_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Finding UX 14."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxError) as caught:
        engine.connect()
    assert "`gamebox setup` as root" in caught.value.hint


INFO = 'time="2026-11-23T04:20:55Z" level=info msg="Channel Connectivity change to TRANSIENT_FAILURE" module=grpc'
CAUSE = "failed to start daemon: mkdir /var/lib/docker/image: not a directory"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (f"{INFO}\n{CAUSE}\n", CAUSE),
        (f"{INFO}\n{CAUSE}\n{INFO}\n\n", CAUSE),
        (f"{INFO}\n", INFO),
        ("", "no output"),
    ],
)
def test_the_cause_of_a_daemons_end_is_the_last_line_that_is_not_information(log: str, cause: str) -> None:
    assert provision.cause_in(log) == cause
