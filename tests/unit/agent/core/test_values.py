"""Goals, actions, registry, memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import (
    Action,
    ActionRegistry,
    ActionWarning,
    Agent,
    Environment,
    FunctionCallingLanguage,
    Goal,
    Memory,
    ScriptedModel,
    ToolError,
    WindowMemory,
)
from agent.core.envelopes import text_of
from agent.core.goals import in_order
from agent.core.registry import lint
from agent.tools import finish_action


def test_goal_of_one_text() -> None:
    goal = Goal("Find and summarize information on topic X, in detail")
    assert (goal.priority, goal.name) == (10, "find_and_summarize_information_on")
    assert goal.description.endswith("in detail")
    assert Goal.of("x") == Goal("x")


@pytest.mark.parametrize("bad", [("1", "n", "d"), (True, "n", "d"), (1, 2, "d"), (1, "n", None)])
def test_goal_of_wrong_types(bad: tuple[Any, Any, Any]) -> None:
    with pytest.raises(TypeError):
        Goal(*bad)


def test_goals_in_order_of_priority_name_and_giving() -> None:
    goals = [Goal(2, "a", "1"), Goal(1, "b", "2"), Goal(1, "a", "3"), Goal(1, "a", "4")]
    assert [g.description for g in in_order(goals)] == ["3", "4", "2", "1"]


def test_action_takes_function_or_fn_but_not_both() -> None:
    assert Action("a", lambda: 1, "d").execute() == 1
    assert Action("a", fn=lambda: 2, description="d").execute() == 2
    with pytest.raises(ValueError, match="both"):
        Action("a", len, "d", fn=len)
    with pytest.raises(ValueError, match="needs a function"):
        Action("a")
    with pytest.raises(ValueError, match="needs a name"):
        Action("", len, "d")


def test_an_argument_named_self_works() -> None:
    assert Action("a", lambda **kw: kw, "d").execute(self=1, action=2) == {"self": 1, "action": 2}


def test_registry_replaces_only_when_told() -> None:
    first, second = Action("a", lambda: 1, "d"), Action("a", lambda: 2, "d")
    registry = ActionRegistry([first])
    with pytest.raises(ValueError, match="Action already registered: a"):
        registry.register(second)
    registry.register(second, replace=True)
    assert registry.get_actions() == [second]


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "needs n"),
        ({"n": "1"}, "n must be a whole number, not '1'"),
        ({"n": 1, "x": 2}, "a has no argument 'x': it has n, s"),
        ([1], "must be an object, not list"),
        (None, "must be an object, not NoneType"),
    ],
)
def test_validate_args_says_what_is_wrong(args: Any, said: str) -> None:
    action = Action("a", lambda n, s="": n, "d", SCHEMA)
    ok, message = ActionRegistry([action]).validate_args(action, args)
    assert not ok
    assert said in message
    assert ActionRegistry().validate_args(action, {"n": 1, "s": "x"}) == (True, "ok")


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"multipleOf": 0.01}, 10**400),
        ({"multipleOf": 0.01}, float("inf")),
        ({"multipleOf": 0.5}, float("nan")),
        ({"type": "string"}, 10**5000),  # too long to be printed
        ({"$ref": "#/$defs/tree"}, _nested(5000)),
    ],
    ids=["large", "inf", "nan", "long", "deep"],
)
def test_arguments_that_cannot_be_checked_are_refused(rule: dict[str, Any], value: Any) -> None:
    """They do not end the run; the model may give others."""
    tree = {"type": ["array", "integer"], "items": {"$ref": "#/$defs/tree"}}
    action = Action("a", lambda n: n, "d", {"type": "object", "properties": {"n": rule}, "$defs": {"tree": tree}})
    ok, message = ActionRegistry().validate_args(action, {"n": value})
    assert not ok
    assert "cannot be checked" in message


def test_a_run_goes_on_after_arguments_that_cannot_be_checked() -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number", "multipleOf": 0.01}}}
    registry = ActionRegistry([finish_action(schema)])
    replies = [{"tool": "finish", "args": {"price": price}} for price in (10**400, 4)]
    run = Agent([Goal("g")], FunctionCallingLanguage(), registry, ScriptedModel(replies), Environment()).execute("t")
    assert [(step.envelope or {}).get("code") for step in run.steps] == ["invalid_arguments", None]
    assert run.result == {"price": 4}


def test_only_equal_schemas_are_checked_once() -> None:
    """One that JSON would make equal to a valid schema is still the function's to judge."""
    for required in (["x"], ("x",)):
        schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": required}
        action = Action("a", lambda **kw: kw, "d", schema)
        for _ in range(2):
            assert ActionRegistry().validate_args(action, {"x": "no"})[0] is isinstance(required, tuple)


