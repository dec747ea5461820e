"""How much a sandbox may use of the network: bytes in all, connections at once, and how long one may be silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sandbox.limits import Limits
from sandbox.text.wording import size


class Allowance:
    """What is left of ``limits``; for any thread. Bytes of both directions count together, as the sandbox's programs see them."""

    def __init__(self, limits: Limits) -> None:
        self.connections = limits.network_connections
        self.questions = limits.network_questions
        self.silent_seconds = limits.network_silent_seconds
        self._most = limits.network_bytes
        self._lock = threading.Lock()
        self.sent_bytes = 0
        self.received_bytes = 0

    def problem(self, standing: int) -> tuple[str, str] | None:
        """Why there may be no further connection beside those ``standing``, and the limit that says so; None where there may."""
        if standing >= self.connections:
            return f"there are {standing} connections already, the most there may be at once", "network_connections"
        why = self._spent()
        return None if why is None else (why, "network_bytes")

    def sent(self, count: int) -> str | None:
        """So many bytes went out; why there may be no more, None where there may."""
        with self._lock:
            self.sent_bytes += count
        return self._spent()

    def received(self, count: int) -> str | None:
        """So many bytes came in; why there may be no more, None where there may."""
        with self._lock:
            self.received_bytes += count
        return self._spent()

    def _spent(self) -> str | None:
        if self._most is None or self.sent_bytes + self.received_bytes < self._most:
            return None
        return f"the {size(self._most)} that this sandbox may send and receive are used up"


# Asked with each piece of a connection's bytes: why it is to be cut.
Taker = Callable[[int], "str | None"]
