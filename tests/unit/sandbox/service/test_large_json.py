"""A large body is read as a small one is, and others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandbox.service.http.payloads import json_text, large_json
from sandbox.service.http.payloads.json_text import read_json
from sandbox.service.http.payloads.large_json import read_large_json
from sandbox.service.http.problems import Problem, ProblemCode

SEED = 20261123
# What a cut in the wrong place would spoil: escapes, pairs of them, halves of pairs, characters of several bytes.
PIECES = (
    "plain text ", "x", '"', "\\", "\\u12", "\n", "\t", "/", "é", "€", "😀", "\ud83d", "\ude00", "\udcff", "ud83d", "\\ud83d",
)  # fmt: skip


def body(chance: random.Random) -> bytes:
    def text() -> str:
        return "".join(chance.choice(PIECES) for _ in range(chance.randrange(40)))

    value: dict[str, Any] = {text() + str(n): chance.choice((text(), [text(), [text(), n]], {text(): n}, n)) for n in range(4)}
    if chance.random() < 0.5:
        return json.dumps(value).encode()
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def damaged(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + chance.choice((b"", b'"', b"\\", b"\\u", b"\x00", b"\xff", b"\x80\x80", b"{", b"\\ud83d")) + data[at + 1 :]


async def outcome(read: Callable[[bytes], Awaitable[dict[str, Any]]], data: bytes) -> Any:
    try:
        return await read(data)
    except Problem as problem:
        return problem.status, problem.code


async def read_at_once(data: bytes) -> dict[str, Any]:
    return read_json(data)


def test_a_large_body_is_read_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "PIECE_BYTES", 16)
    monkeypatch.setattr(large_json, "_LONG_BYTES", 8)
    chance = random.Random(SEED)

    async def main() -> None:
        for _ in range(300):
            data = body(chance)
            assert await read_large_json(data) == read_json(data)
            wrong = damaged(data, chance)
            assert await outcome(read_large_json, wrong) == await outcome(read_at_once, wrong), wrong

    asyncio.run(main())


def test_others_have_their_turn_while_a_large_body_is_read() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> dict[str, Any]:
        beside = asyncio.create_task(other())
        found = await read_large_json(json.dumps({"path": "f", "content": 'a"\n' * 500_000}).encode())
        beside.cancel()
        return found

    assert asyncio.run(main())["content"] == 'a"\n' * 500_000
    assert turns > (5 * 500_000) // large_json.PIECE_BYTES


@pytest.mark.parametrize("data", [b'{"a": [' + b"1, " * 500_000 + b"1]}", b'{"a": ["' + b'x", "' * 400_000 + b'x"]}'])
def test_what_is_not_in_long_strings_is_bounded(data: bytes) -> None:
    assert len(data) > json_text.MOST_STRUCTURE_BYTES
    with pytest.raises(Problem) as caught:
        asyncio.run(read_large_json(data))
    assert (caught.value.status, caught.value.code) == (413, ProblemCode.body_too_large)
