"""Schemas of users: what cannot be checked with is said when it is read, as nothing would be checked later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Action, ActionRegistry
from agent.hub import Problem
from agent.hub.files import scan
from agent.hub.schemas import schema_problem
from agent.job.ending import schema_in
from sandbox.errors import SandboxError

LOST = [
    ({"$ref": "#/nowhere"}, "'#/nowhere' leads to nothing within it"),
    ({"$ref": "http://127.0.0.1:9/x"}, "'http://127.0.0.1:9/x' leads to nothing within it"),
    ({"$ref": "file:///etc/passwd"}, "leads to nothing within it"),
    ({"$ref": "#name"}, "leads to nothing within it"),
    ({"$dynamicRef": "#name"}, "$dynamicRef '#name' leads to nothing within it"),
    ({"$ref": "#/type/x"}, "leads to nothing within it"),
    ({"$ref": "#/type/0/y"}, "leads to nothing within it"),
    ({"$ref": "#/minProperties/x"}, "leads to nothing within it"),
    ({"items": {"anyOf": [{"$ref": "#/nowhere"}]}}, "leads to nothing within it"),
    ({"$ref": "#/required"}, "leads to something that is not a schema"),
    ({"$ref": "#/x"}, "'text' is not valid"),
    ({"$ref": "#/y"}, "'#/nowhere' leads to nothing within it"),
    ({"$ref": "#/properties/task"}, "'#/properties/task' leads in a circle"),
    ({"anyOf": [{"type": "string"}, {"not": {"$ref": "#/properties/task"}}]}, "leads in a circle"),
    ({"$ref": "#/$defs/a"}, "leads in a circle"),
]
WHOLE: list[dict[str, Any]] = [
    {"$ref": "#/$defs/tree"},
    {"$ref": "#here"},
    {"items": {"$ref": "#"}},
    {"allOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/tree"}]},
    {"enum": [{"$ref": "#/nowhere"}]},
    {"properties": {"$ref": {"type": "string"}}},
    {"$ref": "#/$defs/no"},
]


def schema_with(task: dict[str, Any]) -> dict[str, Any]:
    tree = {"$anchor": "here", "type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}}
    circle = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}} if task.get("$ref") == "#/$defs/a" else {}
    return {
        "type": "object", "properties": {"task": task}, "required": ["task"], "minProperties": 1,
        "$defs": {"tree": tree, "no": False, **circle}, "x": {"type": "text"}, "y": {"$ref": "#/nowhere"},
    }  # fmt: skip


@pytest.mark.parametrize(("task", "says"), LOST)
def test_a_reference_that_leads_nowhere_is_said(task: dict[str, Any], says: str, tmp_path: Path) -> None:
    """By the reading of an agent's file, and of --result-schema."""
    schema = schema_with(task)
    assert says in (schema_problem(schema) or "")
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(SandboxError) as caught:
        schema_in(tmp_path / "schema.json")
    assert says in caught.value.message
    head = f"---\nname: one\ndescription: One.\nactions: [finish]\ninputs: {json.dumps(schema)}\n---\nDo it.\n"
    (tmp_path / "one.md").write_text(head)
    [problem] = scan(tmp_path)
    assert isinstance(problem, Problem)
    assert says in problem.what


@pytest.mark.parametrize("task", WHOLE)
def test_references_within_are_taken(task: dict[str, Any]) -> None:
    assert schema_problem(schema_with(task)) is None


def test_a_schema_too_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"not": schema}
    assert schema_problem(schema) == "it is nested too deeply"


refs = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/p", "#/required", "#/$defs/a/items", "#n", "x", "#/$defs/c/0"])
schemas: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.builds(lambda ref: {"$ref": ref}, refs) | st.just({"type": "object"}),
    lambda inner: (
        st.builds(lambda key, one: {key: one}, st.sampled_from(["items", "not", "additionalProperties"]), inner)
        | st.builds(lambda key, one: {key: [one]}, st.sampled_from(["allOf", "anyOf"]), inner)
        | st.builds(lambda one: {"properties": {"p": one}, "$anchor": "n"}, inner)
    ),
    max_leaves=6,
)
instances = st.recursive(st.none() | st.integers(), lambda v: st.lists(v, max_size=2) | st.dictionaries(st.just("p"), v))


@settings(deadline=None)
@given(schemas, schemas, schemas, instances)
def test_what_is_taken_can_be_checked_with(one: Any, two: Any, three: Any, value: Any) -> None:
    """Whatever leads where: no error comes of it, and arguments are not called uncheckable."""
    definitions = {"a": two, "b": three, "c": {"type": "string"}}
    schema = {"type": "object", "properties": {"p": one}, "required": ["p"], "$defs": definitions}
    if schema_problem(schema) is None:
        action = Action("a", lambda p: p, "d", schema)
        _, message = ActionRegistry().validate_args(action, {"p": value})
        assert "cannot be checked" not in message
