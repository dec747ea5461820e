"""The texts of agents as templates: inputs are filled in, and a missing one is an error, never an empty text.

A part of Jinja's language: values, conditions, loops, and a few filters. There are no calls, no arithmetic and no attributes of
Python objects; time and output are bounded by MAX_SECONDS and MAX_CHARS.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sandbox.errors import ErrorCode, SandboxError

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from .spec import AgentSpec

MAX_CHARS = 200_000
MAX_SECONDS = 2.0
# A longer separator, or an argument of another filter, could multiply the output.
_MAX_SEPARATOR_CHARS = 20
_NAMES = frozenset({"inputs", "state", "agent"})
FILTERS = frozenset(
    {
        "default",
        "d",
        "dictsort",
        "first",
        "items",
        "join",
        "last",
        "length",
        "lower",
        "tojson",
        "trim",
        "upper",
    }
)
TESTS = frozenset({"defined", "undefined", "none", "true", "false", "string", "number", "mapping", "sequence", "in"})
_NODES = frozenset(
    {
        "Template",
        "Output",
        "TemplateData",
        "Const",
        "Name",
        "Getattr",
        "Getitem",
        "If",
        "For",
        "Compare",
        "Operand",
        "And",
        "Or",
        "Not",
        "CondExpr",
        "Filter",
        "Test",
        "Tuple",
    }
)
_TIMED = "_timed"


class AgentTextError(ValueError):
    """A fault in a template; ``line`` counts from 1 in its text."""

    def __init__(self, what: str, line: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


def filled(text: str, inputs: Mapping[str, Any], spec: AgentSpec) -> str:
    """Return ``text`` with {{ inputs.NAME }} and the like filled in.

    Raises SandboxError ``invalid_configuration`` for an invalid template, a missing input, or one of the bounds.
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
    """Raise AgentTextError for a text that some inputs which fit the schema ``inputs`` could not fill in."""
    if not _is_template(text):
        return
    properties: Mapping[str, Any] = inputs.get("properties", {})
    required = inputs.get("required", ())
    _parsed(text, _environment(), set(properties))
    samples = {name: _sample(schema) for name, schema in properties.items()}
    for values in (samples, {name: value if name in required else None for name, value in samples.items()}):
        rendered(text, values, "sample")


def rendered(text: str, inputs: Mapping[str, Any], name: str) -> str:
    """Return ``text`` filled in for the agent ``name``. Raises AgentTextError."""
    if not _is_template(text):
        return text
    from jinja2 import TemplateError

    environment = _environment()
    tree = _parsed(text, environment, None)
    chunks: list[str] = []
    size = 0
    try:
        template = environment.from_string(tree)
        for chunk in template.generate(inputs=inputs, state={"inputs": inputs}, agent={"name": name}):
            size += len(chunk)
            if size > MAX_CHARS:
                raise AgentTextError(f"it becomes longer than {MAX_CHARS} characters")
            chunks.append(chunk)
    except AgentTextError:
        raise
    except (TemplateError, TypeError, ValueError, OverflowError, RecursionError, SyntaxError) as error:
        raise AgentTextError(str(error)[:300], _line(error)) from error
    return "".join(chunks)


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text or "{#" in text


