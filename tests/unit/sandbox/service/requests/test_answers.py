"""Answers are kept as texts, and so many of them for all sandboxes of a service."""

from __future__ import annotations

import json
from functools import partial

import pytest

from sandbox.envelope import Envelope, Failure, Notice, Success
from sandbox.errors import ErrorCode
from sandbox.operations import RunResult
from sandbox.operations.wire import envelope_data
from sandbox.readers import Hint
from sandbox.service.requests.answers import Answer, AnswerRoom

BYTES = RunResult(exit_code=0, output="\ufffd", stdout="\ufffd", stdout_bytes=b"\xff", stderr="", stderr_bytes=b"")
PHRASED = Failure[RunResult](ErrorCode.timeout, "It was too slow.", Hint("Wait.", "wait", "wait()"))


@pytest.mark.parametrize(
    "envelope", [Success(BYTES), Success(BYTES, notices=(Notice("code", "It is full.", "Look."),)), PHRASED, Success({"a": 1})]
)
def test_an_answer_is_the_envelope_for_those_who_take_bytes_and_for_others(envelope: Envelope[RunResult]) -> None:
    answer = Answer(envelope)
    assert json.loads(answer.json(with_bytes=False)) == envelope_data(envelope)
    assert json.loads(answer.json(with_bytes=True)) == envelope_data(envelope, with_bytes=True)
    assert answer.notices == envelope.notices
    assert answer.code == ("timeout" if envelope is PHRASED else "")
    assert answer.size == sum(map(len, {answer.json(with_bytes=False), answer.json(with_bytes=True)}))


def test_the_tenant_that_has_most_loses_its_oldest_answers() -> None:
    gone: list[str] = []
    room = AnswerRoom(most=4)
    for name in ("a1", "b1", "a2", "a3", "a4", "b2"):
        room.keep(name[0], partial(gone.append, name), 1)
    assert gone == ["a1", "a2"]


def test_all_answers_together_have_so_many_bytes() -> None:
    gone: list[str] = []
    room = AnswerRoom(most_bytes=100)
    forget = {name: partial(gone.append, name) for name in ("small", "large", "more", "huge")}
    room.keep("quiet", forget["small"], 20)
    room.keep("busy", forget["large"], 60)
    room.keep("busy", forget["more"], 30)
    assert gone == ["large"]
    room.give_back("busy", forget["more"])
    room.give_back("busy", forget["more"])  # what is not kept has no room to give back
    room.keep("busy", forget["more"], 80)
    assert gone == ["large"]
    room.keep("busy", forget["huge"], 101)
    assert gone == ["large", "more", "huge"], "the quiet one has kept its own"
