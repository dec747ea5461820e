"""A program that searches lines for a regular expression. It is a process of its own because a match can take forever.

    python3 -m gamebox_guest.interaction.matcher_program

It first writes the line {"ready": true} to standard output. A question on standard input is a pattern and lines joined by line
ends, each preceded by its length (u32, big endian). The answer is a line of JSON: {"index": first line that matches, or null,
"groups": [...]}, or {"error": why the pattern is invalid}.
"""

from __future__ import annotations

import json
import re
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

LENGTH = struct.Struct(">I")
# For one question, in case the guest is no longer there to end this process: SIGALRM ends it in the middle of a match.
MOST_SECONDS = 30
# Of a match only the first groups are reported, and their first characters.
MOST_GROUPS, GROUP_CHARS = 20, 200


def first_match(pattern: re.Pattern[str], text: str) -> dict[str, object]:
    """Return the index of the first line of ``text`` that matches, and its groups."""
    for index, line in enumerate(text.split("\n")):
        if found := pattern.search(line):
            groups = [None if group is None else group[:GROUP_CHARS] for group in found.groups()[:MOST_GROUPS]]
            return {"index": index, "groups": groups}
    return {"index": None}


def answer_question(pattern: str, text: str) -> dict[str, object]:
    """Return the answer to one question. ``re`` caches the patterns that it compiled last."""
    try:
        return first_match(re.compile(pattern), text)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        return {"error": str(error)[:500] or type(error).__name__}


def main() -> None:
    """Answer questions until the input ends."""
    _write({"ready": True})
    source = sys.stdin.buffer
    while (pattern := _read_part(source)) is not None and (text := _read_part(source)) is not None:
        signal.alarm(MOST_SECONDS)
        answer = answer_question(pattern, text)
        signal.alarm(0)
        _write(answer)


def _read_part(source: BinaryIO) -> str | None:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(head)[0]).decode("utf-8", "replace")


def _write(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