def _environment() -> ImmutableSandboxedEnvironment:
    """Return an environment for one rendering: what it does is over after MAX_SECONDS."""
    from jinja2 import StrictUndefined  # costs 40 ms, and few texts are templates
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    ends = time.monotonic() + MAX_SECONDS

    class Values(ImmutableSandboxedEnvironment):
        """Values are those of JSON: ``a.b`` and ``a["b"]`` are entries of mappings and lists, never Python attributes."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            return self.getitem(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if isinstance(obj, StrictUndefined):
                str(obj)  # raises an error that names the missing value, not what would be in it
            if isinstance(obj, Mapping) and argument in obj:
                return obj[argument]
            if isinstance(obj, list | tuple) and isinstance(argument, int) and -len(obj) <= argument < len(obj):
                return obj[argument]
            if type(obj).__name__ == "LoopContext" and argument in ("index", "index0", "first", "last", "length"):
                return super().getattr(obj, argument)
            return self.undefined(obj=obj, name=argument)

    made = Values(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_check_printed)
    made.filters = {name: _bounded(made.filters[name], ends) for name in FILTERS}
    made.filters[_TIMED] = lambda values: _timed(values, ends)
    made.tests = {name: made.tests[name] for name in TESTS}
    made.globals = {}
    return made


def _check_printed(value: Any) -> Any:
    if value is None:
        raise AgentTextError("it prints an input that may be left out: write {{ inputs.NAME or 'another text' }}")
    return value


def _check_time(ends: float) -> None:
    if time.monotonic() > ends:
        raise AgentTextError(f"it does not end within {MAX_SECONDS:g} seconds")


def _timed(values: Iterable[Any], ends: float) -> Iterator[Any]:
    for value in values:
        _check_time(ends)
        yield value


def _bounded(function: Callable[..., Any], ends: float) -> Callable[..., Any]:
    from functools import wraps

    @wraps(function)  # with the marks that Jinja has set on it
    def call(*args: Any, **options: Any) -> Any:
        _check_time(ends)
        value = function(*args, **options)
        if isinstance(value, str) and len(value) > MAX_CHARS:
            raise AgentTextError(f"a value in it becomes longer than {MAX_CHARS} characters")
        return value

    return call


def _parsed(text: str, environment: ImmutableSandboxedEnvironment, inputs: set[str] | None) -> nodes.Template:
    """Parse a template, so that each turn of its loops checks the time.

    Raises AgentTextError for what is not allowed in it, and for an input other than ``inputs``, unless that is None.
    """
    from jinja2 import TemplateSyntaxError, meta
    from jinja2 import nodes as kinds

    try:
        tree = environment.parse(text)
        all_nodes = list(tree.find_all(kinds.Node))
    except TemplateSyntaxError as error:
        raise AgentTextError(str(error.message)[:300], error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise AgentTextError(f"it cannot be read: {type(error).__name__}") from error
    for node in all_nodes:
        if what := _fault(node, inputs):
            raise AgentTextError(what, node.lineno)
    unknown = meta.find_undeclared_variables(tree) - _NAMES | {"self"}  # which Jinja itself declares
    for node in all_nodes:
        if isinstance(node, kinds.Name) and node.name in unknown:
            raise AgentTextError(f"{node.name!r} is undefined", node.lineno)
        if isinstance(node, kinds.For):
            node.iter = kinds.Filter(node.iter, _TIMED, [], [], None, None, lineno=node.lineno)
    tree.set_environment(environment)
    return tree


def _fault(node: Any, inputs: set[str] | None) -> str:
    kind = type(node).__name__
    if kind not in _NODES:
        return f"{kind.lower()} is not allowed in the text of an agent"
    if kind in ("Filter", "Test") and node.name not in (FILTERS if kind == "Filter" else TESTS):
        return f"there is no {kind.lower()} {node.name!r} here"
    if kind == "Filter" and not _has_allowed_arguments(node):
        return f"the filter {node.name!r} does not take this argument here"
    name = _input(node)
    return "" if inputs is None or name is None or name in inputs else f"there is no input {name!r}"


def _has_allowed_arguments(node: Any) -> bool:
    """Return whether a filter has allowed arguments: any for default, a short text for join, none for others."""
    if node.name in ("default", "d"):
        return True
    values = [getattr(argument, "value", None) for argument in node.args]
    short = len(values) == 1 and isinstance(values[0], str) and len(values[0]) <= _MAX_SEPARATOR_CHARS
    return not values or (node.name == "join" and short)


def _input(node: Any) -> str | None:
    """Return NAME for ``inputs.NAME``, ``inputs["NAME"]`` and the same below ``state``."""
    if type(node).__name__ not in ("Getattr", "Getitem"):
        return None
    owner = node.node
    in_state = (
        type(owner).__name__ == "Getattr" and owner.attr == "inputs" and getattr(owner.node, "name", "") == "state"
    )
    if not in_state and not (type(owner).__name__ == "Name" and owner.name == "inputs"):
        return None
    if type(node).__name__ == "Getattr":
        return str(node.attr)
    return str(getattr(node.arg, "value", "with a computed name"))


def _line(error: Exception) -> int:
    """Return the line of the template that raised an error. Jinja puts it into the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return (lines[-1] or 1) if lines else 1


def _sample(schema: Any) -> Any:
    """Return a value that fits a property well enough to fill in a template."""
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
