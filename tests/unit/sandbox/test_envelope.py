"""The envelope is exactly the JSON of the design page, and text that a model can act on."""

from __future__ import annotations

import copy
import json
import pickle
import time
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import AgentErrorCode, error_code
from sandbox import envelope
from sandbox.envelope import Envelope, Failure, Notice, Success, jsonable
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError, ToolError
from sandbox.operations import ReadResult, RunResult

WHEN = "2024-05-01T12:00:00.000+02:00"
NOTICE = Notice("disk_nearly_full", "The disk is nearly full.", "Delete something.")


def test_success() -> None:
    envelope = Success({"a": 1}, timestamp=WHEN, duration_ms=1.23456, notices=(NOTICE,))
    assert envelope.to_dict() == {
        "tool_executed": True,
        "result": {"a": 1},
        "timestamp": WHEN,
        "duration_ms": 1.235,
        "notices": [{"code": "disk_nearly_full", "message": "The disk is nearly full.", "hint": "Delete something."}],
    }
    assert envelope.to_text() == '{"a": 1}\nNOTICE disk_nearly_full: The disk is nearly full. Delete something.'
    assert envelope.ok
    assert envelope.unwrap() == {"a": 1}


def test_failure() -> None:
    envelope = Failure[Any](
        ErrorCode.path_not_found, "'a' does not exist.", "List the folder.", "list", True, "partial", {"path": "a"},
        timestamp=WHEN, duration_ms=2, notices=(NOTICE,),
    )  # fmt: skip
    assert envelope.to_dict() == {
        "tool_executed": False,
        "error": "'a' does not exist.",
        "code": "path_not_found",
        "hint": "List the folder.",
        "next_tool": "list",
        "retryable": True,
        "effects": "partial",
        "result": {"path": "a"},
        "timestamp": WHEN,
        "duration_ms": 2,
        "notices": [NOTICE.to_dict()],
    }
    assert envelope.to_text().splitlines() == [
        "ERROR path_not_found: 'a' does not exist.", "HINT: List the folder.", "EFFECTS: A part of it was done.", '{"path": "a"}',
        "NOTICE disk_nearly_full: The disk is nearly full. Delete something.",
    ]  # fmt: skip
    assert not envelope.ok


def test_schema_only_with_a_failure_that_has_one() -> None:
    bare = Failure[Any](ErrorCode.timeout, "Too slow.")
    assert "schema" not in bare.to_dict()
    assert bare.to_dict()["result"] is None
    with_schema = Failure[Any](ErrorCode.invalid_arguments, "Wrong.", schema={"type": "object"})
    assert with_schema.to_dict()["schema"] == {"type": "object"}
    assert with_schema.to_text() == "ERROR invalid_arguments: Wrong."  # the model has the schemas of its tools


def test_typed_results() -> None:
    ran = RunResult(id="c1", exit_code=1, output="out\n", stdout="out\n")
    envelope: Envelope[RunResult] = Success(ran)
    assert RunResult.model_validate(envelope.to_dict()["result"]) == ran
    assert envelope.to_text() == "out\n[exit code 1]"
    read = Failure[ReadResult](ErrorCode.timeout, "Slow.", "Wait.", result=ReadResult(path="a", content="so far"))
    assert read.to_dict()["result"]["content"] == "so far"
    assert read.to_text() == "ERROR timeout: Slow.\nHINT: Wait.\nso far"


def test_unwrap_raises_the_same_fields() -> None:
    failure = Failure[Any](ErrorCode.no_space, "Full.", "Delete.", "delete", True, "partial", {"a": 1})
    with pytest.raises(SandboxError, match=r"Full\. \(no_space\) Delete\.") as caught:
        failure.unwrap()
    again = Failure[Any].of(caught.value, timestamp=failure.timestamp)
    assert again == failure


def test_the_reason_why_a_sandbox_is_gone_reaches_the_caller() -> None:
    error = SandboxUnavailableError("killed", "Gone.", "Start another.")
    error.result = {"a": 1}
    failure = Failure[Any].of(error)
    assert (failure.reason, failure.to_dict()["reason"]) == ("killed", "killed")
    with pytest.raises(SandboxUnavailableError) as caught:
        failure.unwrap()
    assert caught.value.reason == "killed"
    assert Failure[Any].of(caught.value, timestamp=failure.timestamp) == failure
    assert "reason" not in Failure[Any](ErrorCode.timeout, "Too slow.").to_dict()


