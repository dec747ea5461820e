"""The end of an exchange at its time, whatever the other side still sends: the connection is cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Any, Self


class Deadline:
    """Within it, the connections that ``trace`` was told of are cut ``seconds`` after its beginning.

    Timeouts of single reads do not bound an exchange: a byte now and then, in the headers or while keys are agreed on, would hold
    it for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(max(seconds, 0.0), self._cut)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """For the extension ``trace`` of a request of httpx: takes note of its connection."""
        if event != "connection.connect_tcp.complete":
            return
        # Its own name for the connection: the other one is given up when encryption begins.
        own = info["return_value"].get_extra_info("socket").dup()
        with self._lock:
            self._sockets.append(own)
            over = self.is_over
        if over:
            self._cut()

    def _cut(self) -> None:
        with self._lock:
            self.is_over = True
            for each in self._sockets:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is cut already

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()
