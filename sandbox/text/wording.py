"""The parts of sentences: a fault's wording, sizes, durations, counts, and values from outside."""

from __future__ import annotations

from typing import Any, NamedTuple

_LARGEST = 1 << 62


class Wording(NamedTuple):
    """What a model reads about a fault: sentence, hint, name of the next tool (or None), and whether the same call can help."""

    message: str
    hint: str
    next_tool: str | None = None
    retryable: bool = False


def size(count: Any) -> str:
    """Return a number of bytes as people read it: "3.1 MiB"."""
    number = _finite(count)
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:g} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def _finite(value: Any) -> float:
    """Return a number from a guest as one to calculate with: 0 if it is not a number."""
    return float(min(max(value, -_LARGEST), _LARGEST)) if isinstance(value, int | float) and value == value else 0.0


def count_of(count: Any, noun: str) -> str:
    """Return a number with its noun in the right form: "1 process", "3 processes"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def duration(seconds: Any) -> str:
    """Return a duration as people say it, rounded: "45 seconds", "3 minutes", "2.5 hours"."""
    number = max(0.0, _finite(seconds))
    if number < 90:
        text = f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
        return count_of(1, "second") if text == "1" else f"{text} seconds"
    if number < 5400:
        return f"{number / 60:.0f} minutes"
    return f"{number / 3600:.3g} hours"


def value_text(value: object, most: int = 80) -> str:
    """Return a caller's value as part of a sentence: truncated, on one line, and valid Unicode.

    Python refuses to print ints with more than 4,300 digits, so they are described by their size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1024:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - such a number in a list, or an object whose repr fails
        return f"a {type(value).__name__} that cannot be shown"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(text: str) -> str:
    """Return a name that a command chose itself as part of a sentence: on one line, truncated, printable."""
    return "".join(char if char.isprintable() else "?" for char in text[:300])
