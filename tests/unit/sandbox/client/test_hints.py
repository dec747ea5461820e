"""What a person at a command line, and a program, are advised to do when a service refuses something or is not there."""

from __future__ import annotations

import json

import httpx
import pytest

from sandbox import operations as op
from sandbox.client.http.service import Call, Service, error_of
from sandbox.envelope import Failure, Notice
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations.wire import envelope_data, read_envelope
from sandbox.readers import Hint, hint_for


@pytest.mark.parametrize("code", ["unauthorized", "locked_out", "forbidden", "wrong_host", "route_not_found", "quota_exceeded"])
def test_a_problem_is_worded_for_its_reader(code: str) -> None:
    problem = {"code": code, "detail": "No.", "hint": "Send 'Authorization: Bearer KEY' to GET /v1/whoami."}
    error = error_of(httpx.Response(400, content=json.dumps(problem)), "http://localhost")
    assert str(error.hint) == problem["hint"], "what the service says to an HTTP caller is there, too"
    for reader in ("cli", "host"):
        words = hint_for(reader, error.hint)
        assert words
        assert not any(each in words for each in ("GET /", "POST /", "Bearer")), words
    assert "api_key=" not in hint_for("cli", error.hint)


def test_a_code_without_words_of_ours_keeps_those_of_the_service() -> None:
    problem = {"code": "wrong_state", "detail": "It is paused.", "hint": "Wait."}
    assert error_of(httpx.Response(409, content=json.dumps(problem)), "http://localhost").hint == "Wait."


def test_hints_of_an_envelope_come_whole_over_http() -> None:
    hint, notice = Hint("for a model", "for a person", "for a program"), Hint("a", "b", "c")
    failure = Failure[op.RunResult](ErrorCode.no_space, "full", hint, notices=(Notice("x", "y", "z"), Notice("p", "q", notice)))
    plain = json.loads(json.dumps(envelope_data(failure)))
    assert "hints" not in plain
    read = read_envelope(op.RunResult, json.loads(json.dumps(envelope_data(failure, with_bytes=True))))
    assert not read.ok
    assert [hint_for(reader, read.hint) for reader in ("model", "cli", "host")] == ["for a model", "for a person", "for a program"]
    assert [hint_for("cli", each.hint) for each in read.notices] == ["z", "b"]
    assert read_envelope(op.RunResult, plain).notices[1].hint == "a"


def test_no_service_there() -> None:
    service = Service("http://127.0.0.1:9", "e2b_" + "0" * 40)
    with pytest.raises(SandboxError) as caught:
        service.request(Call("GET", "/healthz", patience_seconds=0))
    service.close()
    assert "unset GAMEBOX_URL" in hint_for("cli", caught.value.hint)
    for address, key in (("localhost:8080", "k"), ("http://localhost", "")):
        with pytest.raises(SandboxError) as caught:
            Service(address, key)
        assert "set GAMEBOX_" in hint_for("cli", caught.value.hint).lower().replace("gamebox_", "GAMEBOX_")
        assert "=..." not in hint_for("cli", caught.value.hint)
