"""A proxy before the engine's socket that cuts or stalls what goes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self

ENGINE = "/var/run/docker.sock"


class _Connection:
    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.engine = socket.socket(socket.AF_UNIX)
        self.engine.connect(ENGINE)
        self.kind = ""
        self.left: int | None = None  # bytes of the engine's that still pass; None for all
        self.flowing = threading.Event()
        self.flowing.set()

    def up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.client.recv(65536):
                if not self.kind:
                    line = data.split(b"\r\n", 1)[0].decode("latin-1")
                    self.kind = next((k for k in ("attach", "events") if f"/{k}" in line), "other")
                self.engine.sendall(data)
            self.engine.shutdown(socket.SHUT_WR)

    def down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.engine.recv(4096):
                self.flowing.wait()
                if self.left is not None:
                    data, self.left = data[: self.left], self.left - len(data)
                self.client.sendall(data)
                if self.left is not None and self.left <= 0:
                    break
        self.cut()

    def cut(self) -> None:
        self.flowing.set()
        for end in (self.client, self.engine):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class EngineProxy:
    """Listens at ``path``; the faults apply to connections of a kind: "attach", "events" or "other"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: list[_Connection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = _Connection(self._listener.accept()[0])
                self.connections.append(connection)
                for pump in (connection.up, connection.down):
                    threading.Thread(target=pump, daemon=True).start()

    def _of(self, kind: str) -> list[_Connection]:
        return [c for c in self.connections if c.kind == kind]

    def cut(self, kind: str) -> None:
        """Cut every connection of this kind now."""
        for connection in self._of(kind):
            connection.cut()

    def cut_after(self, kind: str, count: int) -> None:
        """Let ``count`` more bytes of the engine's through, then cut."""
        for connection in self._of(kind):
            connection.left = count

    def stall(self, kind: str) -> None:
        """Let nothing of the engine's through any more, and cut nothing."""
        for connection in self._of(kind):
            connection.flowing.clear()

    def close(self) -> None:
        """Refuse new connections and cut all there are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for connection in self.connections:
            connection.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for connection in self.connections:
            connection.client.close()
            connection.engine.close()
