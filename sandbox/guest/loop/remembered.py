"""Replies that are remembered by the id of their request: asked again, nothing is done twice. For any thread.

Ids are given by callers, or by the host of a kept sandbox to every request, until it acknowledges the reply.
"""

from __future__ import annotations

import hashlib
import json
import threading

from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Reply = tuple[dict[str, Any], bytes]

MOST_REPLIES = 64
MOST_BYTES = 8 << 20
# Ids whose reply was dropped for its size, and which are answered that way.
MOST_DROPPED = 1024
_PROBLEM = "the connection was cut, and the answer is too large to be kept"
_DROPPED: dict[str, Any] = {
    "result": None, "fault": {"code": "transfer_incomplete", "effects": "unknown", "fields": {"problem": _PROBLEM}},
}  # fmt: skip


class Remembered:
    """The last replies by request id; where they are too many or too large, the oldest is forgotten first.

    With ``strict`` a request whose reply had to be dropped is never taken for a new one: it gets a failure that says so.
    """

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._lock = threading.Lock()
        self._asked: dict[str, bytes] = {}  # what each id was given to, in the order of the requests
        self._replies: dict[str, Reply] = {}
        self._dropped: dict[str, None] = {}
        self._under_way: dict[int, str] = {}  # the channel that the first request of an id came on
        self._waiting: dict[str, list[int]] = {}

    def ask(self, ident: str, key: int, operation: Any, args: dict[str, Any], blob: bytes) -> Reply | bool:
        """The reply to that id, False where it is still to come (to ``key`` as well), True where it has to be carried out.

        Raises Fault ``invalid_arguments`` where the id was given to another request.
        """
        told = hashlib.sha256(
            json.dumps([operation, args], sort_keys=True).encode("utf-8", "surrogatepass") + blob
        ).digest()
        with self._lock:
            if ident in self._dropped:
                return _DROPPED, b""
            known = self._asked.get(ident)
            if known is None:
                self._asked[ident] = told
                self._under_way[key] = ident
                return True
            if known != told:
                raise Fault("invalid_arguments", problem=f"request_id {ident[:80]!r} was given to another request")
            if ident in self._replies:
                return self._replies[ident]
            waiting = self._waiting.setdefault(ident, [])
            if key not in waiting:
                waiting.append(key)
            return False

    def first_of(self, ident: str) -> int | None:
        """The channel that the request of that id is carried out for; None where it was answered."""
        with self._lock:
            return next((key for key, known in self._under_way.items() if known == ident), None)

    def also_waiting(self, key: int) -> list[int]:
        """The other channels that wait for the reply to ``key``."""
        with self._lock:
            ident = self._under_way.get(key)
            return [] if ident is None else list(self._waiting.get(ident, ()))

    def answered(self, key: int, fields: dict[str, Any], blob: bytes) -> list[int]:
        """Remember the reply that goes to ``key``; the other channels that wait for it."""
        with self._lock:
            ident = self._under_way.pop(key, None)
            if ident is None:
                return []
            self._replies[ident] = (fields, blob)
            self._forget()
            return self._waiting.pop(ident, [])

    def acknowledge(self, idents: Any) -> None:
        """Forget these: their replies have arrived. What is no list of ids acknowledges nothing."""
        with self._lock:
            for ident in idents if isinstance(idents, list) else ():
                if not isinstance(ident, str):
                    continue
                if self._replies.pop(ident, None) is not None:
                    self._asked.pop(ident, None)
                self._dropped.pop(ident, None)

    def replies(self) -> list[dict[str, Any]]:
        """The fields of the replies that are remembered, the oldest first."""
        with self._lock:
            return [fields for fields, _ in self._replies.values()]

    def _forget(self) -> None:
        size = sum(len(blob) for _, blob in self._replies.values())
        for ident in list(self._asked):
            if len(self._replies) <= MOST_REPLIES and size <= MOST_BYTES:
                return
            if ident in self._replies:
                size -= len(self._replies.pop(ident)[1])
                del self._asked[ident]
                if self._strict:
                    self._dropped[ident] = None
        while len(self._dropped) > MOST_DROPPED:
            del self._dropped[next(iter(self._dropped))]
