"""What is wrong with arguments is said in words of the schema, of the wrong arguments alone (s54; D: schemas repeated)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.environment.base import Environment
from sandbox.messages import arguments as argument_words
from sandbox.operations import OPERATIONS, schema_of

RUN = schema_of(OPERATIONS["run"])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}, "a number above 0"),
        ({"type": "integer", "minimum": 1, "maximum": 20}, "a whole number of at least 1 and of at most 20"),
        ({"enum": ["a", "b"]}, "one of 'a', 'b'"),
        ({"type": "array", "items": {"type": "string"}}, "a list of which each is a text"),
        ({"type": "array", "minItems": 1, "maxItems": 50}, "a list of at most 50 items and that is not empty"),
        ({"type": ["boolean", "null"]}, "true or false"),
        (True, "another value"),
        ({}, "another value"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "a list"),
    ],
)
def test_the_kind_of_a_value(schema: Any, said: str) -> None:
    assert argument_words.kind_of(schema) == said


def test_s54_the_message_says_what_the_argument_is_and_the_text_has_no_schema() -> None:
    answer = Environment().execute("run", {"command": "pytest", "timeout_seconds": [5], "evn": {}})
    assert not answer.ok
    assert answer.schema == RUN  # the envelope keeps all of it
    text = answer.to_text()
    assert "timeout_seconds must be a number above 0" in text
    assert "run has no argument 'evn': did you mean env?" in text
    assert "properties" not in text
    assert len(text) < 400


def test_bounds_of_a_list_are_of_its_items() -> None:
    answer = Environment().execute("browse_interact", {"steps": [{"action": "back"}] * 51})
    assert not answer.ok
    assert "steps must be a list of at most 50 items" in answer.error
    for operation in OPERATIONS.values():
        for name, schema in schema_of(operation)["properties"].items():
            assert not (schema.get("type") == "array" and {"minLength", "maxLength"} & schema.keys()), name


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | (
    st.dictionaries(st.sampled_from(["type", "anyOf", "enum", "minimum", "maxLength", "items", "description", "properties"]), inner)
), max_leaves=8)  # fmt: skip


@given(JSON, JSON)
def test_strange_schemas_are_worded(schema: Any, value: Any) -> None:
    assert argument_words.kind_of(schema)
    assert argument_words.wrong("a", value, {"properties": {"a": schema}})
    assert argument_words.missing("tool", ["a"], {"properties": schema})
    assert argument_words.unknown("tool", "b", {"properties": {"a": schema}})