@pytest.mark.parametrize(
    ("error", "code", "effects"),
    [
        (SandboxUnavailableError("killed", "Gone.", "Start another."), "sandbox_unavailable", "unknown"),
        (ToolError("Broken.", "Mend it."), "tool_error", "none"),
        (SandboxError(ErrorCode.io_error, "Odd.", effects="partial"), "io_error", "partial"),
    ],
)
def test_failures_of_errors(error: SandboxError, code: str, effects: str) -> None:
    failure = Failure[Any].of(error, duration_ms=3.0)
    assert (failure.code, failure.effects, failure.error, failure.hint) == (code, effects, error.message, error.hint)
    assert failure.duration_ms == 3.0


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner) | st.tuples(inner) | st.frozensets(st.text()),
    max_leaves=12,
)  # fmt: skip


@given(_anything)
def test_whatever_a_tool_returns_becomes_json(value: Any) -> None:
    envelope = Success(value)
    assert json.loads(json.dumps(envelope.to_dict(), allow_nan=True))["tool_executed"] is True
    assert isinstance(envelope.to_text(), str)


def test_things_that_are_no_json() -> None:
    loop: list[Any] = []
    loop.append(loop)
    json.dumps(jsonable(loop))
    assert jsonable({1: b"\xff", "s": {"x"}, "o": object}) == {"1": "\ufffd", "s": ["x"], "o": "<class 'object'>"}


def test_codes_say_their_own_name() -> None:
    codes = (*ErrorCode, *AgentErrorCode)
    assert all(code.name == code.value and code.value.isidentifier() and code.value.islower() for code in codes)


def test_codes_of_the_sandbox_and_of_the_agent_are_different_and_are_strings() -> None:
    codes = [*ErrorCode, *AgentErrorCode]
    assert len({code.value for code in codes}) == len(codes)
    assert all(error_code(code.value) is code for code in codes)
    failure = Failure[Any](AgentErrorCode.read_only, "x")
    assert failure.code == "read_only" == str(failure.code) == failure.to_dict()["code"]


def test_codes_that_moved_to_the_agent_are_found_at_the_old_place_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="AgentErrorCode.model_unavailable"):
        old = ErrorCode.model_unavailable  # type: ignore[attr-defined]
    assert old is AgentErrorCode.model_unavailable
    with pytest.raises(AttributeError):
        _ = ErrorCode.no_such_code  # type: ignore[attr-defined]


def test_a_failure_is_false_and_a_success_is_true() -> None:
    """Finding UX 7: ``if env.read("no/such/file"):`` was always taken."""
    failed: Envelope[ReadResult] = Failure(ErrorCode.path_not_found, "'a' does not exist.")
    assert not failed
    assert Success(None)
    assert Success("")


def test_an_unknown_attribute_names_where_the_fields_of_the_result_are() -> None:
    """Finding UX 7."""
    ran: Any = Success(RunResult(id="c1", exit_code=0))
    with pytest.raises(AttributeError, match=r"'exit_code'. Use \.result\.exit_code, or \.unwrap\(\)\.exit_code"):
        ran.exit_code  # noqa: B018
    failed: Any = Failure(ErrorCode.path_not_found, "'a' does not exist.")
    with pytest.raises(AttributeError, match=r"\.unwrap\(\)\.content, which raises SandboxError.*path_not_found: 'a' does not"):
        failed.content  # noqa: B018
    with pytest.raises(AttributeError, match=r"^'Success' object has no attribute 'exitcode'$"):
        ran.exitcode  # noqa: B018
    assert not hasattr(ran, "__array__")
    assert pickle.loads(pickle.dumps(ran)) == copy.copy(ran) == ran


def test_envelopes_are_short_when_they_are_printed() -> None:
    """Finding UX 7: the schema of a wrong call was 3,000 characters of it."""
    failed: Failure[Any] = Failure(
        ErrorCode.invalid_arguments, "Wrong.", "Read on.", schema={"type": "object", "properties": {"a" * 3000: {}}}
    )
    assert repr(failed) == "Failure(invalid_arguments: Wrong., hint: Read on.)"
    assert repr(Success({"a": 1}, notices=(NOTICE,))) == "Success({'a': 1}, notices: disk_nearly_full)"
    assert len(repr(Success("x" * 100_000))) < 400


@pytest.mark.parametrize("at", [0, 1_001, 1774745999_999, 1774746000_000, 1774746000_250, 1793494800_500])
def test_the_time_of_an_envelope_is_that_of_the_clock(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In milliseconds since 1970. Summer time begins and ends in Berlin at two of these."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for moment in (at, at + 1, at + 3600_000):
            monkeypatch.setattr(envelope, "time_ns", lambda moment=moment: moment * 10**6 + 999_999)
            expected = datetime.fromtimestamp(moment // 1000, ZoneInfo("Europe/Berlin")) + timedelta(milliseconds=moment % 1000)
            assert envelope.now() == expected.isoformat(timespec="milliseconds")
    finally:
        monkeypatch.undo()
        time.tzset()
