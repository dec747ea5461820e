"""Connections as lines of JSON in a file: host, address, port, rule, outcome, why, and the bytes of both directions."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Callable
from typing import Self

from sandbox.errors import ErrorCode, SandboxError

from .connections import Connection

log = logging.getLogger(__name__)


class ConnectionFile:
    """Appends a line for each connection that it is called with: ``env.on_connection = ConnectionFile("connections.jsonl")``.

    The file is made for its owner alone where it is missing. What cannot be written later (a full disk, say) is told to ``report``
    once each time it begins to fail, and counted in ``lost``; it never stops a connection. May be used for several sandboxes and
    by any thread. Raises SandboxError ``invalid_configuration`` where the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], report: Callable[[str], None] | None = None) -> None:
        self.path = os.fspath(path)
        self.lost = 0
        self._report = report or log.warning
        self._lock = threading.Lock()
        self._failing = self._torn = False
        try:
            # Not to wait for a reader where it is a pipe.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd: int | None = os.open(self.path, flags, 0o600)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.close(self._fd)
                raise OSError(0, "it is no regular file")
        except OSError as error:
            raise SandboxError(
                ErrorCode.invalid_configuration,
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
                # Behind a line that was cut by a full disk.
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
        """Write no more; may be called more than once."""
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