def test_a_reference_in_a_schema_is_never_fetched() -> None:
    action = Action(
        "a", lambda **kw: kw, "d", {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/s"}}}
    )
    assert ActionRegistry().validate_args(action, {"x": 1}) == (True, "ok")


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (Action("bad name", lambda: 1, "d"), "name"),
        (Action("a", lambda: 1, " "), "description is empty"),
        (Action("a", lambda: 1, "d", {"properties": {}}), '"type": "object"'),
        (Action("a", lambda **kw: 1, "d", {"type": "object", "required": ["x"]}), "'x' is not among the properties"),
        (Action("a", lambda: 1, "d", {"type": "object", "properties": {"x": {}}}), "does not take 'x'"),
        (Action("a", lambda x: 1, "d"), "needs 'x'"),
        (
            Action("a", lambda x: 1, "d", {"type": "object", "properties": {"x": {"type": "str"}}, "required": ["x"]}),
            "'str'",
        ),
    ],
)
def test_lint_warns_at_registration(action: Action, problem: str) -> None:
    with pytest.warns(ActionWarning, match="Action") as caught:
        ActionRegistry([action])
    assert any(problem in str(w.message) for w in caught)


def test_lint_is_silent_about_a_good_action() -> None:
    assert lint(Action("a", lambda n, s="": n, "Does it.", SCHEMA)) == []


def test_tools_are_sorted_whatever_the_order_of_registration() -> None:
    a, b = Action("a", lambda: 1, "A."), Action("b", lambda: 1, "B.")
    assert ActionRegistry([b, a]).tools() == ActionRegistry([a, b]).tools()
    assert ActionRegistry([b, a]).get_actions() == [b, a]


def test_memory_converts_types_and_refuses_other_roles() -> None:
    memory = Memory()
    memory.add_memory({"type": "system", "content": "result"})
    memory.add_memory({"role": "assistant", "content": "x", "more": 1})
    assert memory.get_memories() == [
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": "x", "more": 1},
    ]
    for bad in (
        {"role": "system", "content": "x"},
        {"role": "user"},
        {"content": "x"},
        {"type": "robot", "content": ""},
    ):
        with pytest.raises(ValueError, match="memory"):
            memory.add_memory(bad)


def test_memory_limits() -> None:
    memory = Memory()
    for n in range(3):
        memory.add_memory({"role": "user", "content": str(n)})
    assert memory.get_memories(0) == []
    assert len(memory.get_memories(99)) == 3
    with pytest.raises(ValueError, match="negative"):
        memory.get_memories(-1)
    memory.get_memories().clear()
    assert len(memory.get_memories()) == 3


@given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 12), st.integers(0, 3))
def test_a_window_keeps_the_task_and_never_splits_a_call_from_its_answers(
    answers: list[int], limit: int, keep_first: int
) -> None:
    memory = WindowMemory(limit, keep_first)
    memory.add_memory({"role": "user", "content": "task"})
    for turn, count in enumerate(answers):
        memory.add_memory({"role": "assistant", "content": str(turn)})
        for n in range(count):
            memory.add_memory({"role": "tool", "content": f"{turn}.{n}"})
    shown = memory.get_memories()
    assert shown[-limit:] == memory.items[-limit:][-len(shown) :]
    assert len(shown) <= limit + keep_first + 6
    if keep_first:
        assert shown[0]["content"] == "task"
    for before, message in pairwise(shown):
        if message["role"] == "tool":
            assert before["role"] in {"assistant", "tool"}
            assert before["content"].split(".")[0] == message["content"].split(".")[0]
    assert not shown or shown[0]["role"] != "tool"


def test_metadata_has_effects() -> None:
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def approve(name: str, args: Mapping[str, Any]) -> bool:
        asked.append((name, args))
        return bool(args["n"] == 1)

    action = Action("a", lambda n: n, "d", SCHEMA, metadata={"requires_approval": True})
    assert Environment().execute_action(action, {"n": 1})["code"] == "approval_refused"
    environment = Environment(approver=approve)
    assert environment.execute_action(action, {"n": 1})["result"] == 1
    assert environment.execute_action(action, {"n": 2})["code"] == "approval_refused"
    assert asked == [("a", {"n": 1}), ("a", {"n": 2})]


def test_a_result_that_cannot_be_checked_is_told() -> None:
    action = Action("a", lambda: 10**400, "d", return_schema={"type": "integer", "multipleOf": 0.5})
    envelope = Environment().execute_action(action, {})
    assert (envelope["code"], "cannot be checked" in envelope["error"]) == ("invalid_result", True)


def test_return_schema_is_checked_afterwards() -> None:
    def made(value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
        return Environment().execute_action(Action("a", lambda: value, "d", return_schema=schema), {})

    assert made([1], {"type": "array"})["tool_executed"] is True
    refused = made([1, "x"], {"type": "array", "items": {"type": "integer"}})
    assert (refused["tool_executed"], refused["code"], refused["result"]) == (False, "invalid_result", [1, "x"])
    assert "1: 'x' is not of type 'integer'" in refused["error"]
    text = text_of(refused)
    assert "EFFECTS" not in text  # the tool ran to its end, which the hint says
    assert text.endswith('\nThe answer of the tool, as it came: [1, "x"]')
    assert made(1, {"type": "nonsense"})["code"] == "invalid_result"
    assert made(1, {"$ref": "http://127.0.0.1:9/s"})["code"] == "invalid_result"


def test_tool_error_words_its_failure() -> None:
    def fail() -> None:
        raise ToolError("No file is open.", "Call open_file first.", retryable=True, next_tool="open_file")

    answer = Environment().execute_action(Action("a", fail, "d"), {})
    assert (answer["code"], answer["error"], answer["hint"]) == (
        "tool_error",
        "No file is open.",
        "Call open_file first.",
    )
    assert (answer["retryable"], answer["next_tool"]) == (True, "open_file")
