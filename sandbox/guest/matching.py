"""A program that looks for a regular expression in lines: a process of its own, because an expression can take for ever.

    python3 -m gamebox_guest.matching PATTERN

Standard input has blocks, a length (u32, big endian) and lines that are joined by line ends. For each block there is one line of
JSON on standard output: {"index": which line matched first, or null, "groups": [...]}; before the first one {"error": null}, or why
the pattern is none.
"""

from __future__ import annotations

import json
import re
import signal
import struct
import sys

LENGTH = struct.Struct(">I")
# For one block, where whoever asked is not there any more to end this: SIGALRM ends it in the middle of a match.
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


def main() -> None:
    """Answer until the input ends."""
    try:
        pattern = re.compile(sys.argv[1])
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        _say({"error": str(error)[:500] or type(error).__name__})
        return
    _say({"error": None})
    source = sys.stdin.buffer
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        text = source.read(LENGTH.unpack(head)[0]).decode("utf-8", "replace")
        signal.alarm(MOST_SECONDS)
        answer = first_match(pattern, text)
        signal.alarm(0)
        _say(answer)


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
