"""Cut long texts to what a model reads: at line ends if there are any, and only once."""

from __future__ import annotations

# About 2,500 tokens: what a model reads of one result, unless the caller of ``to_text`` says otherwise.
SHOWN_CHARS = 10_000
# The end of an output explains a failure more often than its beginning does.
_HEAD_SHARE = 0.4
# What stands in place of the characters that are left out; with a count it takes at most LEFT_OUT_CHARS, line ends included.
LEFT_OUT = "[... {count} characters are left out here ...]"
LEFT_OUT_CHARS = 52
# A longer line is cut where the room ends.
_LINE_CHARS = 1000


def first_part(text: str, chars: int) -> str:
    """Return the beginning of ``text``, at most ``chars`` characters: whole lines, unless the last one is very long."""
    if len(text) <= chars:
        return text
    border = text.rfind("\n", max(0, chars - _LINE_CHARS), chars) + 1
    return text[: border or chars]


def last_part(text: str, chars: int) -> str:
    """Return the end of ``text``, at most ``chars`` characters: whole lines, unless the first one is very long."""
    if len(text) <= chars:
        return text
    start = len(text) - chars
    border = text.find("\n", start, start + _LINE_CHARS) + 1
    return text[border or start :]


def both_ends(head: str, tail: str, chars: int) -> tuple[str, str]:
    """Return the beginning of ``head`` and the end of ``tail``, together at most ``chars`` characters."""
    first = first_part(head, max(int(chars * _HEAD_SHARE), chars - len(tail)))
    return first, last_part(tail, chars - len(first))


def without_middle(text: str, chars: int, mark: str = LEFT_OUT) -> str:
    """Return ``text``, cut in its middle to ``chars`` characters; ``mark`` says there that {count} characters are left out."""
    return cut_middle(text, chars, mark)[0]


def cut_middle(text: str, chars: int, mark: str = LEFT_OUT) -> tuple[str, int]:
    """Return the same, and how many characters are left out."""
    if len(text) <= chars:
        return text, 0
    head, tail = both_ends(text, text, chars)
    left_out = len(text) - len(head) - len(tail)
    return join_parts(head, mark.format(count=f"{left_out:,}"), tail), left_out


def join_parts(head: str, mark: str, tail: str) -> str:
    """Join the parts, each on lines of its own."""
    return "\n".join(part.strip("\n") for part in (head, mark, tail) if part.strip("\n"))


def first_lines(lines: list[str], chars: int) -> list[str]:
    """Return as many of ``lines`` as fit into ``chars`` characters, at least one."""
    room = chars
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return lines[: max(number, 1)]
    return lines


def few_lines(text: str, lines: int, line_chars: int) -> str:
    """Return ``text`` for a person, its middle left out if it has more than ``lines`` lines, and long lines cut.

    A mark says how much is left out: "… 12 lines …", "… 340 characters more". It would not replace a single line.
    """
    parts = [_cut_line(line, line_chars) for line in text.split("\n")]
    if len(parts) > lines + 1:
        half = lines // 2
        parts = [*parts[:half], f"… {len(parts) - 2 * half} lines …", *parts[-half:]]
    return "\n".join(parts)


def _cut_line(line: str, chars: int) -> str:
    return line if len(line) <= chars else f"{line[:chars]}… {len(line) - chars} characters more"


def size_in_bytes(text: str) -> int:
    """Return the size of ``text`` in UTF-8; a replacement character, which stands for an invalid byte, counts as one."""
    return len(text.encode("utf-8", "surrogatepass")) - 2 * text.count("\ufffd")
