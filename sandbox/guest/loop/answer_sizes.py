"""How long the reply to each request may be: one that the host would not take becomes a fault, and ends only its own request.

Code in the sandbox has a say in the length of replies, by long names and many of them.
"""

from __future__ import annotations

from ..protocol import wire
from ..protocol.faults import Fault, internal_fault
from .operations import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Answers:
    """The requests under way, and how many bytes the host takes as the reply to each. Lives in the reactor's thread."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[str, int]] = {}

    def expect(self, key: int, operation: str, limit: Any) -> None:
        """Note a request that came in, and the limit that it came with, which may be anything."""
        known = type(limit) is int and 0 < limit <= wire.MAX_MESSAGE
        self._expected[key] = (operation, limit if known else wire.MAX_REPLY)

    def pack(self, key: int, fields: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes, bytes]:
        """Return the reply, and its message without the blob: a fault in its place if it is too long or cannot be sent."""
        operation, limit = self._expected.pop(key, ("", wire.MAX_REPLY))
        try:
            data = wire.pack_message(fields)
        except ValueError as error:
            fault = internal_fault(error, operation)
        else:
            if len(data) + len(blob) <= limit:
                return fields, blob, data
            row = OPERATIONS.get(operation)
            effects = "none" if row is not None and row.only_looks else "unknown"
            fault = Fault("response_too_large", effects=effects, size_bytes=len(data) + len(blob), limit=limit)
        fields = {"result": None, "fault": {"code": fault.code, "effects": fault.effects, "fields": fault.fields}}
        return fields, b"", wire.pack_message(fields)
