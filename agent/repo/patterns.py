"""The patterns of .gitignore files, matched in time that grows with their length and never with what they could match.

pathspec and git itself take exponential time for patterns such as ``*a*a*a*a*b``; a repository may hold those. See
docs/decisions/0009-no-git-on-the-host.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from sandbox.frozen import dataclass

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t-\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_ANY = "**"
# In units of about 60 ns: a character of a pattern that is compared with a name of at most _SHORT characters. 200 patterns and
# 100,000 files take a third of it; what takes all of it has worked for about half a minute.
MOST_WORK = 500_000_000
_SHORT = 32
_CALL = 16  # of each comparison, whatever it compares
_READING = 4  # for a byte of a file of patterns
_COMPILING = (
    500  # for a character of a pattern, which takes up to 11 µs, and half a KiB for as long as the rules are kept
)
# No path that counts is as long, so a longer line could only be one that wastes time.
MOST_LINE_BYTES = 4096


class TooMuchWorkError(Exception):
    """The patterns of a repository take more comparisons than they may."""


class Work:
    """The budget for reading, compiling and comparing, shared by several lists of patterns."""

    def __init__(self, left: int = MOST_WORK) -> None:
        self.left = left

    def spend(self, characters: int, name: str) -> None:
        """Count a comparison of ``name`` with patterns of ``characters`` in all. Raises TooMuchWorkError over the
        budget.
        """
        self.take(_CALL + characters * (1 + len(name) // _SHORT))

    def take(self, units: int) -> None:
        """Count ``units``, such as the parts of a path that are skipped. Raises TooMuchWorkError over the budget."""
        self.left -= units
        if self.left < 0:
            raise TooMuchWorkError


@dataclass(frozen=True)
class Pattern:
    """One line of a .gitignore file. ``segments`` are the parts of a path, one for a pattern that only looks at names."""

    segments: tuple[str, ...]
    ignores: bool
    folders_only: bool
    by_name: bool

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str] | None, ...]:
        return tuple(None if segment == _ANY else re.compile(_regex(segment), re.DOTALL) for segment in self.segments)

    @cached_property
    def _least(self) -> int:
        return sum(segment != _ANY for segment in self.segments)

    def matches(self, parts: Sequence[str], work: Work) -> bool:
        """Return whether the path ``parts``, relative to the folder of the pattern, is one that it means."""
        if self.by_name:
            work.spend(len(self.segments[0]), parts[-1])
            return bool(self._compiled[0] and self._compiled[0].fullmatch(parts[-1]))
        compiled, segment, part = self._compiled, 0, 0
        if self._least > len(parts) or (self._least < len(parts) and self._least == len(compiled)):
            return False
        # As for * in a name: only the last ** needs to be tried again, one part further.
        again: tuple[int, int] | None = None
        while part < len(parts):
            work.spend(1 + (len(self.segments[segment]) if segment < len(compiled) else 0), parts[part])
            if segment < len(compiled) and compiled[segment] is None:
                segment += 1
                again = (segment, part)
                continue
            regex = compiled[segment] if segment < len(compiled) else None
            if regex is not None and regex.fullmatch(parts[part]):
                segment, part = segment + 1, part + 1
            elif again is not None:
                again = (again[0], again[1] + 1)
                segment, part = again
            else:
                return False
        return all(each is None for each in compiled[segment:])


class Patterns:
    """The patterns of one file, in order. ``too_long`` is how many lines are longer than MOST_LINE_BYTES, and not used."""

    def __init__(self, lines: Iterable[str], too_long: int = 0) -> None:
        self.too_long = too_long
        self.patterns = tuple(pattern for line in lines if (pattern := parse(_byte_wise(line))) is not None)
        self._characters = sum(len(pattern.segments[0]) + 1 for pattern in self.patterns)
        self._paths = any(not pattern.by_name for pattern in self.patterns)

    @classmethod
    def of_bytes(cls, data: bytes, work: Work) -> Patterns:
        """Return the patterns in a file's bytes. Compiling them is counted as work. Raises TooMuchWorkError."""
        work.take(_CALL + _READING * len(data))
        lines = [line for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if not line.startswith(b"#")]
        used = [line for line in lines if len(line) <= MOST_LINE_BYTES]
        work.take(_COMPILING * sum(map(len, used)))
        return cls((line.decode("utf-8", "surrogateescape") for line in used), len(lines) - len(used))

    @cached_property
    def _any_name(self) -> re.Pattern[str]:
        sources = dict.fromkeys(_regex(pattern.segments[0]) for pattern in self.patterns if pattern.by_name)
        return re.compile("|".join(f"(?:{source})" for source in sources) or "(?!)", re.DOTALL)

    def verdict(self, parts: Sequence[str], is_folder: bool, work: Work) -> bool | None:
        """Return whether the path is ignored; None if no pattern matches. The last one that matches decides."""
        work.take(len(parts))
        name = _byte_wise(parts[-1])
        work.spend(self._characters, name)
        by_name = self._any_name.fullmatch(name) is not None  # most names match none, which is fast to tell
        if not by_name and not self._paths:
            return None
        parts = [_byte_wise(part) for part in parts]
        for pattern in reversed(self.patterns):
            if (pattern.folders_only and not is_folder) or (pattern.by_name and not by_name):
                continue
            if pattern.matches(parts, work):
                return pattern.ignores
        return None


