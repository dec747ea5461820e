"""Replies by the id of their request, so that a request that is sent again is not carried out twice. For any thread.

Callers may give a request an id; the host of a kept sandbox gives one to every request, until it acknowledges the reply.
"""

from __future__ import annotations

import time

from ..builtin import Lock
from ..protocol.faults import Fault
from ..protocol.sha256 import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Reply = tuple[dict[str, Any], bytes]

MOST_REPLIES = 256
MOST_BYTES = 16 << 20
# They are in the sandbox's memory: a small one keeps no more than this part of it.
PART_OF_MEMORY = 8
KEPT_SECONDS = 600.0
# Ids whose replies were dropped: a request with one of them gets a failure that says so.
MOST_DROPPED = 4096
_DROPPED: dict[str, Any] = {
    "result": None,
    "fault": {"code": "transfer_incomplete", "effects": "unknown", "fields": {"answer_dropped": True}},
}


class ReplyCache:
    """The last replies by request id. If they are too many, too large (``most_bytes``) or too old, the oldest are dropped first.

    A request whose reply was dropped is not carried out as a new one: it gets a failure that says so.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._digests: dict[str, bytes] = {}  # of the requests by id, in their order
        self._replies: dict[str, Reply] = {}  # in the order in which they were stored
        self._stored_at: dict[str, float] = {}
        self._size = 0
        self._dropped: dict[str, None] = {}
        self._in_flight: dict[int, str] = {}  # ids by the channel of their first request
        self._waiting: dict[str, list[int]] = {}

    def begin(self, ident: str, key: int, operation: Any, args: dict[str, Any], blob: bytes) -> Reply | bool:
        """Register a request. Returns True if it is to be carried out, its reply if that is known, False if it is in flight.

        In the last case the reply will go to ``key``, too. Raises Fault ``invalid_arguments`` if another request has the id.
        """
        import json

        digest = sha256(
            json.dumps([operation, args], sort_keys=True).encode("utf-8", "surrogatepass") + blob
        ).digest()
        with self._lock:
            self._shrink()
            if ident in self._dropped:
                return _DROPPED, b""
            known = self._digests.get(ident)
            if known is None:
                self._digests[ident] = digest
                self._in_flight[key] = ident
                return True
            if known != digest:
                raise Fault("invalid_arguments", problem=f"request_id {ident[:80]!r} was given to another request")
            if ident in self._replies:
                return self._replies[ident]
            waiting = self._waiting.setdefault(ident, [])
            if key not in waiting:
                waiting.append(key)
            return False

    def first_of(self, ident: str) -> int | None:
        """Return the channel for which the request with the id is carried out, or None if it was answered."""
        with self._lock:
            return next((key for key, known in self._in_flight.items() if known == ident), None)

    def also_waiting(self, key: int) -> list[int]:
        """Return the other channels that wait for the reply to ``key``."""
        with self._lock:
            ident = self._in_flight.get(key)
            return [] if ident is None else list(self._waiting.get(ident, ()))

    def store(self, key: int, fields: dict[str, Any], blob: bytes) -> list[int]:
        """Store the reply that goes to ``key``. Returns the other channels that wait for it."""
        with self._lock:
            ident = self._in_flight.pop(key, None)
            if ident is None:
                return []
            self._replies[ident] = (fields, blob)
            self._stored_at[ident] = time.monotonic()
            self._size += len(blob)
            self._shrink()
            return self._waiting.pop(ident, [])

    def acknowledge(self, idents: Any) -> None:
        """Forget replies that have arrived. Anything but a list of ids acknowledges nothing."""
        with self._lock:
            for ident in idents if isinstance(idents, list) else ():
                if not isinstance(ident, str):
                    continue
                if ident in self._replies:
                    self._forget(ident)
                self._dropped.pop(ident, None)

    def replies(self) -> list[dict[str, Any]]:
        """Return the fields of all stored replies, the oldest first."""
        with self._lock:
            return [fields for fields, _ in self._replies.values()]

    def _shrink(self) -> None:
        late = time.monotonic() - KEPT_SECONDS
        while self._replies:
            oldest = next(iter(self._replies))
            fits = len(self._replies) <= MOST_REPLIES and self._size <= self._most_bytes
            if fits and self._stored_at[oldest] > late:
                return
            self._forget(oldest)
            self._dropped[oldest] = None
            if len(self._dropped) > MOST_DROPPED:
                del self._dropped[next(iter(self._dropped))]

    def _forget(self, ident: str) -> None:
        self._size -= len(self._replies.pop(ident)[1])
        del self._digests[ident], self._stored_at[ident]
