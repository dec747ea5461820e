"""What an engine is to a kept guest, as a pipe: many may attach, all hear the guest, and it never sees an end of file."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from sandbox import operations as op
from sandbox.docker.container import shortcut
from sandbox.docker.container.stream import AttachStream
from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import Call, answer_prefix, time_of_call
from sandbox.limits import Limits
from sandbox.local.launcher import find_launcher
from sandbox.pipe.reattaching import ByteStream, call_guest
from sandbox.pipe.transport import Transport
from sandbox.testing import SocketStream

WHERE = b"thishost"
RECONNECT_SECONDS = 60.0


class Switchboard:
    """A real guest process; ``attach`` answers a stream to it. ``pass_up`` are the bytes that still reach the guest (None: all).

    If ``framed``, the streams are those of an engine, and their hosts go past it.
    """

    def __init__(self, keep_seconds: float = 60.0, framed: bool = False) -> None:
        self.framed = framed
        self.token = secrets.token_bytes(32)
        self.keep_seconds = keep_seconds
        self._folder = tempfile.TemporaryDirectory(prefix="gamebox-switchboard-")
        self.guest = subprocess.Popen(
            [sys.executable, "-m", "sandbox.guest"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        self.attached: list[socket.socket] = []
        self._streams: list[SocketStream | AttachStream] = []
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self.pass_up: int | None = None
        self.pass_down: int | None = None
        self._start(self._down)

    def connect(self) -> socket.socket:
        """Return another connection to the guest."""
        ours, theirs = socket.socketpair()
        with self._lock:
            self.attached.append(theirs)
        self._ends.append(theirs)
        self._start(self._up, theirs)
        return ours

    def attach(self) -> SocketStream | AttachStream:
        stream = AttachStream(self.connect()) if self.framed else SocketStream(self.connect())
        self._streams.append(stream)
        return stream

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def cut(self) -> None:
        """Cut whoever is attached."""
        self.pass_up = self.pass_down = None
        with self._lock:
            for each in self.attached:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self.attached.clear()

    def _up(self, theirs: socket.socket) -> None:
        assert self.guest.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # closed at the end
            while data := theirs.recv(32768):
                if self.pass_up is not None:
                    data, self.pass_up = data[: self.pass_up], max(0, self.pass_up - len(data))
                view = memoryview(data)
                while view:
                    view = view[os.write(self.guest.stdin.fileno(), view) :]
                if self.pass_up == 0:
                    self.cut()

    def _down(self) -> None:
        assert self.guest.stdout is not None
        while data := os.read(self.guest.stdout.fileno(), 32768):
            if self.pass_down is not None:
                data, self.pass_down = data[: self.pass_down], max(0, self.pass_down - len(data))
            with self._lock:
                listening = list(self.attached)
            for each in listening:
                with contextlib.suppress(OSError):
                    each.sendall((struct.pack(">BxxxI", 1, len(data)) if self.framed else b"") + data)
            if self.pass_down == 0:
                self.cut()

    # --- hosts ------------------------------------------------------------------
    def first_host(self, **options: Any) -> Host:
        """The host that makes the sandbox."""
        host = Host(self, self.attach(), **options)
        host.greet(self.hello())
        return host

    def another_host(self, flags: int = 0, where: bytes = WHERE, seconds: float = 60.0) -> Host:
        """A host that attaches. Raises NoAnswerError where it is refused."""
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        stream = self.attach()
        rest = call_guest(stream, self.token, Call(nonce, bytes(8), where, time_of_call(), flags), time.monotonic() + seconds)
        host = Host(self, stream, nonce=nonce, received=rest)
        host.greet({})
        return host

    def hello(self) -> dict[str, Any]:
        """The first HELLO."""
        base = os.path.realpath(self._folder.name)
        place = {
            "workspace": base, "home": base, "spill": base, "roots": [base], "uid": os.getuid(), "gid": os.getgid(),
            "interpreter": ["/usr/bin/env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable],
            "launcher": str(find_launcher()),
            "environ": {"PATH": os.environ["PATH"]},
            "limits": {**{f: getattr(Limits(), f) for f in Limits.__dataclass_fields__}, "sessions": 4, "network": "bridge"},
        }  # fmt: skip
        keep = {"token": self.token.hex(), "seconds": self.keep_seconds, "where": WHERE.hex()}
        return {"isolated": False, "place": place, "keep": keep}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.guest.kill()
        self.guest.wait()
        self.cut()
        for stream in self._streams:
            stream.close()
        for thread in self._threads:
            thread.join(60)
        for end in self._ends:
            end.close()
        for stream in self._streams:
            stream.release()
        for pipe in (self.guest.stdin, self.guest.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()


class Host(Transport):
    """A transport that calls the guest again when it is cut."""

    goes_past = True

    def __init__(self, board: Switchboard, stream: ByteStream, **options: Any) -> None:
        self.seconds = board.keep_seconds
        self.answer_prefix = answer_prefix(board.token)
        self.board = board
        self.resumed = 0
        self.give_up_seconds = RECONNECT_SECONDS
        super().__init__(stream, explained, keep=self, **options)

    def greet(self, hello: dict[str, Any]) -> None:
        """Greet the guest, and go past the engine if there is one."""
        facts = self.open(hello, 20)
        stream: object = self._reading.stream
        if isinstance(stream, AttachStream) and self.goes_past:
            stream.ends_with_engine = False
            pipes = shortcut.open_guest_pipes(self.board.guest.pid, "", facts["pipes"])
            assert pipes is not None
            shortcut.switch(pipes, self, stream)

    def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[ByteStream, bytes]:
        self.resumed += 1
        stream = self.board.attach()
        try:
            deadline = time.monotonic() + self.give_up_seconds
            return stream, call_guest(stream, self.board.token, Call(nonce, replaces, WHERE, time_of_call(), 0), deadline)
        except OSError as error:
            raise explained(reason, str(error)) from error

    def run(self, command: str, timeout_seconds: float = 60.0, **call: Any) -> tuple[dict[str, Any], bytes]:
        request = op.Run(
            command=command, timeout_seconds=timeout_seconds, **{"keep_output_bytes": 1 << 20, **call.pop("args", {})}
        )
        args = {**request.model_dump(mode="json", exclude={"stdin", "request_id"}), "stays_open": False}
        return self.request("run", args, timeout_seconds=timeout_seconds, max_reply_bytes=32 << 20, **call)


def explained(reason: str, detail: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(reason, f"{reason}: {detail}")
