"""Finding the places of a file that are most similar to a text that it does not contain, in bounded time.

Short pieces of the text (q-grams) are looked up in the file; each hit votes for the line where the text would begin. Only the lines
with the most votes are compared in full (after Ukkonen 1992, "Approximate string-matching with q-grams and maximal matches").
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise

from .edits import make_candidate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECONDS = 0.5  # after that, the candidates found so far are returned
SEARCHED_BYTES = 4 << 20
MOST_CANDIDATES = 3
COMPARED = 12  # places compared in full
GRAM, GRAMS, HITS = 4, 64, 400  # length of a piece, pieces looked up, places of one piece that vote
CHARS = 400  # longer texts are compared by words, as comparing characters is quadratic
LONGEST = 20_000
LEAST_SIMILARITY = 0.4  # less similar places are no help


def find_candidates(data: bytes, wanted: bytes) -> list[dict[str, Any]]:
    """Return up to three candidates, the most similar first."""
    deadline = time.monotonic() + SECONDS
    data = data[:SEARCHED_BYTES]
    starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
    lines = wanted.replace(b"\r\n", b"\n").strip(b"\n").split(b"\n")
    found: list[tuple[float, int]] = []
    for line in _vote(data, starts, lines, deadline):
        end = _end(starts, line + len(lines), len(data))
        found.append((_similarity(data[starts[line] : end], b"\n".join(lines)), line))
        if time.monotonic() > deadline:
            break
    similar = [item for item in found if item[0] >= LEAST_SIMILARITY]
    best = sorted(similar, key=lambda item: (-item[0], item[1]))[:MOST_CANDIDATES]
    return [make_candidate(data, starts[n], _end(starts, n + len(lines), len(data)), score) for score, n in best]


def white_space_difference(wanted: bytes, candidates: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the "line" of the first candidate that differs in white space alone, and in "white_space" where; {} without one."""
    text = wanted.decode("utf-8", "replace").replace("\r\n", "\n").strip("\n")
    for found in candidates:
        there = str(found["text"]).replace("\r\n", "\n")
        if "".join(there.split()) != "".join(text.split()):
            continue
        ours, theirs = text.split("\n"), there.split("\n")
        if [line.rstrip() for line in ours] == [line.rstrip() for line in theirs]:
            kind = "at the end of a line"
        elif ("\t" in there) != ("\t" in text):
            kind = "tabs there, spaces in old_text" if "\t" in there else "spaces there, tabs in old_text"
        elif [line.strip() for line in ours] == [line.strip() for line in theirs]:
            kind = "the indentation"
        else:
            kind = "line breaks or spaces within a line"
        return {"line": found["start_line"], "white_space": kind}
    return {}


def _end(starts: list[int], line: int, size: int) -> int:
    return starts[line] if line < len(starts) else size


def _vote(data: bytes, starts: list[int], lines: list[bytes], deadline: float) -> list[int]:
    """Return the lines where the text may begin, those with the most votes first."""
    votes: Counter[int] = Counter()
    common: Counter[int] = Counter()
    for number, gram in _grams(lines):
        hits = 0
        at = data.find(gram)
        here: Counter[int] = Counter()
        while at >= 0 and hits <= HITS:
            here[max(0, bisect_right(starts, at) - 1 - number)] = 1
            hits += 1
            at = data.find(gram, at + 1)
        (common if hits > HITS else votes).update(here)
        if time.monotonic() > deadline:
            break
    return [line for line, _ in (votes or common).most_common(COMPARED)]


def _grams(lines: list[bytes]) -> list[tuple[int, bytes]]:
    """Return pieces of the text, spread evenly over it, with the numbers of their lines."""
    grams: list[tuple[int, bytes]] = []
    step = max(1, sum(map(len, lines)) // GRAMS)
    ends = [0]
    for line in lines:
        ends.append(ends[-1] + len(line))
    for number, (before, after) in enumerate(pairwise(ends)):
        text = lines[number].strip()
        if 0 < len(text) <= GRAM:
            grams.append((number, text))
            continue
        first = -before % step
        skipped = len(lines[number]) - len(lines[number].lstrip())
        places = range(max(0, first - skipped), len(text) - GRAM + 1, step) if after > before else range(0)
        grams += [(number, text[i : i + GRAM]) for i in places]
    return grams[: GRAMS * 2]


def _similarity(one: bytes, other: bytes) -> float:
    """Return the similarity of two texts from 0 to 1; differences in white space count little."""
    a, b = _text(one), _text(other)
    if max(len(a), len(b)) > CHARS:
        return SequenceMatcher(None, re.findall(r"\w+|\S", a[:LONGEST]), re.findall(r"\w+|\S", b[:LONGEST])).ratio()
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def _text(data: bytes) -> str:
    return "\n".join(" ".join(line.split()) for line in data.decode("utf-8", "replace").strip().split("\n"))
