"""The texts of specs as templates: inputs are filled in, and nothing that is not there is silently empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandbox.errors import ErrorCode, SandboxError

if TYPE_CHECKING:
    from .spec import AgentSpec


def filled(text: str, inputs: Mapping[str, Any], spec: AgentSpec) -> str:
    """``text`` with {{ inputs.NAME }} and the like filled in, in Jinja's sandbox.

    Raises SandboxError ``invalid_configuration`` for a template that is none, or asks for what is not there.
    """
    if "{{" not in text and "{%" not in text and "{#" not in text:
        return text
    from jinja2 import StrictUndefined, TemplateError  # only for those that are templates: it costs 40 ms
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    given = dict.fromkeys(spec.inputs.get("properties", {})) | dict(inputs)
    try:
        return environment.from_string(text).render(inputs=given, agent={"name": spec.name})
    except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The text of the agent {spec.name!r} cannot be filled in: {error}",
            f"It may use: {', '.join(f'inputs.{name}' for name in given) or 'no inputs'}.",
        ) from error
