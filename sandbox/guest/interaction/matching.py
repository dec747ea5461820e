"""A program that looks for regular expressions in lines: a process of its own, because an expression can take for ever.

    python3 -m gamebox_guest.interaction.matching

Standard output begins with a line {"ready": true}. Standard input has questions: the pattern and lines that are joined by line
ends, each behind its length (u32, big endian). For each there is one line of JSON on standard output: {"index": which line matched
first, or null, "groups": [...]}, or {"error": why the pattern is none}.
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
# For one question, where whoever asked is not there any more to end this: SIGALRM ends it in the middle of a match.
MOST_SECONDS = 30
# What is told of a match: its first groups, cut.
MOST_GROUPS, GROUP_CHARS = 20, 200


def first_match(pattern: re.Pattern[str], text: str) -> dict[str, object]:
    """Which line of ``text`` matches first, and its groups."""
    for index, line in enumerate(text.split("\n")):
        if found := pattern.search(line):
            groups = [None if group is None else group[:GROUP_CHARS] for group in found.groups()[:MOST_GROUPS]]
            return {"index": index, "groups": groups}
    return {"index": None}


def answer_to(pattern: str, text: str) -> dict[str, object]:
    """What is said to one question. ``re`` remembers the patterns it compiled last."""
    try:
        return first_match(re.compile(pattern), text)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        return {"error": str(error)[:500] or type(error).__name__}


def main() -> None:
    """Answer until the input ends."""
    _say({"ready": True})
    source = sys.stdin.buffer
    while (pattern := _text(source)) is not None and (text := _text(source)) is not None:
        signal.alarm(MOST_SECONDS)
        answer = answer_to(pattern, text)
        signal.alarm(0)
        _say(answer)


def _text(source: BinaryIO) -> str | None:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(head)[0]).decode("utf-8", "replace")


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
