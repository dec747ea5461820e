"""The inputs of an agent: read from the command line, and checked against its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.registry import ActionRegistry
from sandbox.errors import ErrorCode, SandboxError, configuration_error

from .spec import AgentSpec


def parse_inputs(spec: AgentSpec, task: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the inputs of ``spec`` from KEY=VALUE texts; the task is its input of that name, if it has one.

    A value is JSON if the schema of its input is not that of a text. Raises SandboxError ``invalid_configuration`` for a text
    that is not KEY=VALUE or names no input, and ``invalid_arguments`` for inputs that do not match the schema.
    """
    properties: Any = spec.inputs.get("properties", {})
    inputs: dict[str, Any] = {"task": task} if "task" in properties else {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise configuration_error(
                f"--input {text[:200]!r} is not KEY=VALUE.", "Write it as in --input summary='a library'."
            )
        if key not in properties:
            names = ", ".join(properties) or "none"
            raise configuration_error(f"The agent {spec.name} has no input {key[:80]!r}.", f"It has: {names}.")
        inputs[key] = _parse_value(key, value, properties[key])
    check_inputs(spec, inputs)
    return inputs


def check_inputs(spec: AgentSpec, inputs: Mapping[str, Any]) -> None:
    """Raise SandboxError ``invalid_arguments`` if ``inputs`` do not match the schema of ``spec``."""
    probe = Action(spec.name, lambda: None, spec.description, spec.inputs)
    fits, message = ActionRegistry().validate_args(probe, inputs)
    if not fits:
        names = ", ".join(spec.inputs.get("properties", {})) or "none"
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The inputs of the agent {spec.name!r} do not fit: {message}",
            f"Its inputs are: {names}.",
        )


def _parse_value(key: str, text: str, schema: Any) -> Any:
    if not isinstance(schema, dict) or schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        said = f"--input {key}={text[:80]!r} is not JSON, and {key} must be: {schema.get('type')}."
        raise configuration_error(said, "Write the value as JSON.") from error
