"""A command with a terminal in a sandbox of a service, over a WebSocket."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.interrupts import Shield

from .http.service import AWAY, RECONNECT_SECONDS, Service, closed_meanwhile, nonsense
from .http.sockets import check_library, connect

# The close codes after which the same terminal is asked for again: the connection was cut, the service restarts, too far behind.
_AGAIN = (1005, 1006, 1012, 1013)
RETRY_SECONDS = 0.2
FRAME_BYTES = 64 << 10
_KEY_GONE, _NOT_STARTED, _SANDBOX_GONE = 1008, 4422, 4410


class RemoteTerminal:
    """A terminal; ``run`` passes on what it shows until the command has ended, other threads type meanwhile.

    ``cwd``, ``user``, ``rows`` and ``cols`` are those of ``run``. The command goes on if the connection is cut, and so does this,
    for up to 30 s. ``close`` kills it. Raises SandboxError.
    """

    def __init__(
        self,
        service: Service,
        path: str,
        argv: Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        rows: int = 24,
        cols: int = 80,
    ) -> None:
        self.exit_code: int | None = None
        self.signal: str | None = None
        self.id = ""
        self._service, self._path, self._user = service, path, user
        check_library("A terminal")
        asked = {
            "argv": None if argv is None else list(argv),
            "env": dict(env or {}),
            "cwd": cwd,
            "user": user,
            "rows": rows,
            "cols": cols,
        }
        self._offset = 0
        self._failure: SandboxError | None = None
        self._over = False
        self._socket = self._open({"type": "start", **{name: value for name, value in asked.items() if value is not None}})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, show: Callable[[bytes], None]) -> None:
        """Pass the output to ``show``, in a thread, until the command has ended. Raises SandboxError, and what ``show`` raises."""
        # Not an Event: a Ctrl-C can leave its lock taken.
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                self._show_all(show)
                done.put(None)
            except BaseException as error:  # noqa: BLE001  # raised by ``run``
                done.put(error)

        with Shield():
            threading.Thread(target=work, name="gamebox-terminal", daemon=True).start()
        if (error := done.get()) is not None:
            raise error

    def write(self, data: bytes) -> None:
        """Type bytes. Waits while the connection is cut; does nothing if the command has ended."""
        for at in range(0, len(data), FRAME_BYTES):
            self._send(data[at : at + FRAME_BYTES])

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal."""
        self._send(json.dumps({"type": "resize", "rows": rows, "cols": cols}))

    def kill(self, signal: str = "SIGKILL") -> None:
        """Send a signal to all processes of the command; SIGKILL kills it with everything it started."""
        self._send(json.dumps({"type": "signal", "signal": signal}))

    def close(self) -> None:
        """Kill the command if it runs, and close the connection; may be called more than once."""
        self._over = True
        self._socket.close(1000)

    def end(self) -> None:
        """Close the connection of an environment that is closed; ``run`` raises SandboxUnavailableError."""
        self._failure = self._failure or closed_meanwhile("none")
        self.close()

    def _open(self, first: Mapping[str, Any]) -> Any:
        """Return a connection on which the terminal was asked for."""
        found = connect(self._service, self._path)
        found.send(json.dumps(first))
        return found

    def _show_all(self, show: Callable[[bytes], None]) -> None:
        from websockets.exceptions import ConnectionClosed

        cut_at: float | None = None
        while True:
            try:
                message = self._socket.recv()
            except ConnectionClosed as error:
                if self._is_over(error.rcvd.code if error.rcvd is not None else 1006, error):
                    return
                cut_at = cut_at or time.monotonic()
                self._go_on(cut_at)
                continue
            cut_at = None
            if isinstance(message, bytes):
                self._offset += len(message)
                show(message)
            else:
                self._hear(message)

    def _hear(self, message: str) -> None:
        try:
            said = json.loads(message)
            if said["type"] == "started":
                self.id, self._offset = str(said["id"]), int(said["offset"])
            elif said["type"] == "skipped":
                self._offset = int(said["offset"])
            elif said["type"] == "ended":
                self.exit_code, self.signal, self._over = said["exit_code"], said["signal"], True
            elif said["type"] == "failed":
                known = ErrorCode.__members__.get(said["code"], ErrorCode.sandbox_unavailable)
                self._failure = SandboxError(known, str(said["error"]), str(said["hint"]))
        except (ValueError, KeyError, TypeError) as error:
            raise nonsense(self._service, "terminals") from error

    def _is_over(self, code: int, error: Exception) -> bool:
        """Return whether the terminal has ended; False if it goes on. Raises SandboxError if it cannot."""
        if self._failure is not None:
            raise self._failure from error
        if self._over:
            return True
        if code in _AGAIN and self.id:
            return False
        reason = {_KEY_GONE: "key_revoked", _SANDBOX_GONE: "removed"}.get(code, "service_failed")
        raise SandboxUnavailableError(
            reason, f"The service has closed the terminal: {error}.", "Open another one, if the sandbox still exists."
        ) from error

    def _go_on(self, cut_at: float) -> None:
        """Ask for the same terminal again, from where it was cut off. Raises SandboxError if the service stays away."""
        attach = {"type": "attach", "id": self.id, "offset": self._offset}
        while True:
            time.sleep(RETRY_SECONDS)
            try:
                self._socket = self._open({**attach, **({} if self._user is None else {"user": self._user})})
                return
            except SandboxError as error:
                away = error.retryable or getattr(error, "reason", "") in AWAY
                if self._failure is not None:
                    raise self._failure from error
                if not away or time.monotonic() - cut_at > RECONNECT_SECONDS:
                    raise

    def _send(self, message: bytes | str) -> None:
        from websockets.exceptions import ConnectionClosed

        until = time.monotonic() + RECONNECT_SECONDS
        while not self._over and time.monotonic() < until:
            try:
                self._socket.send(message)
                return
            except ConnectionClosed:
                time.sleep(RETRY_SECONDS)  # ``run`` connects again
