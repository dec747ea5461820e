"""Long texts cut to what a model is shown: at the borders of lines where there are some, and only once."""

from __future__ import annotations

# About 2,500 tokens: what a model reads of one result, unless the caller of ``to_text`` says otherwise.
SHOWN_CHARS = 10_000
# What stands at the end of an output says more often why it failed than what stands at its beginning.
_HEAD_SHARE = 0.4
# A line that is longer than this is cut where the room ends.
_LINE_CHARS = 1000


def first_part(text: str, chars: int) -> str:
    """The beginning of ``text``, at most ``chars`` characters: whole lines, unless the last one is very long."""
    if len(text) <= chars:
        return text
    border = text.rfind("\n", max(0, chars - _LINE_CHARS), chars) + 1
    return text[: border or chars]


def last_part(text: str, chars: int) -> str:
    """The end of ``text``, at most ``chars`` characters: whole lines, unless the first one is very long."""
    if len(text) <= chars:
        return text
    start = len(text) - chars
    border = text.find("\n", start, start + _LINE_CHARS) + 1
    return text[border or start :]


def both_ends(head: str, tail: str, chars: int) -> tuple[str, str]:
    """The beginning of ``head`` and the end of ``tail``, together at most ``chars`` characters."""
    first = first_part(head, max(int(chars * _HEAD_SHARE), chars - len(tail)))
    return first, last_part(tail, chars - len(first))


def without_middle(text: str, chars: int, mark: str = "[... {count} characters are left out here ...]") -> str:
    """``text``, or its two ends with ``mark`` between them, where it is longer than ``chars``; {count} is what is left out."""
    if len(text) <= chars:
        return text
    head, tail = both_ends(text, text, chars)
    return joined(head, mark.format(count=f"{len(text) - len(head) - len(tail):,}"), tail)


def joined(head: str, mark: str, tail: str) -> str:
    """The parts, each on lines of its own."""
    return "\n".join(part.strip("\n") for part in (head, mark, tail) if part.strip("\n"))


def first_lines(lines: list[str], chars: int) -> list[str]:
    """As many of ``lines`` as ``chars`` characters have room for, at least one."""
    room = chars
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return lines[: max(number, 1)]
    return lines


def size_in_bytes(text: str) -> int:
    """How long ``text`` is in UTF-8; a character that stands for bytes which are none counts as one."""
    return len(text.encode("utf-8", "surrogatepass")) - 2 * text.count("\ufffd")
