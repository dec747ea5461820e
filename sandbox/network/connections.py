"""What is told of each connection a sandbox made or tried: values for the log, never a payload."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

log = logging.getLogger(__name__)

Outcome = Literal["allowed", "denied", "failed"]
KEPT = 1000
# Of a text that is told: a host has at most 253 characters, and what is none may have thousands.
MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection as it ended. ``sent_bytes`` went out of the sandbox, ``received_bytes`` into it; times in seconds.

    ``address`` is what was dialled, "" where nothing was; ``rule`` opened it; ``why`` says why not, or how it broke.
    ``started`` is a Unix time.
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
        """Its fields as JSON-ready data."""
        return {**asdict(self), "started": round(self.started, 3), "duration_seconds": round(self.duration_seconds, 3)}


class ConnectionLog:
    """The last connections of a sandbox, and their sums; for any thread. ``listener`` hears of each one as it ends.

    ``shown`` is what a text is shown as, where secrets are masked.
    """

    def __init__(
        self, listener: Callable[[Connection], None] | None = None, shown: Callable[[str], str] | None = None
    ) -> None:
        self._masked = shown
        self._lock = threading.Lock()
        self._last: deque[Connection] = deque(maxlen=KEPT)
        self._listener = listener
        self.count = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def add(self, connection: Connection) -> None:
        """Note a connection that has ended, or was refused."""
        connection = replace(connection,
            host=self.shown(connection.host),
            why=self.shown(connection.why),
            rule=self.shown(connection.rule),
        )
        with self._lock:
            self._last.append(connection)
            self.count += 1
            self.sent_bytes += connection.sent_bytes
            self.received_bytes += connection.received_bytes
        if self._listener is not None:
            try:
                self._listener(connection)
            except Exception:  # its own fault: the connection it was told of is to go on
                log.exception("who listens for connections failed")

    def shown(self, text: str) -> str:
        """A text as it may be told: masked, and then cut, so that no part of a secret is left at the cut."""
        return (text if self._masked is None else self._masked(text))[:MOST_CHARS]

    def last(self) -> tuple[Connection, ...]:
        """The last ones, at most 1,000, in the order of their ends."""
        with self._lock:
            return tuple(self._last)
