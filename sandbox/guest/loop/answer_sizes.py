"""How long the reply to each request may be: what the host would not take is told as a fault, for it ends nothing but its request.

Code in the sandbox has a say in the length of replies, by long names and many of them.
"""

from __future__ import annotations

from ..protocol import wire
from ..protocol.faults import Fault, internal_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Operations that leave everything as it was, whatever became of their answer.
_LOOKING = frozenset(
    {
        "read",
        "list",
        "search",
        "browse",
        "logs",
        "screen",
        "wait_for",
        "processes",
        "usage",
        "scan",
        "fetch",
        "last_changes",
    }
)


class Answers:
    """The requests under way, and how many bytes the host takes as the reply to each. Lives in the reactor's thread."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[str, int]] = {}

    def expect(self, key: int, operation: str, limit: Any) -> None:
        """A request came in; ``limit`` is what it carried."""
        known = type(limit) is int and 0 < limit <= wire.MAX_MESSAGE
        self._expected[key] = (operation, limit if known else wire.MAX_REPLY)

    def pack(self, key: int, fields: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes, bytes]:
        """The reply that takes the place of this one, or itself where it is neither too long nor nonsense; and its message."""
        operation, limit = self._expected.pop(key, ("", wire.MAX_REPLY))
        try:
            data = wire.pack_message(fields, blob)
        except ValueError as error:
            fault = internal_fault(error, operation)
        else:
            if len(data) <= limit:
                return fields, blob, data
            effects = "none" if operation in _LOOKING else "unknown"
            fault = Fault("response_too_large", effects=effects, size_bytes=len(data), limit=limit)
        fields = {"result": None, "fault": {"code": fault.code, "effects": fault.effects, "fields": fault.fields}}
        return fields, b"", wire.pack_message(fields)