def _byte_wise(text: str) -> str:
    """Return the bytes of a name, one character each: git compares bytes, so that ``?`` is one of them."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def parse(line: str) -> Pattern | None:
    """Return the pattern of a line, None for one that has no pattern or one that never matches."""
    text = line.removesuffix("\r")
    if text.startswith("#"):
        return None
    while text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1]
    ignores = not text.startswith("!")
    text = text if ignores else text[1:]
    folders_only = text.endswith("/")
    text = text.rstrip("/") if folders_only else text
    by_name = "/" not in text
    segments = (text,) if by_name else tuple(text.removeprefix("/").split("/"))
    if "" in segments:
        return None
    if by_name and set(text) == {"*"}:
        segments = ("*",)
    if segments[-1] == _ANY:  # what is in the folder, not the folder itself
        segments = (*segments, "*")
    try:
        for segment in segments:
            _regex(segment)
    except _NeverMatchesError:
        return None
    return Pattern(segments, ignores, folders_only, by_name)


class _NeverMatchesError(Exception):
    pass


def _regex(segment: str) -> str:
    """Return a regular expression for one name. Each piece between two * is tried once at each place (an atomic
    group).
    """
    pieces = [""]
    at = 0
    while at < len(segment):
        char = segment[at]
        at += 1
        if char == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
        elif char == "?":
            pieces[-1] += "."
        elif char == "[":
            source, at = _bracket(segment, at)
            pieces[-1] += source
        elif char == "\\":
            if at == len(segment):
                raise _NeverMatchesError
            pieces[-1] += re.escape(segment[at])
            at += 1
        else:
            pieces[-1] += re.escape(char)
    first, *middle = pieces
    if not middle:
        return first
    last = middle.pop()
    return first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}"


def _bracket(segment: str, at: int) -> tuple[str, int]:
    """Return the regular expression of a bracket whose content begins at ``at``, and where it ends."""
    negated = segment[at : at + 1] in ("!", "^")
    at += negated
    ranges = ""
    start = at
    while True:
        if at >= len(segment):
            raise _NeverMatchesError
        if segment[at] == "]" and at > start:
            break
        if segment.startswith("[:", at) and (end := segment.find(":]", at)) > 0:
            name = segment[at + 2 : end]
            if name not in _CLASSES:
                raise _NeverMatchesError
            ranges += _CLASSES[name]
            at = end + 2
            continue
        low, at = _char(segment, at)
        if segment.startswith("-", at) and at + 1 < len(segment) and segment[at + 1] != "]":
            high, at = _char(segment, at + 1)
            # The other way round it is no range, but git compares the first one all the same.
            ranges += f"{re.escape(low)}-{re.escape(high)}" if low <= high else re.escape(low)
        else:
            ranges += re.escape(low)
    if not ranges:
        return ("." if negated else "(?!)"), at + 1
    return f"[{'^' if negated else ''}{ranges}]", at + 1


def _char(segment: str, at: int) -> tuple[str, int]:
    if segment[at] == "\\":
        at += 1
        if at >= len(segment):
            raise _NeverMatchesError
    return segment[at], at + 1
