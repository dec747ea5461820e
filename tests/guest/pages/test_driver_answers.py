"""What the browser's driver writes is hostile: no answer of it is more than a fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.guest.pages.browser import _parse
from sandbox.guest.pages.full import _fault_of, _interact_result, _page_result
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
    assert _parse(b'{"result": ' + word + b"}") == {}
