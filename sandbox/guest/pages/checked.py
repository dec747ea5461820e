"""What a page's program or the browser's driver answered, checked field by field: all of it is hostile."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

URL_CHARS = 8192
# Texts, lists and objects in one answer. 50 steps with 30 changes each are 2000.
MOST_VALUES = 20_000


def string(answer: dict[str, Any], name: str, most: int) -> str:
    """Return a text of at most ``most`` characters, valid Unicode. Raises TypeError."""
    value = answer[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not text")
    return unicode(value[:most])


def optional(answer: dict[str, Any], name: str, most: int) -> str:
    """Return a text, "" for one that is missing. Raises TypeError."""
    return string(answer, name, most) if answer.get(name) is not None else ""


def number(answer: dict[str, Any], name: str, least: int, most: int) -> int:
    """Return a whole number in its range. Raises ValueError."""
    value = answer[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is not a number in its range")
    return value


def items(answer: dict[str, Any], name: str, most: int, check: Callable[[dict[str, Any]], Any]) -> list[Any]:
    """Return a list of at most ``most`` objects, each checked; [] for one that is missing. Raises TypeError and ValueError."""
    found = answer.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found[:most]):
        raise TypeError(f"{name} is not a list of objects")
    return [check(each) for each in found[:most]]


def texts(answer: dict[str, Any], name: str, most: int, chars: int) -> list[str]:
    """Return a list of at most ``most`` texts; [] for one that is missing. Raises TypeError."""
    found = answer.get(name) or []
    if not isinstance(found, list):
        raise TypeError(f"{name} is not a list")
    return [string({name: each}, name, chars) for each in found[:most]]


def unicode(text: str) -> str:
    """Return the text without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def link(found: dict[str, Any]) -> dict[str, Any]:
    """Return a link of a page. Raises TypeError and KeyError."""
    return {"text": string(found, "text", 1000), "url": string(found, "url", URL_CHARS)}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def parse_answer(line: bytes) -> dict[str, Any]:
    """Return the object that a line of JSON is, or {} for a line that no program of ours writes.

    Only ASCII is decoded, which takes a byte for each character, and only a line of few values, as an empty list takes 60 bytes.
    """
    if not line.isascii() or not _has_few_values(line):
        return {}
    try:
        answer = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _has_few_values(line: bytes) -> bool:
    """Return whether a line of JSON has at most about MOST_VALUES texts, lists and objects."""
    unescaped = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * MOST_VALUES:
        return False
    outside = unescaped.split(b'"')[::2]
    return sum(part.count(mark) for part in outside for mark in (b",", b"[", b"{")) <= MOST_VALUES
