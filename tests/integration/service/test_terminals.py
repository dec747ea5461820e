"""Terminals over WebSocket: bytes, controls, how they end, and what a hostile client costs."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from sandbox import RemoteEnvironment, SandboxError
from tests.integration.observing import eventually
from tests.servers.gamebox_service import ServiceProcess, shared_service

from .api import Api

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """Requests to the service that the worker's tests share."""
    with Api(shared_service()) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(api: Api) -> Iterator[str]:
    """A sandbox that the tests share."""
    ident = str(api.call("POST", "/sandboxes", {}, status=201)["id"])
    yield ident
    api.call("DELETE", f"/sandboxes/{ident}", status=204)


class Wire:
    """A terminal as a client sees it. ``code`` and ``reason`` are those with which the service has closed it."""

    def __init__(
        self, sandbox: str, first: dict[str, Any] | str | bytes, service: ServiceProcess | None = None, key: str | None = None
    ) -> None:
        service = service or shared_service()
        self.output, self.controls, self.code, self.reason = b"", list[dict[str, Any]](), 0, ""
        self.socket = connect(
            f"ws://127.0.0.1:{service.port}/v1/sandboxes/{sandbox}/terminals",
            additional_headers={"X-API-Key": key or service.key},
            proxy=None,
        ).__enter__()
        self.socket.send(json.dumps(first) if isinstance(first, dict) else first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def until(self, text: bytes) -> None:
        """Read until the output has ``text``."""
        while text not in self.output:
            self.read()

    def read(self) -> None:
        """Read one frame."""
        message = self.socket.recv(30)
        if isinstance(message, bytes):
            self.output += message
        else:
            self.controls.append(json.loads(message))

    def close(self) -> tuple[int, str]:
        """Read to the end; return the close code and the reason."""
        try:
            while True:
                self.read()
        except ConnectionClosed as error:
            return (1006, "") if error.rcvd is None else (error.rcvd.code, error.rcvd.reason)


def start(*argv: str, **options: Any) -> dict[str, Any]:
    return {"type": "start", **({"argv": argv} if argv else {}), **options}


def running(api: Api, sandbox: str, ident: str) -> bool:
    return bool(api.call("POST", f"/sandboxes/{sandbox}/logs", {"id": ident})["result"]["running"])


def test_a_shell_as_a_person_uses_it(sandbox: str) -> None:
    with Wire(sandbox, start(rows=30, cols=99, env={"COLOUR": "red"}, cwd="/tmp")) as wire:
        wire.socket.send(b"stty size; echo $COLOUR $PWD $TERM\r")
        wire.until(b"30 99\r\nred /tmp xterm-256color\r\n")
        wire.socket.send('{"type": "resize", "rows": 50, "cols": 132}')
        wire.socket.send(b"stty size\r")
        wire.until(b"50 132\r\n")
        wire.socket.send(b"sh -c 'echo up; exec cat >/dev/null'\r")
        wire.until(b"up\r\n")  # an interrupt before that would hit the shell
        wire.socket.send(b"\x03")
        wire.until(b"^C\r\n\x1b[?2004h")  # bash may lose what is typed before its prompt
        wire.socket.send(b"exit 3\r")
        assert wire.close() == (1000, "ended")
    assert wire.controls[0] | {"id": ""} == {"type": "started", "id": "", "offset": 0}
    assert wire.controls[1:] == [{"type": "ended", "exit_code": 3, "signal": None}]


def test_every_byte_goes_in_and_comes_out(sandbox: str) -> None:
    program = (
        "import os, tty; tty.setraw(0); os.write(1, b'ready'); d = b''\n"
        "while len(d) < 512: d += os.read(0, 99)\nos.write(1, d)"
    )
    data = bytes(range(256)) * 2
    with Wire(sandbox, start("python3", "-c", program)) as wire:
        wire.until(b"ready")
        wire.socket.send(data[:100])
        wire.socket.send(data[100:])
        assert wire.close()[0] == 1000
    assert wire.output == b"ready" + data


def test_a_signal(sandbox: str) -> None:
    for name in ("SIGTERM", "SIGKILL"):
        with Wire(sandbox, start("sleep", "100")) as wire:
            wire.read()
            wire.socket.send(json.dumps({"type": "signal", "signal": name}))
            assert wire.close()[0] == 1000
        assert wire.controls[-1]["signal"] == name


def test_a_terminal_ends_when_its_user_closes_it_and_goes_on_after_a_cut(api: Api, sandbox: str) -> None:
    with Wire(sandbox, start("sh", "-c", "echo one; read x; echo got $x; sleep 100")) as wire:
        wire.until(b"one")
        ident = wire.controls[0]["id"]
        wire.socket.socket.shutdown(socket.SHUT_RDWR)  # a cut
    assert running(api, sandbox, ident)
    with Wire(sandbox, {"type": "attach", "id": ident, "offset": 2}) as again:
        again.until(b"e\r\n")
        assert (again.output, again.controls[0]) == (b"e\r\n", {"type": "started", "id": ident, "offset": 2})
        again.socket.send(b"it\r")
        again.until(b"got it")
    assert eventually(lambda: not running(api, sandbox, ident))


def test_what_cannot_be_started_or_found_is_said(sandbox: str) -> None:
    with Wire(sandbox, start("true", cwd="/none")) as wire:
        assert wire.close()[0] == 4422
    assert (wire.controls[0]["type"], wire.controls[0]["code"]) == ("failed", "working_directory_invalid")
    with Wire(sandbox, {"type": "attach", "id": "c999"}) as wire:
        assert wire.close()[0] == 4422
    assert wire.controls[-1]["code"] == "unknown_command"


@pytest.mark.parametrize(
    "first",
    [
        b"bytes",
        "nonsense",
        "[]",
        '{"type": "other"}',
        '{"type": "start", "rows": 0}',
        '{"type": "start", "more": 1}',
        '{"type": "resize", "rows": 1, "cols": 1}',
        "[" * 60_000,
    ],
    ids=range(8),
)
def test_a_first_frame_that_says_nothing(sandbox: str, first: str | bytes) -> None:
    with Wire(sandbox, first) as wire:
        assert wire.close()[0] == 1007


def test_wrong_frames_later(sandbox: str) -> None:
    for wrong in ("{", '{"type": "start"}', '{"type": "resize", "rows": 1e9, "cols": 1}', '{"type": "signal", "signal": "9"}'):
        with Wire(sandbox, start("sleep", "100")) as wire:
            wire.read()
            wire.socket.send(wrong)
            assert wire.close()[0] == 1007
            Wire(sandbox, {"type": "attach", "id": wire.controls[0]["id"]}).socket.close()  # which kills it
    with Wire(sandbox, start("sleep", "100")) as wire:
        wire.socket.send(bytes((1 << 20) + 1))
        assert wire.close()[0] == 1009


def test_keys_scopes_and_sandboxes(api: Api, sandbox: str) -> None:
    reader = api.call("POST", "/keys", {"scope": "read"}, status=201)["key"]
    for key, ident, status in ((reader, sandbox, 403), ("e2b_" + "0" * 40, sandbox, 401), (None, "a" * 20, 404)):
        with pytest.raises(InvalidStatus) as refused:
            Wire(ident, start(), key=key)
        assert refused.value.response.status_code == status
        assert refused.value.response.headers["content-type"] == "application/problem+json"
    user = api.call("POST", "/keys", {"scope": "use"}, status=201)
    with Wire(sandbox, start("sleep", "100"), key=user["key"]) as wire:
        wire.read()
        api.call("DELETE", f"/keys/{user['id']}", status=204)
        assert wire.close() == (1008, "The key is not valid any more.")
    assert running(api, sandbox, wire.controls[0]["id"])
    api.call("POST", f"/sandboxes/{sandbox}/kill", {"id": wire.controls[0]["id"]})


def test_a_paused_sandbox_shows_nothing_and_goes_on(api: Api, sandbox: str) -> None:
    with Wire(sandbox, start("sh", "-c", "echo one; read x; echo two")) as wire:
        wire.until(b"one")
        api.call("POST", f"/sandboxes/{sandbox}/pause")
        try:
            wire.socket.send(b"lost\r")
            while wire.controls[-1]["type"] != "error":
                wire.read()
            assert wire.controls[-1]["code"] == "sandbox_paused"
            with pytest.raises(InvalidStatus) as refused:
                Wire(sandbox, start())
            assert refused.value.response.status_code == 409
        finally:
            api.call("POST", f"/sandboxes/{sandbox}/resume")
        wire.socket.send(b"\r")
        wire.until(b"two")
        assert wire.close()[0] == 1000


def test_much_output_is_complete_and_a_reader_that_takes_its_time_loses_nothing(sandbox: str) -> None:
    with Wire(sandbox, start("sh", "-c", "stty -opost; head -c 3000000 /dev/zero | tr '\\0' x")) as wire:
        time.sleep(0.3)
        assert wire.close()[0] == 1000
    assert wire.output == b"x" * 3_000_000


def frames(*each: bytes) -> bytes:
    """Frames of a client with a mask of zeros: (opcode and flags, payload)."""
    return b"".join(head[:1] + struct.pack("!BI", 0x80 | len(head) - 1, 0) + head[1:] for head in each)


def shaken(sandbox: str) -> socket.socket:
    """A WebSocket whose frames the test writes itself."""
    service = shared_service()
    sock = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    sock.sendall(
        f"GET /v1/sandboxes/{sandbox}/terminals HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {service.key}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    assert sock.recv(1000).startswith(b"HTTP/1.1 101 ")
    return sock


@pytest.mark.parametrize(
    "flood",
    [frames(b"\x01") + frames(b"\x00") * 5000, frames(b"\x89" + b"p" * 100) * 2000, frames(b"\x82x") * 5000],
    ids=["empty fragments", "pings", "small messages"],
)
def test_a_flood_of_frames_is_cut_or_held_back(api: Api, sandbox: str, flood: bytes) -> None:
    """What a client sends without an end, reading nothing, fills no memory of the service: it is cut, or cannot send on."""
    with shaken(sandbox) as sock:
        sock.sendall(frames(b"\x81" + b'{"type":"start","argv":["sleep","60"]}'))
        sock.settimeout(1.0)
        sent = 0
        try:
            while sent < 200 << 20:
                sock.sendall(flood)
                sent += len(flood)
        except OSError:  # cut, or it takes no more
            pass
        assert sent < 64 << 20
    assert api.run(sandbox, "echo on")["result"]["output"] == "on\n"


# --- the client ----------------------------------------------------------------------------------------------------------------


def test_the_clients_terminal_goes_on_after_a_restart_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    service = ServiceProcess(tmp_path / "data", "--stop-all")
    service.start()
    try:
        with RemoteEnvironment(url=service.url, api_key=service.key) as env:
            shown = bytearray()
            terminal = env.terminal(["sh", "-c", "echo one; read x; echo got $x; read y; exit 4"])
            watcher = threading.Thread(target=terminal.run, args=(shown.extend,))
            watcher.start()
            assert eventually(lambda: b"one" in shown)
            service._options = ()  # the sandboxes go on
            wire = Wire(env.id, {"type": "attach", "id": terminal.id}, service)
            service.kill()
            service.start()
            assert wire.close()[0] == 1006
            terminal.write(b"it\r")
            assert eventually(lambda: b"got it" in shown)
            wire = Wire(env.id, {"type": "attach", "id": terminal.id}, service)
            wire.until(b"got it")
            service.stop()
            assert wire.close() == (1012, "The service restarts: connect again.")
            service.start()
            terminal.resize(40, 90)
            terminal.write(b"\r")
            watcher.join(60)
            assert (terminal.exit_code, terminal.signal, bytes(shown).count(b"one")) == (4, None, 1)
            terminal.close()
    finally:
        service._options = ("--stop-all",)
        service.stop()


def test_the_clients_terminal_says_why_there_is_none() -> None:
    service = shared_service()
    with RemoteEnvironment(url=service.url, api_key=service.key) as env:
        with env.terminal(["true"], cwd="/none") as terminal, pytest.raises(SandboxError) as caught:
            terminal.run(lambda _: None)
        assert caught.value.code == "working_directory_invalid"
        with env.terminal() as terminal:
            terminal.kill()
            terminal.run(lambda _: None)
        assert terminal.signal == "SIGKILL"
        env.secret("TOKEN", f"s{os.getpid()}ecret")
        shown = bytearray()
        with env.terminal(["sh", "-c", "echo $TOKEN"]) as terminal:
            terminal.run(shown.extend)
        assert bytes(shown) == f"s{os.getpid()}ecret\r\n".encode()
    with pytest.raises(SandboxError) as caught:
        env.terminal()
    assert caught.value.code == "sandbox_closed"
