"""Replies that are remembered by the request id their caller gave: asked again, nothing is done twice. For any thread."""

from __future__ import annotations

import hashlib
import json
import threading

from .faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Reply = tuple[dict[str, Any], bytes]

MOST_REPLIES = 64
MOST_BYTES = 8 << 20


class Remembered:
    """The last replies by request id; one whose replies are too many or too large is forgotten, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, bytes] = {}  # what each id was given to, in the order of the requests
        self._replies: dict[str, Reply] = {}
        self._under_way: dict[int, str] = {}  # the channel that the first request of an id came on
        self._waiting: dict[str, list[int]] = {}

    def ask(self, ident: str, channel: int, operation: Any, args: dict[str, Any], blob: bytes) -> Reply | bool:
        """The reply to that id, False where it is still to come (to ``channel`` as well), True where it has to be carried out.

        Raises Fault ``invalid_arguments`` where the id was given to another request.
        """
        told = hashlib.sha256(json.dumps([operation, args], sort_keys=True).encode("utf-8", "surrogatepass") + blob).digest()
        with self._lock:
            known = self._asked.get(ident)
            if known is None:
                self._asked[ident] = told
                self._under_way[channel] = ident
                return True
            if known != told:
                raise Fault("invalid_arguments", problem=f"request_id {ident[:80]!r} was given to another request")
            if ident in self._replies:
                return self._replies[ident]
            self._waiting.setdefault(ident, []).append(channel)
            return False

    def answered(self, channel: int, fields: dict[str, Any], blob: bytes) -> list[int]:
        """Remember the reply that goes to ``channel``; the other channels that wait for it."""
        with self._lock:
            ident = self._under_way.pop(channel, None)
            if ident is None:
                return []
            self._replies[ident] = (fields, blob)
            self._forget()
            return self._waiting.pop(ident, [])

    def _forget(self) -> None:
        size = sum(len(blob) for _, blob in self._replies.values())
        for ident in list(self._asked):
            if len(self._replies) <= MOST_REPLIES and size <= MOST_BYTES:
                return
            if ident in self._replies:
                size -= len(self._replies.pop(ident)[1])
                del self._asked[ident]
