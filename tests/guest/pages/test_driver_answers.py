"""What the browser's driver writes is hostile: no answer of it is more than a fault."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.guest.commands.output import STDOUT
from sandbox.guest.pages.browser import LINE_BYTES, Browser
from sandbox.guest.pages.checked import parse_answer
from sandbox.guest.pages.full import _fault_of, _interact_result, _page_result
from sandbox.guest.pages.lines import Lines
from sandbox.guest.protocol.faults import Fault


@pytest.mark.parametrize(
    "answer",
    [
        {"fault": []},
        {"fault": "script_failed", "fields": {}, "result": {"final_url": "", "steps": [1]}},
        {"fault": "script_failed", "fields": {}, "result": {"final_url": 5}},
    ],
)
def test_forged_faults(answer: dict[str, Any]) -> None:
    call: Any = SimpleNamespace(args={})
    with pytest.raises(Fault) as raised:
        raise _fault_of(call, answer, _interact_result, "")
    assert raised.value.code == "browser_failed"


def test_a_fault_without_an_address() -> None:
    call: Any = SimpleNamespace(args={})
    answer = {"fault": "script_failed", "fields": {}, "result": {}}
    with pytest.raises(Fault) as raised:
        raise _fault_of(call, answer, lambda found: _page_result(found, {"url": ""}), "")
    assert raised.value.code == "browser_failed"


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity"])
def test_constants_that_are_not_json(word: bytes) -> None:
    assert parse_answer(b'{"result": ' + word + b"}") == {}


HUGE = {
    "lists": b'{"result": [' + b"[]," * (LINE_BYTES // 3 - 10) + b"1]}",
    "numbers": b'{"result": [' + b"1.5," * (LINE_BYTES // 4 - 10) + b"1]}",
    "texts": b'{"result": [' + b'"",' * (LINE_BYTES // 3 - 10) + b"1]}",
    "texts that look escaped": b'{"result": [' + rb'"\\",' * (LINE_BYTES // 5 - 10) + b"1]}",
    "names": b'{"result": {' + b'"a":{},' * (LINE_BYTES // 7 - 10) + b'"b":1}}',
    "depth": b'{"result": ' + b"[" * (LINE_BYTES - 20),
    "no JSON": b'"' * LINE_BYTES,
    "wide characters": b'{"result": "' + b"x" * (LINE_BYTES - 30) + "\U0001f600".encode() + b'"}',
}


@pytest.mark.parametrize("what", HUGE)
def test_a_hostile_line_takes_little_memory(what: str) -> None:
    line = HUGE[what]
    assert len(line) <= LINE_BYTES
    tracemalloc.start()
    try:
        assert parse_answer(line) == {}
        assert tracemalloc.get_traced_memory()[1] < 3 * LINE_BYTES
    finally:
        tracemalloc.stop()


def test_the_largest_answer_is_read() -> None:
    """A text and an outline of the most characters, each with 12 bytes, and steps with all their changes."""
    text = "\U0001f600" * 200_000
    changes = [f'+ button "{number}, [{{' for number in range(31)]
    steps = [{"action": "click", "what": "\\", "changes": changes, "value": None}] * 50
    answer = {"result": {"text": text, "outline": text, "links": [{"text": '"', "url": "x"}] * 200, "steps": steps}}
    line = json.dumps(answer).encode()
    assert len(line) < LINE_BYTES
    assert parse_answer(line) == answer


def test_a_line_without_end_is_not_kept() -> None:
    lines = Lines(LINE_BYTES)
    for _ in range(LINE_BYTES // (1 << 16) + 2):
        lines.append(STDOUT, b"x" * (1 << 16))
    assert lines.overflown
    assert lines.take() is None


@pytest.mark.parametrize(("line", "ends"), [(b"{}", True), (b'{"result": {}}', True), (b'{"failed": "it has ended"}', False)])
def test_a_driver_that_answers_what_nobody_asked_is_ended(line: bytes, ends: bool) -> None:
    stopped: list[Any] = []
    command: Any = SimpleNamespace(running=True)
    processes: Any = SimpleNamespace(stop=lambda which, *_: stopped.append(which))
    browser = Browser(processes)
    browser._command, browser._ready, browser._lines = command, True, Lines(LINE_BYTES)
    for _ in range(2):
        browser._lines.append(STDOUT, line + b"\n")
        browser._readable()
    assert stopped == ([command] if ends else [])
