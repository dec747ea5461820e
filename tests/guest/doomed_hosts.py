"""Hosts of a guest on a switchboard that kill themselves, by SIGKILL, after a number of bytes.

One process, with all modules loaded and a single thread, forks them one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from sandbox.docker.container.stream import AttachStream
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import NO_NONCE, OWNER_DEAD, Call, time_of_call
from sandbox.pipe.reattaching import call_guest
from sandbox.pipe.watching import Watch

from .switchboard import WHERE, Host, Switchboard

LIFE_SECONDS = 30.0


class DoomedHosts:
    """Use as a context manager."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(LIFE_SECONDS)
        argv = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2])
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait(LIFE_SECONDS)

    def live(self, command: str = "", *, up: int | None = None, down: int | None = None, **options: Any) -> bool:
        """Let a host attach, go past the engine and run ``command`` or ``download=`` a file. Returns whether it got the answer.

        It dies when it has sent ``up`` bytes, from the first of its call on, or received ``down`` bytes after its greeting.
        """
        board = self._board
        order = {"token": board.token.hex(), "pid": board.guest.pid, "up": up, "down": down}
        order |= {"command": command, "options": options}
        with board.connect() as connection:
            socket.send_fds(self._control, [json.dumps(order).encode()], [connection.fileno()])
            return self._control.recv(100) == b"lived"


class DoomedStream(AttachStream):
    """A stream whose process dies in the middle of a frame."""

    def __init__(self, connection: socket.socket, up: int | None, down: int | None) -> None:
        super().__init__(connection)
        self.up, self.down = up, down

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        sent = super().send(data if self.up is None else data[: self.up], timeout_seconds)
        if self.up is not None:
            self.up -= sent
            if not self.up:
                die()
        return sent

    def receive_into(self, view: memoryview) -> int | None:
        size = super().receive_into(view)
        if self.down is not None and self._output is not None:
            self.down -= size or 0
            if self.down <= 0:
                die()
        return size


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LIFE_SECONDS)  # the signal may be another thread's to take


def live(order: dict[str, Any], connection: socket.socket) -> None:
    """Be a host, and return if it lives to get the answer."""
    board: Any = SimpleNamespace(
        token=bytes.fromhex(order["token"]), keep_seconds=60.0, guest=SimpleNamespace(pid=order["pid"])
    )
    stream = DoomedStream(connection, order["up"], order["down"])
    nonce = secrets.token_bytes(wire.NONCE_BYTES)
    call = Call(nonce, NO_NONCE, WHERE, time_of_call(), OWNER_DEAD)
    received = call_guest(stream, board.token, call, time.monotonic() + LIFE_SECONDS)
    host = Host(board, stream, nonce=nonce, received=received)
    host.greet({})
    options = order["options"]
    if "download" in options:
        host.request("download", {"path": options["download"]}, timeout_seconds=LIFE_SECONDS, sink=lambda _: None)
        return
    if options.pop("watched", False):
        options["watch"] = Watch(on_bytes=lambda _, data: None)
    host.run(order["command"], **options)


def main() -> None:
    """Fork a host for each order, until the other end of the socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            return
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                live(json.loads(data), socket.socket(fileno=fds[0]))
                os._exit(0)
            os._exit(1)
        os.close(fds[0])
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        control.send({0: b"lived", -signal.SIGKILL: b"killed"}.get(status, b"failed"))


if __name__ == "__main__":
    main()
