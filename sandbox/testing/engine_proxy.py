"""A proxy before a Docker Engine's socket that delays, slows, stalls, cuts, refuses, or answers with errors."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Literal, Self

from sandbox.errors import ErrorCode, SandboxError

from .faults import Faults, Passage

Direction = Literal["down", "up"]
ALL = "*"
_PIECE = 1 << 16
_REQUEST = re.compile(rb"(GET|HEAD|POST|PUT|DELETE) (\S+) HTTP/1\.[01]\r\n")
_ENDLESS = ("attach", "events")
_NOTHING = Faults()


def request_kind(method: str, path: str) -> str:
    """Return the kind of a request to the engine's API: "create", "start", "attach", "events", "inspect", "remove", …

    It is the last part of the path, except "remove" for a DELETE and "inspect" for a path that ends in /json.
    """
    if method == "DELETE":
        return "remove"
    last = path.partition("?")[0].rstrip("/").rpartition("/")[2].lstrip("_")
    return "inspect" if last == "json" else last


class _Connection:
    """One client and its connection to the engine, which sends on ``down``; the client sends on ``up``."""

    def __init__(self, proxy: EngineProxy, client: socket.socket, engine: socket.socket) -> None:
        self.kind = ""
        self.down, self.up = Passage(), Passage()
        self._proxy, self._client, self._engine = proxy, client, engine
        self._threads = [threading.Thread(target=pump, daemon=True) for pump in (self._pump_up, self._pump_down)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _pump_up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(_PIECE):
                # Clients wait for an answer before the next request on a connection, so a request begins where a piece begins.
                request = None if self.kind in _ENDLESS else _REQUEST.match(data)
                if request is not None and self._answers_itself(
                    request_kind(request[1].decode(), request[2].decode("latin-1"))
                ):
                    break
                self._carry(data, self.up, self._engine)
            with contextlib.suppress(OSError):
                self._engine.shutdown(socket.SHUT_WR)

    def _pump_down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._engine.recv(_PIECE):
                self._carry(data, self.down, self._client)
                if self.down.is_cut:
                    break
        self.cut()

    def _carry(self, data: bytes, passage: Passage, target: socket.socket) -> None:
        passage.put(data)
        while passage.waiting:
            target.sendall(passage.get() or b"")
        if passage.is_cut:
            self.cut()

    def _answers_itself(self, kind: str) -> bool:
        """Begin a new request. Returns whether the proxy answered it instead of the engine."""
        self.kind = kind
        self.down.change(self._proxy.faults_of(kind, "down"))
        self.up.change(self._proxy.faults_of(kind, "up"))
        answer = self._proxy.answer_to(kind)
        if answer is None:
            return False
        self._client.sendall(answer)
        self._client.shutdown(socket.SHUT_WR)
        while self._client.recv(_PIECE):  # closing with unread bytes would discard the answer
            pass
        return True

    def cut(self) -> None:
        self.down.cut()
        self.up.cut()
        for end in (self._client, self._engine):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def ended(self) -> bool:
        """Return whether both directions have ended, after closing the sockets."""
        if any(thread.is_alive() for thread in self._threads):
            return False
        self.close()
        return True

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join(5)
        self._client.close()
        self._engine.close()


class EngineProxy:
    """Listens at ``address``, a socket in a temporary folder, and passes everything on to ``engine``.

        with EngineProxy() as proxy:
            monkeypatch.setenv("DOCKER_HOST", proxy.address)
            proxy.inject(Faults(delay_seconds=0.5))                              # delay everything the engine sends
            proxy.inject(Faults(cut_after_bytes=100), "attach")                  # cut the pipe of a sandbox in mid-frame
            proxy.inject(Faults(stalled=True), "attach", direction="up")         # one direction only
            proxy.answer("create", 500, "no space left on device")

    ``engine`` is a ``unix://`` address, by default the one that a DockerEnvironment would use. Faults apply to requests of a
    kind (see ``request_kind``; "*" for all), both under way and later. Raises SandboxError ``invalid_configuration`` for
    other addresses.
    """

    def __init__(self, engine: str | None = None) -> None:
        if engine is None:
            from sandbox.docker.engine.client import engine_address

            engine = engine_address()
        if not engine.startswith("unix://"):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The proxy stands before a local socket, and {engine!r} is not one.",
                "Give the engine's address as unix:///path/to/docker.sock.",
            )
        self._engine = engine.removeprefix("unix://")
        self._folder = Path(tempfile.mkdtemp(prefix="gamebox-proxy-"))
        self._path = self._folder / "engine.sock"
        self._faults: dict[tuple[str, Direction], Faults] = {}
        self._answers: dict[str, bytes] = {}
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.accept()

    @property
    def address(self) -> str:
        """The value for DOCKER_HOST."""
        return f"unix://{self._path}"

    def inject(self, faults: Faults, kind: str = ALL, *, direction: Direction = "down") -> None:
        """Apply ``faults`` to what the engine sends ("down") or receives ("up") in requests of ``kind``."""
        with self._lock:
            self._faults[kind, direction] = faults
            for connection in self._of(kind):
                (connection.down if direction == "down" else connection.up).change(faults)

    def cut(self, kind: str = ALL) -> None:
        """Cut every connection that has a request of ``kind`` under way."""
        with self._lock:
            for connection in self._of(kind):
                connection.cut()

    def answer(self, kind: str, status: int, message: str) -> None:
        """Answer requests of ``kind`` with an error of this status, without asking the engine."""
        body = json.dumps({"message": message}).encode()
        head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._answers[kind] = f"{head}Connection: close\r\n\r\n".encode() + body

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED), like an engine that has ended. Existing connections stay."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes up the thread in accept
            listener.close()

    def accept(self) -> None:
        """Accept connections again."""
        self.refuse()
        self._path.unlink(missing_ok=True)
        self._listener = listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(64)
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def heal(self) -> None:
        """Remove all faults, also from requests under way, and accept connections."""
        with self._lock:
            self._faults.clear()
            self._answers.clear()
            for connection in self._connections:
                connection.down.change(_NOTHING)
                connection.up.change(_NOTHING)
            refusing = self._listener is None
        if refusing:
            self.accept()

    def faults_of(self, kind: str, direction: Direction) -> Faults:
        """Return the faults of requests of ``kind``."""
        return self._faults.get((kind, direction)) or self._faults.get((ALL, direction)) or _NOTHING

    def answer_to(self, kind: str) -> bytes | None:
        """Return the whole answer to requests of ``kind``, or None to ask the engine."""
        return self._answers.get(kind) or self._answers.get(ALL)

    def _of(self, kind: str) -> list[_Connection]:
        return [c for c in self._connections if kind in (ALL, c.kind)]

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                engine = socket.socket(socket.AF_UNIX)
                try:
                    engine.connect(self._engine)
                except OSError:  # the engine itself is gone: the client sees an end without an answer
                    client.close()
                    engine.close()
                    continue
                with self._lock:
                    self._connections = [
                        *(c for c in self._connections if not c.ended()),
                        _Connection(self, client, engine),
                    ]
                    self._connections[-1].start()

    def close(self) -> None:
        """Refuse new connections, cut all existing ones, and remove the socket. May be called more than once."""
        self.refuse()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
