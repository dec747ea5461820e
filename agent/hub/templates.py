"""The texts of specs as templates: inputs are filled in, and nothing that is not there is silently empty.

A part of Jinja's language: values, conditions, loops over what the inputs hold, and a few filters. No calls, no arithmetic, no
attributes of Python objects: what a template can do is bounded by the size of its inputs, and its output by MAX_CHARS.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sandbox.errors import ErrorCode, SandboxError

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from .spec import AgentSpec

MAX_CHARS = 200_000
MAX_SECONDS = 2.0
MAX_DEPTH = 40
# Longer separators, and arguments of the other filters, would multiply what they are given.
_MOST_BETWEEN = 20
FILTERS = frozenset({"default", "d", "dictsort", "first", "items", "join", "last", "length", "lower", "tojson", "trim", "upper"})
TESTS = frozenset({"defined", "undefined", "none", "true", "false", "string", "number", "mapping", "sequence", "in"})
_NODES = frozenset({
    "Template", "Output", "TemplateData", "Const", "Name", "Getattr", "Getitem", "If", "For", "Compare", "Operand", "And", "Or",
    "Not", "CondExpr", "Filter", "Test", "Tuple",
})  # fmt: skip


class AgentTextError(ValueError):
    """What is wrong with a template; ``line`` counts from 1 in its text."""

    def __init__(self, what: str, line: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


def is_template(text: str) -> bool:
    """Whether there is anything to fill in."""
    return "{{" in text or "{%" in text or "{#" in text


def filled(text: str, inputs: Mapping[str, Any], spec: AgentSpec) -> str:
    """``text`` with {{ inputs.NAME }} and the like filled in.

    Raises SandboxError ``invalid_configuration`` for a template that is none, asks for what is not there, or does not end.
    """
    names = list(spec.inputs.get("properties", {}))
    try:
        return rendered(text, {**dict.fromkeys(names), **inputs}, spec.name)
    except AgentTextError as problem:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The text of the agent {spec.name!r} cannot be filled in: {problem.what} (line {problem.line})",
            f"It may use: {', '.join(f'inputs.{name}' for name in names) or 'no inputs'}.",
        ) from problem


def check(text: str, inputs: Mapping[str, Any]) -> None:
    """Raises AgentTextError for a text that could not be filled in with every set of inputs that fits the schema ``inputs``."""
    if not is_template(text):
        return
    properties: Mapping[str, Any] = inputs.get("properties", {})
    required = inputs.get("required", ())
    _parsed(text, set(properties))
    samples = {name: _sample(schema) for name, schema in properties.items()}
    for given in (samples, {name: value if name in required else None for name, value in samples.items()}):
        rendered(text, given, "sample")


def rendered(text: str, inputs: Mapping[str, Any], name: str) -> str:
    """The text filled in. Raises AgentTextError."""
    if not is_template(text):
        return text
    from jinja2 import TemplateError

    _parsed(text, None)
    chunks: list[str] = []
    size = 0
    try:
        template = _environment().from_string(text)
        for chunk in template.generate(inputs=inputs, state={"inputs": inputs}, agent={"name": name}):
            size += len(chunk)
            if size > MAX_CHARS:
                raise AgentTextError(f"it becomes longer than {MAX_CHARS} characters")
            chunks.append(chunk)
    except AgentTextError:
        raise
    except (TemplateError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise AgentTextError(str(error)[:300], _line(error)) from error
    return "".join(chunks)


def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2 import StrictUndefined  # only for those that are templates: it costs 40 ms
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    ends = time.monotonic() + MAX_SECONDS

    class Values(ImmutableSandboxedEnvironment):
        """Values are what JSON has: names of mappings, items of lists, and nothing of Python's objects."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            return self.getitem(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            _in_time(ends)
            if isinstance(obj, StrictUndefined):
                str(obj)  # raises what is said of the one that is not there, not of what would be in it
            if isinstance(obj, Mapping) and argument in obj:
                return obj[argument]
            if isinstance(obj, list | tuple) and isinstance(argument, int) and -len(obj) <= argument < len(obj):
                return obj[argument]
            if type(obj).__name__ == "LoopContext" and argument in ("index", "index0", "first", "last", "length"):
                return super().getattr(obj, argument)
            return self.undefined(obj=obj, name=argument)

    made = Values(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_said)
    made.filters = {name: _timed(made.filters[name], ends) for name in FILTERS}
    made.tests = {name: made.tests[name] for name in TESTS}
    made.globals = {}
    return made


def _said(value: Any) -> Any:
    if value is None:
        raise AgentTextError("an input that may be left out is printed: write {{ inputs.NAME or 'what to say then' }}")
    return value


def _in_time(ends: float) -> None:
    if time.monotonic() > ends:
        raise AgentTextError(f"it does not end within {MAX_SECONDS:g} seconds")


