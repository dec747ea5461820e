"""Replacing a piece of text in the bytes of a file. Pure functions.

Everything works on bytes, so that the rest of the file (invalid UTF-8, a byte order mark, other line endings) stays as it is. A
line feed in the wanted text also matches CR LF; new text takes over the line endings that it replaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Place = tuple[int, int]
Replaced = tuple[int, int, bytes]

MAX_PLACES = 100_000
SHOWN_PLACES = 5
SHOWN_BYTES = 2000
DIFF_BYTES = 1 << 16
CONTEXT = 3  # lines around a change, as diff -u has it
COMPARED_LINES = 400  # a longer piece counts as replaced completely: matching lines is quadratic
CUT = "[the rest of the diff is cut]\n"


def find(data: bytes, old: bytes) -> list[Place]:
    """Return where ``old`` occurs, without overlaps, at most MAX_PLACES + 1 places."""
    return _found(_pattern(data, old), data) or _found(re.compile(re.escape(old)), data)


def _found(pattern: re.Pattern[bytes], data: bytes) -> list[Place]:
    return [match.span() for match in islice(pattern.finditer(data), MAX_PLACES + 1)]


def with_overlap(data: bytes, old: bytes, places: list[Place]) -> list[Place]:
    """Return the places; if there is only one, add a second that overlaps it, as "aa" in "aaa" is ambiguous, too."""
    if len(places) != 1:
        return places
    again = _pattern(data, old).search(data, places[0][0] + 1)
    return [*places, again.span()] if again else places


def _pattern(data: bytes, old: bytes) -> re.Pattern[bytes]:
    if b"\r\n" not in data:
        return re.compile(re.escape(old))
    return re.compile(rb"\r?\n".join(re.escape(line) for line in old.replace(b"\r\n", b"\n").split(b"\n")))


def replace(data: bytes, places: list[Place], new: bytes) -> tuple[bytes, list[Replaced]]:
    """Return the new content, and each place with its new text."""
    replaced: list[Replaced] = []
    parts: list[bytes] = []
    at = 0
    crlf = b"\r\n" in data
    for start, end in places:
        piece = _with_endings(data, start, end, new) if crlf and b"\n" in new else new
        replaced.append((start, end, piece))
        parts += (data[at:start], piece)
        at = end
    parts.append(data[at:])
    return b"".join(parts), replaced


def _with_endings(data: bytes, start: int, end: int, new: bytes) -> bytes:
    """Return ``new`` with the line endings of the lines it replaces.

    Inserted lines get the ending of their neighbour. A CR LF in ``new`` itself stays.
    """
    old_lines = re.split(rb"\r?\n", data[start:end])
    endings = re.findall(rb"\r?\n", data[start:end])
    new_lines = [line.removesuffix(b"\r") for line in new.split(b"\n")]
    own = [line.endswith(b"\r") for line in new.split(b"\n")]
    near = _ending_near(data, start, end) if not endings else b""
    parts = []
    for j, i in enumerate(_counterparts(old_lines, new_lines)[:-1]):
        ending = b"\r\n" if own[j] else endings[min(i, len(endings) - 1)] if endings else near
        parts += [new_lines[j], ending]
    return b"".join([*parts, new_lines[-1], b"\r" * own[-1]])


def _counterparts(old: list[bytes], new: list[bytes]) -> list[int]:
    """Return, for each new line, the index of the old line that it equals, replaces, or follows."""
    first = _common_prefix(old, new)
    last = min(_common_prefix(old[::-1], new[::-1]), min(len(old), len(new)) - first)
    old_end, new_end = len(old) - last, len(new) - last
    found = list(range(first))
    blocks = [("replace", first, old_end, first, new_end)]
    if max(old_end, new_end) - first <= COMPARED_LINES:
        matcher = SequenceMatcher(None, old[first:old_end], new[first:new_end], autojunk=False)
        blocks = [(tag, first + a, first + b, first + c, first + d) for tag, a, b, c, d in matcher.get_opcodes()]
    for _, i1, i2, j1, j2 in blocks:
        found += [max(0, min(i1 + k, i2 - 1)) for k in range(j2 - j1)]
    return found + list(range(old_end, len(old)))


def _common_prefix(one: list[bytes], other: list[bytes]) -> int:
    """Return how many lines at the beginning are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _ending_near(data: bytes, start: int, end: int) -> bytes:
    """Return the ending of the line that contains a piece without a line ending, or of the line before."""
    at = data.find(b"\n", end)
    if at < 0:
        at = data.rfind(b"\n", 0, start)
    return b"\r\n" if at > 0 and data[at - 1 : at] == b"\r" else b"\n"


