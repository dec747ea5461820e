"""The inputs of an agent as they are given on a command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent.hub.building import check_inputs
from sandbox.cli.errors import bad_input

from .hub import AgentSpec


def inputs_of(spec: AgentSpec, task: str, given: Sequence[str]) -> dict[str, Any]:
    """The inputs of ``spec`` from KEY=VALUE each; the task is its input of that name. Values are JSON where its schema asks for
    anything but a text. Raises SandboxError.
    """
    properties: Any = spec.inputs.get("properties", {})
    inputs: dict[str, Any] = {"task": task} if "task" in properties else {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise bad_input(f"--input {text[:200]!r} is not KEY=VALUE.", "Write it as in --input summary='a library'.")
        if key not in properties:
            raise bad_input(
                f"The agent {spec.name} has no input {key[:80]!r}.", f"It has: {', '.join(properties) or 'none'}."
            )
        inputs[key] = _value(key, value, properties[key])
    check_inputs(spec, inputs)
    return inputs


def _value(key: str, text: str, schema: Any) -> Any:
    if not isinstance(schema, dict) or schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = schema["type"]
        raise bad_input(f"--input {key}={text[:80]!r} is no JSON, and {key} is {kind}.", "Write it as JSON.") from error