def _timed(function: Callable[..., Any], ends: float) -> Callable[..., Any]:
    from functools import wraps

    @wraps(function)  # with what Jinja has noted on it
    def call(*args: Any, **options: Any) -> Any:
        _in_time(ends)
        value = function(*args, **options)
        if isinstance(value, str) and len(value) > MAX_CHARS:
            raise AgentTextError(f"a value in it becomes longer than {MAX_CHARS} characters")
        return value

    return call


def _parsed(text: str, inputs: set[str] | None) -> None:
    """Raises AgentTextError for a template with anything but what is allowed, or (unless None) another input than ``inputs``."""
    from jinja2 import TemplateSyntaxError

    try:
        tree = _environment().parse(text)
    except TemplateSyntaxError as error:
        raise AgentTextError(str(error.message)[:300], error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise AgentTextError(f"it cannot be read: {type(error).__name__}") from error
    _look(tree, _Scope(inputs, frozenset({"inputs", "state", "agent"})))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What may be named at a place of a template; ``targets`` are the variables of the loop around it."""

    inputs: set[str] | None
    names: frozenset[str]
    targets: frozenset[str] | None = None
    depth: int = 0


def _look(node: nodes.Node, scope: _Scope) -> None:
    """Raises AgentTextError for what is not allowed at or below ``node``."""
    part: Any = node  # its fields depend on the kind
    what = _fault(type(node).__name__, part, scope)
    if what:
        raise AgentTextError(what, node.lineno)
    inner = replace(scope, depth=scope.depth + 1)
    if type(node).__name__ != "For":
        for child in node.iter_child_nodes():
            _look(child, inner)
        return
    _look(part.iter, inner)
    targets = frozenset(_names(part.target))
    inner = replace(inner, names=scope.names | targets | {"loop"}, targets=targets)
    for child in (*part.body, *part.else_, *([part.test] if part.test is not None else [])):
        _look(child, inner)


def _fault(kind: str, part: Any, scope: _Scope) -> str:
    if kind not in _NODES:
        return f"{kind.lower()} is not allowed in the text of an agent"
    if scope.depth > MAX_DEPTH:
        return f"it is nested deeper than {MAX_DEPTH}"
    if kind == "Name" and part.ctx == "load" and part.name not in scope.names:
        return f"{part.name!r} is undefined"
    if kind in ("Filter", "Test") and part.name not in (FILTERS if kind == "Filter" else TESTS):
        return f"there is no {kind.lower()} {part.name!r} here"
    if kind == "Filter" and not _fitting(part):
        return f"the filter {part.name!r} does not take this here"
    asked = _input(part)
    if scope.inputs is not None and asked is not None and asked not in scope.inputs:
        return f"there is no input {asked!r}"
    if kind == "For" and _root(part.iter) is None:
        return "a loop goes over an input"
    if kind == "For" and scope.targets is not None and _root(part.iter) not in scope.targets:
        return "a loop in a loop goes over what the outer one is at"
    return ""


def _fitting(part: Any) -> bool:
    """Whether the arguments of a filter are allowed: any for default, a short text for join, none for the others."""
    if part.name in ("default", "d"):
        return True
    values = [getattr(arg, "value", None) for arg in part.args]
    short = len(values) == 1 and isinstance(values[0], str) and len(values[0]) <= _MOST_BETWEEN
    return not values or (part.name == "join" and short)


def _names(target: Any) -> list[str]:
    """The variables of a loop."""
    items = target.items if type(target).__name__ == "Tuple" else [target]
    return [str(item.name) for item in items if type(item).__name__ == "Name"]


def _input(node: Any) -> str | None:
    """NAME, where the node is inputs.NAME, inputs["NAME"] or the same below state."""
    kind = type(node).__name__
    if kind not in ("Getattr", "Getitem"):
        return None
    inner = node.node
    below = type(inner).__name__ == "Getattr" and inner.attr == "inputs" and getattr(inner.node, "name", "") == "state"
    if not below and not (type(inner).__name__ == "Name" and inner.name == "inputs"):
        return None
    return str(node.attr if kind == "Getattr" else getattr(node.arg, "value", "an input whose name is worked out"))


def _root(node: Any) -> str | None:
    """The name that a path like a.b[0] | items begins with; None for anything else."""
    kind = type(node).__name__
    if kind == "Name":
        return str(node.name)
    if kind in ("Getattr", "Getitem") or (kind == "Filter" and node.name in ("items", "dictsort", "default", "d")):
        return _root(node.node) if node.node is not None else None
    return None


def _line(error: Exception) -> int:
    """The line of the template that raised it: Jinja puts it into the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return (lines[-1] or 1) if lines else 1


def _sample(schema: Any) -> Any:
    """A value that fits a property well enough to fill a template in."""
    if not isinstance(schema, Mapping):
        return "text"
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = kind[0] if kind else "string"
    if kind == "array":
        return [_sample(schema.get("items", {}))]
    if kind == "object":
        return {name: _sample(inner) for name, inner in schema.get("properties", {}).items()}
    return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(str(kind), "text")
