"""What every envelope has to be, whatever is in it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import pytest

from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError

T = TypeVar("T")
_PROGRAMS = {"python": r"\bpython3\b", "bash": r"\bbash\b|\bread -s\b", "debian": r"\bflock\b"}
SUCCESS_KEYS = {"tool_executed", "result", "timestamp", "duration_ms", "notices"}
FAILURE_KEYS = {
    "tool_executed", "error", "code", "hint", "next_tool", "retryable", "effects", "result", "timestamp", "duration_ms", "notices",
}  # fmt: skip


def done(envelope: Envelope[T]) -> T:
    """The result of a success whose every form is as it should be."""
    assert envelope.ok, envelope.to_text()
    data = envelope.to_dict()
    assert set(data) == SUCCESS_KEYS
    assert data["tool_executed"] is True
    _check_common(data)
    result: Any = envelope.unwrap()
    if not isinstance(result, op.DownloadResult):  # bytes are no JSON
        again = type(result).model_validate(json.loads(json.dumps(data["result"])))
        assert again.model_dump() == result.model_dump()
    if hasattr(result, "to_text"):
        assert envelope.to_text().startswith(str(result.to_text()).strip("\n"))
    return envelope.result


def by_programs(*rows: Any) -> list[Any]:
    """Parameters whose first one is a command: those that name a program of few images need an image that has it."""
    found = []
    for row in rows:
        values = row if isinstance(row, tuple) else (row,)
        needs = [name for name, pattern in _PROGRAMS.items() if re.search(pattern, values[0])]
        found.append(pytest.param(*values, marks=[pytest.mark.needs(*needs)] if needs else []))
    return found


def seen_until(look: Callable[[], T], so: Callable[[T], bool], seconds: float = 60.0) -> T:
    """The first thing that ``look`` sees which is ``so``, or the last one that it sees in that time."""
    deadline = time.monotonic() + seconds
    while not so(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen


def with_more_time(call: Callable[[float], T], so: Callable[[T], bool], first: float = 0.3) -> T:
    """The first answer of ``call`` that is ``so``: each call has more seconds than the one before, for a machine that is late."""
    for seconds in (first, 4.0, 16.0):
        if so(answer := call(seconds)):
            break
    return answer


def begun(run: Callable[[float], Envelope[op.RunResult]]) -> tuple[float, op.RunResult]:
    """The seconds that a command may take, and the answer to its start: it came before they were over."""
    seconds, answer = with_more_time(lambda seconds: (seconds, run(seconds)), lambda started: started[1].ok, 0.4)
    return seconds, done(answer)


def closed(call: Callable[[], object], *words: str) -> None:
    """``call`` raises SandboxError ``sandbox_closed``; each of ``words`` is in it."""
    with pytest.raises(SandboxError) as caught:
        call()
    assert caught.value.code is ErrorCode.sandbox_closed
    for word in words:
        assert word in str(caught.value)


def refused(envelope: Envelope[Any], code: str, *words: str, effects: str = "none") -> Failure[Any]:
    """The failure with ``code``; each of ``words`` stands in its error or its hint."""
    assert isinstance(envelope, Failure), envelope.to_text()
    assert (envelope.code, envelope.effects) == (ErrorCode(code), effects), envelope.to_text()
    data = envelope.to_dict()
    assert set(data) - {"schema", "reason"} == FAILURE_KEYS
    assert ("schema" in data) == (code == "invalid_arguments")
    assert ("reason" in data) == (code == "sandbox_unavailable")
    assert (data["tool_executed"], data["code"]) == (False, code)
    _check_common(data)
    json.dumps(data)
    text = envelope.to_text()
    assert text.startswith(f"ERROR {code}: {envelope.error}\nHINT: {envelope.hint}")
    assert envelope.error.endswith(".") or envelope.error.endswith("…")
    for word in ("None", "Traceback", "Error:"):
        assert word not in envelope.error + envelope.hint
    for wanted in words:
        assert wanted in envelope.error + " " + envelope.hint
    return envelope


def _check_common(data: dict[str, Any]) -> None:
    assert datetime.fromisoformat(data["timestamp"]).tzinfo is not None
    assert data["duration_ms"] >= 0
    for notice in data["notices"]:
        assert set(notice) == {"code", "message", "hint"}
        assert "None" not in notice["message"] + notice["hint"]


def codes_of(envelope: Envelope[Any]) -> list[str]:
    """The codes of its notices, but for files that earlier commands changed: on a busy machine any answer may tell of them."""
    return [n.code for n in envelope.notices if n.code != "files_changed" or not n.message.startswith("Since ")]


def so_far(failure: Failure[Any]) -> Any:
    """What a failure knows of its result."""
    assert failure.result is not None
    return failure.result
