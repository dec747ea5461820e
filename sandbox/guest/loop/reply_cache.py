"""Replies by the id of their request, so that a request that is sent again is not carried out twice. For any thread.

Callers may give a request an id; the host of a kept sandbox gives one to every request, until it acknowledges the reply.
"""

from __future__ import annotations

from ..builtin import Lock
from ..protocol.faults import Fault
from ..protocol.sha256 import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Reply = tuple[dict[str, Any], bytes]

MOST_REPLIES = 64
MOST_BYTES = 8 << 20
# Ids whose replies were dropped for their size: a request with one of them gets a failure that says so.
MOST_DROPPED = 1024
_PROBLEM = "the connection was cut, and the answer is too large to be kept"
_DROPPED: dict[str, Any] = {
    "result": None,
    "fault": {"code": "transfer_incomplete", "effects": "unknown", "fields": {"problem": _PROBLEM}},
}


class ReplyCache:
    """The last replies by request id. If they are too many or too large, the oldest are forgotten first.

    With ``strict`` a request whose reply had to be dropped is not carried out as a new one: it gets a failure that says so.
    """

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._lock = Lock()
        self._digests: dict[str, bytes] = {}  # of the requests by id, in their order
        self._replies: dict[str, Reply] = {}
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
            self._shrink()
            return self._waiting.pop(ident, [])

    def acknowledge(self, idents: Any) -> None:
        """Forget replies that have arrived. Anything but a list of ids acknowledges nothing."""
        with self._lock:
            for ident in idents if isinstance(idents, list) else ():
                if not isinstance(ident, str):
                    continue
                if self._replies.pop(ident, None) is not None:
                    self._digests.pop(ident, None)
                self._dropped.pop(ident, None)

    def replies(self) -> list[dict[str, Any]]:
        """Return the fields of all stored replies, the oldest first."""
        with self._lock:
            return [fields for fields, _ in self._replies.values()]

    def _shrink(self) -> None:
        size = sum(len(blob) for _, blob in self._replies.values())
        for ident in list(self._digests):
            if len(self._replies) <= MOST_REPLIES and size <= MOST_BYTES:
                return
            if ident in self._replies:
                size -= len(self._replies.pop(ident)[1])
                del self._digests[ident]
                if self._strict:
                    self._dropped[ident] = None
        while len(self._dropped) > MOST_DROPPED:
            del self._dropped[next(iter(self._dropped))]
