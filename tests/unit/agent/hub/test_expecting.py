"""Scripts that say what each answer must be: what counts as another answer, and how the difference is shown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import Memory, RunStatus, Step, StopRun
from agent.hub.agents.dummy.expecting import Expected, ExpectingScript, difference, differences, masked
from agent.layers.own_sessions import OwnSessions
from sandbox.testing import FakeEnvironment

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_the_same_is_no_difference(value: Any) -> None:
    assert not differences(value, value)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4), st.text(min_size=4, max_size=5), JSON)
def test_more_than_was_asked_for_is_no_difference_and_less_is_one(value: dict[str, Any], key: str, more: Any) -> None:
    assert not differences(value, {**value, key: more})
    assert differences({**value, key: more}, value)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (True, 1), (0, False), ([1], [1, 2]), ([1, 2], [1]), ({}, []), (re.compile("a"), "b"), (re.compile("1"), 1), ("a", None),
        ({"a": {"b": [re.compile("^x$")]}}, {"a": {"b": ["xx"]}}),
    ],
)  # fmt: skip
def test_what_is_another_answer(expected: Any, found: Any) -> None:
    assert differences(expected, found)


def test_a_difference_shows_what_was_asked_and_masks_what_is_another_each_time() -> None:
    answer = {"tool_executed": True, "result": {"output": "at 127.0.0.1:47110\n", "exit_code": 0, "id": "c7", "cwd": "x"}}
    expected = Expected("run", {}, {"result": {"output": re.compile("hello"), "id": "c9", "exit_code": 0}})
    lines = difference(expected, "run", answer).splitlines()
    assert '-  "output": "/hello/"' in lines
    assert '+  "output": "at 127.0.0.1:PORT\\n"' in lines
    assert not any("cwd" in line or "c7" in line for line in lines)
    failed = difference(expected, "run", {"tool_executed": False, "code": "timeout", "error": "x", "timestamp": "t"})
    assert '+ "code": "timeout",' in failed.splitlines()


def test_what_is_masked() -> None:
    said = "2026-11-22T01:02:03.456+00:00 run 0123456789abcdef on port 48080, decade 2020"
    assert masked(said) == "DATE run ID on port PORT, decade 2020"
    assert masked({"id": "c1", "pid": None, "text": ["facade"]}) == {"id": "<masked>", "pid": None, "text": ["facade"]}


def test_it_goes_on_where_the_memory_says() -> None:
    """A run that was broken off is taken up with its memory, and its steps are counted anew."""
    script = ExpectingScript([Expected("one"), Expected("two", {}, {"tool_executed": True, "result": 2}), Expected("finish")])
    memory = Memory()
    for tool in ("one", "two"):
        memory.add_memory({"role": "assistant", "content": {"tool": tool, "args": {}}})
        memory.add_memory({"role": "tool", "content": {"tool_executed": True, "result": 2}})
    script.on_result(Step(1, tool="two", envelope={"tool_executed": True, "result": 2}), memory)
    with pytest.raises(StopRun) as caught:
        script.on_result(Step(1, tool="two", envelope={"tool_executed": True, "result": 3}), memory)
    assert (caught.value.status, caught.value.result["step"]) == (RunStatus.unexpected, 2)


def test_sessions_of_an_agent_are_its_own_whatever_they_are_called() -> None:
    with FakeEnvironment(commands={"true": ""}) as fake:
        env = OwnSessions(fake, "0123456789abcdef", "boss")
        names = ["default", "x", "y" * 60, "y" * 59 + "z"]
        for name in names:
            assert env.run("true", session=name).ok
        assert env.run("true", session=None).ok
        sent = [getattr(request, "session", "") for request in fake.requests]
        assert len(set(sent)) == 5
        assert sent[-1] is None
        assert all(len(name) <= 64 and name.startswith("0123456789abcdef") for name in sent[:-1])
        assert not env.run("true", session="z" * 65).ok