def make_candidate(data: bytes, start: int, end: int, similarity: float = 1.0) -> dict[str, Any]:
    """Return a place as a result has it: the whole lines that it touches, truncated to SHOWN_BYTES."""
    first = data.count(b"\n", 0, start) + 1
    begin = data.rfind(b"\n", 0, start) + 1
    stop = data.find(b"\n", max(end - 1, start))
    text = data[begin : len(data) if stop < 0 else stop]
    last = first + text.count(b"\n")
    return {
        "start_line": first,
        "end_line": last,
        "text": _text(text[:SHOWN_BYTES]),
        "similarity": round(similarity, 3),
    }


def describe(data: bytes, places: list[Place]) -> list[dict[str, Any]]:
    """Return the first places as candidates."""
    return [make_candidate(data, start, end) for start, end in places[:SHOWN_PLACES]]


def diff(name: str, data: bytes, replaced: list[Replaced]) -> str:
    """Return a unified diff of the replacements, at most DIFF_BYTES long. Works on the places alone, not on the whole file."""
    out = [f"--- {name}\n", f"+++ {name}\n"]
    room = DIFF_BYTES - len(CUT) - sum(map(len, out))
    shift = 0
    line, counted = 1, 0
    for begin, end, items in _groups(data, replaced):
        line += data.count(b"\n", counted, begin)
        counted = begin
        old = _split(data[begin:end])
        new = _split(_patched(data, begin, end, items))
        for hunk_line in _hunks(old, new, line - 1, line - 1 + shift):
            room -= len(hunk_line.encode())
            if room < 0:
                return "".join([*out, CUT])
            out.append(hunk_line)
        shift += len(new) - len(old)
    return "".join(out)


def _groups(data: bytes, replaced: list[Replaced]) -> Iterator[tuple[int, int, list[Replaced]]]:
    """Yield groups of neighbouring replacements, with the extent of their lines and the context around them.

    A group that exceeds the length of a diff gets no more replacements: the diff will be cut within it anyway.
    """
    begin, end, items = 0, 0, list[Replaced]()
    for item in replaced:
        before, after = _extent(data, item[0], item[1])
        if items and (before > end or end - begin > DIFF_BYTES):
            yield begin, end, items
            items = []
        if not items:
            begin = before
        end = after
        items.append(item)
    if items:
        yield begin, end, items


def _extent(data: bytes, start: int, end: int) -> tuple[int, int]:
    begin = start
    for _ in range(CONTEXT + 1):
        begin = data.rfind(b"\n", 0, begin)
        if begin < 0:
            break
    end = max(end - 1, start)
    for _ in range(CONTEXT + 1):
        end = data.find(b"\n", end) + 1
        if end == 0:
            return begin + 1, len(data)
    return begin + 1, end


def _patched(data: bytes, begin: int, end: int, replaced: list[Replaced]) -> bytes:
    parts = []
    for start, stop, new in replaced:
        parts += [data[begin:start], new]
        begin = stop
    return b"".join([*parts, data[begin:end]])


def _hunks(old: list[str], new: list[str], old_before: int, new_before: int) -> list[str]:
    """Return the lines of the hunks between two short texts that begin after ``old_before`` and ``new_before`` lines."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if max(len(old), len(new)) > COMPARED_LINES:
        matcher = SequenceMatcher(None, [], [])
        matcher.get_opcodes = lambda: [("replace", 0, len(old), 0, len(new))]  # type: ignore[method-assign]
    out = []
    mixed = len({line.endswith("\r\n") for line in (*old, *new) if line.endswith("\n")}) > 1
    if mixed:  # a difference in line endings would be invisible
        old, new = ([re.sub(r"\r\n\Z", "^M\n", line) for line in lines] for lines in (old, new))
    for group in matcher.get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        removed, added = last[2] - first[1], last[4] - first[3]
        out.append(f"@@ -{_range(old_before + first[1], removed)} +{_range(new_before + first[3], added)} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_line(" ", line) for line in old[i1:i2]]
            else:
                out += [_line("-", line) for line in old[i1:i2]] + [_line("+", line) for line in new[j1:j2]]
    return out


def _range(before: int, count: int) -> str:
    start = before + 1 if count else before
    return f"{start}" if count == 1 else f"{start},{count}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _split(data: bytes) -> list[str]:
    lines = data.split(b"\n")
    whole = [_text(line) + "\n" for line in lines[:-1]]
    return [*whole, _text(lines[-1])] if lines[-1] else whole


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
