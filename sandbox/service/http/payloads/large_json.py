"""Read the JSON of a large body a little at a time: other requests go on meanwhile. A thread would hold the lock all the time."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from itertools import pairwise
from typing import Any

from .json_text import MOST_STRUCTURE_BYTES, invalid, read_json, too_much

# What is read before other requests have their turn, in 2 ms.
PIECE_BYTES = 128 << 10
# Shorter strings are read together with what is not in strings.
_LONG_BYTES = 1024
_STRINGS_A_TURN = 500
# The beginning of a string that can be read by itself: it cuts no escape, and no pair of escapes that stands for one character.
_PART = re.compile(
    rb"(?:[^\"\\\x00-\x1f]++"
    rb"|\\[\"\\/bfnrt]"
    rb"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])..))"
    rb")*"  # "*+" gives up what it may not in Debian's Python 3.11.2
)


async def read_large_json(data: bytes) -> dict[str, Any]:
    """Do what ``read_json`` does. What is not in its long strings is at most MOST_STRUCTURE_BYTES. Raises Problem."""
    if len(data) <= PIECE_BYTES:
        return read_json(data)
    short, texts, mark = bytearray(), dict[str, str](), secrets.token_hex(16)
    at = count = 0
    while (begin := data.find(b'"', at)) >= 0:
        parts = await _parts(data, begin + 1)
        end = parts[-1] + 1
        if end - begin > _LONG_BYTES:
            name = f"{mark}{len(texts)}"
            texts[name] = await _text(data, parts)
            string = f'"{name}"'.encode()
        else:
            string = data[begin:end]
        short += data[at : min(begin, at + MOST_STRUCTURE_BYTES)] + string
        if begin - at >= MOST_STRUCTURE_BYTES or len(short) > MOST_STRUCTURE_BYTES:
            raise too_much()
        at, count = end, count + 1
        if count % _STRINGS_A_TURN == 0:
            await asyncio.sleep(0)
    if len(data) - at >= MOST_STRUCTURE_BYTES:
        raise too_much()
    found: dict[str, Any] = _with_texts(read_json(bytes(short + data[at:])), texts)
    return found


async def _parts(data: bytes, begin: int) -> list[int]:
    """Return where the parts of the string begin whose text begins there, and where the last one ends. Raises Problem."""
    found = [begin]
    while data[found[-1] : found[-1] + 1] != b'"':
        at = found[-1]
        match = _PART.match(data, at, at + PIECE_BYTES)
        end = at if match is None else match.end()
        for _ in range(3):  # a character of several bytes
            if end > at and 0x80 <= (data[end] if end < len(data) else 0) < 0xC0:
                end -= 1
        if end == at:
            raise invalid("The body is not JSON: it has a string that is not valid.")
        found.append(end)
        await asyncio.sleep(0)
    return found


async def _text(data: bytes, parts: list[int]) -> str:
    found = []
    for begin, end in pairwise(parts):
        try:
            found.append(json.loads(b'"' + data[begin:end] + b'"'))
        except ValueError as error:
            raise invalid(f"The body is not JSON: {str(error)[:200].rstrip('.')}.") from error
        await asyncio.sleep(0)
    return "".join(found)


def _with_texts(value: Any, texts: dict[str, str]) -> Any:
    """Return the value with the long strings in their places."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, list):
        return [_with_texts(each, texts) for each in value]
    if isinstance(value, dict):
        return {texts.get(name, name): _with_texts(each, texts) for name, each in value.items()}
    return value
