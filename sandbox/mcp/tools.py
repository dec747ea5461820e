"""The tools of the server, derived from the table of operations: names, texts, schemas of arguments and of answers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_types import Tool as Definition
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.operations import OPERATIONS, Request, schema_of

# Clients give up on a call after 60 seconds.
ANSWER_SECONDS = 40.0
# More tools than these take too much of a model's context.
MOST_TOOLS = 10
# The hints and notices of answers name these.
DEFAULT_TOOLS = ("run", "send", "logs", "wait_for", "kill", "read", "write", "edit", "list", "search")
# For work on web pages, with an image that has a browser: the name of the set, and its tools.
BROWSER_TOOLS = ("run", "logs", "wait_for", "kill", "read", "write", "edit", "browse", "browse_interact", "screenshot")
SETS = {"browser": BROWSER_TOOLS}
FORWARD = "forward"
# Of both streams together, and once more of each: clients may pass all of it on to the model.
KEEP_OUTPUT_BYTES = 16 << 10
# The argument with which an operation is told how long to wait.
_WAITS = {
    "run": "wait_seconds",
    "send": "wait_seconds",
    "logs": "wait_seconds",
    "wait_for": "timeout_seconds",
    "browse": "timeout_seconds",
    "browse_interact": "timeout_seconds",
    "screenshot": "timeout_seconds",
}
_UNBOUNDED = {"run", "send"}  # without a value they may take longer
_NOTICES = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
        "required": ["code", "message", "hint"],
    },
}


class ForwardArguments(BaseModel):
    """The arguments of the tool ``forward``."""

    model_config = ConfigDict(extra="forbid")
    port: int = Field(ge=1, le=65535, description="Port of the server in the sandbox.")


class ForwardResult(BaseModel):
    """Where the port is; some fields depend on how the sandbox is reached."""

    url: str
    host: str | None = None
    port: int | None = None
    sandbox_port: int | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; ``request`` is that of its operation, None for ``forward``, which is a method of environments."""

    definition: Definition
    request: type[Request] | None

    @property
    def name(self) -> str:
        """Its name, which is that of the operation."""
        return self.definition.name

    @property
    def changes(self) -> bool:
        """Whether a call may change something."""
        return self.request is None or not self.request.repeatable

    def bounded(self, args: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the arguments with which the operation answers within ``seconds``, and in few bytes."""
        found = dict(args)
        if self.name == "run":
            _bound_run(found)
        argument = _WAITS.get(self.name)
        if argument is None or (self.name == "run" and found.get("background") is True):
            return found
        given = found.get(argument)
        if given is None and self.name in _UNBOUNDED:
            found[argument] = seconds if self.name == "run" else 0
        elif given is None:
            assert self.request is not None  # noqa: S101
            found[argument] = min(float(self.request.model_fields[argument].default), seconds)
        elif isinstance(given, int | float) and given > seconds:
            found[argument] = seconds
        return found


def _bound_run(args: dict[str, Any]) -> None:
    """Have a command that nobody is going to answer read an empty input, as without ``wait_seconds``, and answer briefly."""
    answered = args.get("wait_seconds") is not None or args.get("pty") or args.get("background")
    if args.get("stdin") is None and not answered:
        args["stdin"] = ""
    if args.get("keep_output_bytes") is None:
        args["keep_output_bytes"] = KEEP_OUTPUT_BYTES


def chosen_tools(names: Sequence[str] = ()) -> dict[str, Tool]:
    """Return the tools with these names, by name; the usual ones if there are none. A name of SETS is all of that set.

    Raises SandboxError.
    """
    possible = (*(name for name, kind in OPERATIONS.items() if kind.for_models), FORWARD)
    named = [each for name in names for each in SETS.get(name, (name,))]
    wanted = tuple(dict.fromkeys(named)) or DEFAULT_TOOLS
    if unknown := [name for name in wanted if name not in possible]:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"There is no tool {unknown[0]!r:.80}.",
            f"Choose from: {', '.join((*possible, *SETS))}.",
        )
    if len(wanted) > MOST_TOOLS:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{len(wanted)} tools are too many: a model would have less room for its work.",
            f"Choose at most {MOST_TOOLS}.",
        )
    return {name: _forward() if name == FORWARD else _tool(name) for name in wanted}


def _tool(name: str) -> Tool:
    request = OPERATIONS[name]
    schema = schema_of(request)
    if name in _WAITS:
        _limit(schema["properties"][_WAITS[name]], ANSWER_SECONDS if name == "run" else None)
    annotations = ToolAnnotations(
        read_only_hint=not request.changes_files and request.repeatable,
        destructive_hint=not request.repeatable,
        idempotent_hint=request.repeatable,
        open_world_hint=name in ("run", "browse", "browse_interact"),
    )
    return _made(name, inspect.getdoc(request) or "", schema, _json_schema(request.result), annotations, request)


def _forward() -> Tool:
    words = (inspect.getdoc(SandboxedEnvironment.forward) or "").partition("\n\n")[0]
    annotations = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
    return _made(FORWARD, words, _plain(ForwardArguments.model_json_schema()), _json_schema(ForwardResult), annotations, None)


def _made(
    name: str,
    words: str,
    schema: dict[str, Any],
    result: dict[str, Any],
    annotations: ToolAnnotations,
    request: type[Request] | None,
) -> Tool:
    schema.pop("description", None)
    definition = Definition(
        name=name, description=words, input_schema=schema, output_schema=_envelope_schema(result), annotations=annotations
    )
    return Tool(definition, request)


def _limit(schema: dict[str, Any], default: float | None) -> None:
    """Lower the maximum of a number to what a call may take, and name the default that applies here."""
    for part in (schema, *schema.get("anyOf", ())):
        if "maximum" in part:
            part["maximum"] = ANSWER_SECONDS
    if default is not None:
        schema["default"] = default


def _envelope_schema(result: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the envelope around a result: success or failure."""
    models = result.pop("$defs", {})
    text = {"type": "string"}
    return {
        "type": "object",
        "properties": {
            "tool_executed": {"type": "boolean"},
            "result": {"anyOf": [result, {"type": "null"}]},
            "error": text,
            "code": text,
            "hint": text,
            "next_tool": {"type": ["string", "null"]},
            "retryable": {"type": "boolean"},
            "effects": {"enum": ["none", "partial", "unknown"]},
            "reason": text,
            "timestamp": text,
            "duration_ms": {"type": "number"},
            "notices": _NOTICES,
        },
        "required": ["tool_executed", "result", "timestamp", "duration_ms", "notices"],
        **({"$defs": models} if models else {}),
    }


def _json_schema(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = _plain(model.model_json_schema(mode="serialization"))
    return found


def _plain(node: Any) -> Any:
    """Return a schema without titles and descriptions: what is an answer says itself."""
    if isinstance(node, dict):
        return {
            key: {name: _plain(each) for name, each in value.items()} if key in ("properties", "$defs") else _plain(value)
            for key, value in node.items()
            if not (key in ("title", "description") and isinstance(value, str))
        }
    return [_plain(each) for each in node] if isinstance(node, list) else node
