"""Where reading the output of a command begins."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Readable(Protocol):
        """Output of ``total`` bytes so far."""

        @property
        def total(self) -> int:
            """How many bytes were written."""

        def read(self, offset: int, size: int) -> tuple[int, bytes]:
            """Return (start, bytes) from ``offset`` on, or from the first byte after it that is still kept."""


def find_start_offset(output: Readable, args: dict[str, Any], most: int) -> int:
    """Return the offset to read from: ``offset``, which counts from the end if it is negative, or the last ``tail_lines`` lines.

    The lines are cut to what fits into one answer (``max_bytes``, at most ``most``). An offset counted from the end is moved on to
    the beginning of a character.
    """
    if args.get("tail_lines") is not None:
        size = min(args["max_bytes"], most)
        at, data = output.read(max(0, output.total - size), size)
        start = len(data) - 1 if data.endswith(b"\n") else len(data)
        for _ in range(args["tail_lines"]):
            start = data.rfind(b"\n", 0, max(start, 0))
            if start < 0:
                return at + _continuation_bytes(data) if at else 0
        return at + start + 1
    if args["offset"] >= 0:
        return int(args["offset"])
    at, data = output.read(max(0, output.total + args["offset"]), 4)
    return at + _continuation_bytes(data) if at else 0


def _continuation_bytes(data: bytes) -> int:
    """Return how many bytes at the start belong to a character that began before."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
