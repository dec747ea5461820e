"""How much network a sandbox may use: bytes in total, connections at once, and how long a connection may be silent."""

from __future__ import annotations

import threading

from sandbox.limits import Limits
from sandbox.text.wording import size


class Allowance:
    """Counts the bytes of one sandbox against its ``limits``. Safe for use by several threads.

    The bytes of both directions count together, as the programs in the sandbox see them.
    """

    def __init__(self, limits: Limits) -> None:
        self.connections = limits.network_connections
        self.questions = limits.network_questions
        self.silent_seconds = limits.network_silent_seconds
        self._most = limits.network_bytes
        self._lock = threading.Lock()
        self.sent_bytes = 0
        self.received_bytes = 0

    def problem(self, standing: int) -> tuple[str, str] | None:
        """Return why no connection may be opened beside the ``standing`` ones and the name of that limit, or None."""
        if standing >= self.connections:
            return f"there are {standing} connections already, the most there may be at once", "network_connections"
        why = self._spent()
        return None if why is None else (why, "network_bytes")

    def sent(self, count: int) -> str | None:
        """Count ``count`` sent bytes. Returns why the budget is spent, or None."""
        with self._lock:
            self.sent_bytes += count
        return self._spent()

    def received(self, count: int) -> str | None:
        """Count ``count`` received bytes. Returns why the budget is spent, or None."""
        with self._lock:
            self.received_bytes += count
        return self._spent()

    def _spent(self) -> str | None:
        if self._most is None or self.sent_bytes + self.received_bytes < self._most:
            return None
        return f"the {size(self._most)} that this sandbox may send and receive are used up"
