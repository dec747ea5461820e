"""Requests and envelopes as the HTTP service writes and reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from sandbox.envelope import Failure, Notice, Success
from sandbox.errors import ErrorCode
from sandbox.operations import LogsResult, PatchResult, Run, RunResult, Send
from sandbox.operations.wire import envelope_data, read_envelope, request_data


def again(data: Any) -> Any:
    """The data as the other side has it."""
    return json.loads(json.dumps(data))


@pytest.mark.parametrize(
    "args",
    [
        {"command": "make"},
        {"argv": ["a", "\udcff"], "env": {"A": "b"}, "background": True},
        {"command": "cat", "stdin": b"\0\xff\n", "timeout_seconds": "unlimited"},
        {"command": "cat", "stdin": "text", "timeout_seconds": 2, "user": 7, "request_id": "x"},
    ],
)
def test_a_request_comes_back(args: dict[str, Any]) -> None:
    request = Run.model_validate(args)
    back = Run.model_validate(again(request_data(request)))
    assert request_data(request) == request_data(back)
    assert back.timeout_seconds == request.timeout_seconds
    text = back.stdin.encode("utf-8", "surrogateescape") if isinstance(back.stdin, str) else back.stdin
    asked = request.stdin.encode() if isinstance(request.stdin, str) else request.stdin
    assert text == asked
    assert back.request_id is None


def test_only_what_is_no_default_is_sent() -> None:
    assert request_data(Send(id="c1", keys=("enter",))) == {"id": "c1", "keys": ("enter",)}  # type: ignore[call-arg]
    unlimited = Run(command="true", timeout_seconds="unlimited")  # type: ignore[call-arg, arg-type]
    assert unlimited.timeout_seconds == math.inf
    assert request_data(unlimited) == {"command": "true", "timeout_seconds": "unlimited"}


def test_bytes_that_no_text_can_hold_are_sent_to_those_who_ask() -> None:
    result = RunResult(id="c1", stdout="\ufffd", stdout_bytes=b"\xff", stderr="e", stderr_bytes=b"e", encoding_errors=True)
    envelope = Success(result, notices=(Notice("output_not_text", "It is not.", "Look."),))
    assert envelope_data(envelope) == envelope.to_dict()
    data = envelope_data(envelope, with_bytes=True)
    assert data["bytes"] == {"stdout_bytes": "/w=="}
    assert read_envelope(RunResult, again(data)) == envelope
    without = read_envelope(RunResult, again(envelope_data(envelope))).unwrap()
    assert (without.stdout_bytes, without.stderr_bytes) == ("\ufffd".encode(), b"e")


def test_a_patch_is_bytes() -> None:
    for patch in (b"", b"-a\n+b\n", b"-\xff\n"):
        envelope = Success(PatchResult(since="start", patch=patch))
        assert read_envelope(PatchResult, again(envelope_data(envelope, with_bytes=True))) == envelope


def test_a_failure_comes_back_whole() -> None:
    failure: Failure[Any] = Failure(
        ErrorCode.sandbox_unavailable, "It is gone.", "Start another.", "run", True, "partial",
        LogsResult(id="c1", content="so far", content_bytes=b"so far"), duration_ms=1.5, reason="killed",
    )  # fmt: skip
    assert read_envelope(LogsResult, again(envelope_data(failure, with_bytes=True))) == failure
    wrong: Failure[Any] = Failure(ErrorCode.invalid_arguments, "No.", "Other.", schema={"type": "object"})
    assert read_envelope(LogsResult, again(envelope_data(wrong))) == wrong


def test_what_a_newer_service_adds_is_left_out() -> None:
    data = again(envelope_data(Success(RunResult(id="c1"))))
    data["result"]["colour"] = "blue"
    data["later"] = 1
    assert read_envelope(RunResult, data).unwrap().id == "c1"


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": None, "notices": 7}, {"result": None}, {"result": {"exit_code": "x"}}, {"notices": [{"code": "a"}]},
        {"tool_executed": False}, {"bytes": {"stdout_bytes": "no base64!"}},
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # ValidationError is one, too
        read_envelope(RunResult, {**envelope_data(Success(RunResult(id="c1"))), **change})
    with pytest.raises(ValueError, match="not an envelope"):
        read_envelope(RunResult, {})
