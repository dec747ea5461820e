"""A record of each connection that a sandbox made or tried, in memory and in a file. It never holds a payload."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Literal, Self

from sandbox.errors import configuration_error
from sandbox.frozen import dataclass

log = logging.getLogger(__name__)

Outcome = Literal["allowed", "denied", "failed"]
MOST_KEPT = 1000
# Of one text: a host name has at most 253 characters, but what a sandbox sends as one may have thousands.
MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection as it ended. ``sent_bytes`` left the sandbox, ``received_bytes`` entered it.

    ``address`` is what the host dialled, or "". ``rule`` is the rule that opened it. ``why`` says why it was refused or how it
    broke. ``started`` is a Unix time.
    """

    host: str
    port: int
    outcome: Outcome
    address: str = ""
    rule: str = ""
    why: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    started: float = 0.0
    duration_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready data, times rounded to milliseconds."""
        return {**asdict(self), "started": round(self.started, 3), "duration_seconds": round(self.duration_seconds, 3)}


class ConnectionLog:
    """The last 1,000 connections of a sandbox, and totals over all of them. Safe for use by several threads.

    ``listener`` is called with each connection as it ends. ``mask`` hides secrets in the texts of a connection.
    """

    def __init__(
        self, listener: Callable[[Connection], None] | None = None, mask: Callable[[str], str] | None = None
    ) -> None:
        self._mask = mask
        self._lock = threading.Lock()
        self._last: deque[Connection] = deque(maxlen=MOST_KEPT)
        self._listener = listener
        self.count = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def add(self, connection: Connection) -> None:
        """Record a connection that ended or was refused."""
        connection = replace(
            connection,
            host=self.masked(connection.host),
            why=self.masked(connection.why),
            rule=self.masked(connection.rule),
        )
        with self._lock:
            self._last.append(connection)
            self.count += 1
            self.sent_bytes += connection.sent_bytes
            self.received_bytes += connection.received_bytes
        if self._listener is not None:
            try:
                self._listener(connection)
            except Exception:  # a bug of the listener must not end the connection
                log.exception("the listener for connections failed")

    def masked(self, text: str) -> str:
        """Return ``text`` with its secrets masked, and only then cut, so that the cut leaves no part of a secret."""
        return (text if self._mask is None else self._mask(text))[:MOST_CHARS]

    def last(self) -> tuple[Connection, ...]:
        """Return the last connections, at most 1,000, in the order in which they ended."""
        with self._lock:
            return tuple(self._last)


class ConnectionFile:
    """Appends one line of JSON per connection to a file: ``env.on_connection = ConnectionFile("connections.jsonl")``.

    A missing file is created with access for its owner only. A later write error (such as a full disk) never stops a connection:
    it is counted in ``lost``, and ``report`` is called once each time that writing begins to fail. One instance may serve several
    sandboxes and any thread. Raises SandboxError ``invalid_configuration`` if the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], report: Callable[[str], None] | None = None) -> None:
        self.path = os.fspath(path)
        self.lost = 0
        self._report = report or log.warning
        self._lock = threading.Lock()
        self._failing = self._torn = False
        try:
            # O_NONBLOCK: opening a named pipe would wait for its reader.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd: int | None = os.open(self.path, flags, 0o600)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.close(self._fd)
                raise OSError(0, "it is not a regular file")
        except OSError as error:
            raise configuration_error(
                f"Connections cannot be written to {self.path!r}: {error.strerror or error}.",
                "Give a file in a folder that you may write to.",
            ) from error

    def __call__(self, connection: Connection) -> None:
        """Write one line."""
        line = json.dumps(connection.to_dict()).encode() + b"\n"
        with self._lock:
            if self._fd is None:
                return
            try:
                # A full disk may have cut the line before this one.
                self._write(self._fd, b"\n" + line if self._torn else line)
            except OSError as error:
                self.lost += 1
                if not self._failing:
                    self._report(f"connections are not written to {self.path}: {error.strerror or error}")
                self._failing = True
            else:
                self._failing = self._torn = False

    def _write(self, fd: int, data: bytes) -> None:
        written = os.write(fd, data)
        while written < len(data):
            self._torn = True
            written += os.write(fd, data[written:])

    def close(self) -> None:
        """Stop writing. Does nothing the second time."""
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
