"""A function as a tool: the JSON schema of its arguments and its description, from its signature, annotations and docstring."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
)
from pydantic.fields import FieldInfo

from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

_NO_SCHEMA = (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
)
_INSTEAD = "or describe the arguments yourself with parameters=SCHEMA"
# What holds data of the user's, not schemas: a key "title" in it stays.
_DATA = frozenset({"const", "default", "enum", "examples"})
_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a function, as a model reads them and as the function takes them.

    ``environment_arguments`` are the parameters that are annotated with an ``Environment``: the model does not see them, and the
    function gets the environment in which it is called.
    """

    parameters: Mapping[str, Any]
    types: Mapping[str, TypeAdapter[Any]]
    environment_arguments: tuple[str, ...] = ()

    def convert(self, tool: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert JSON values to the types of the annotations. Raises SandboxError ``invalid_arguments``."""
        return {name: self._converted(tool, name, value) for name, value in values.items()}

    def _converted(self, tool: str, name: str, value: Any) -> Any:
        if name not in self.types:
            raise SandboxError(
                ErrorCode.invalid_arguments, f"{tool} has no argument {name[:80]!r}.", f"Call {tool} without it."
            )
        try:
            return self.types[name].validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in (name, *problem["loc"]))
            raise SandboxError(
                ErrorCode.invalid_arguments,
                f"{where} of {tool} is invalid: {problem['msg'][:_MAX_REASON_CHARS]}.",
                f"Correct that and call {tool} again.",
                next_tool=tool,
            ) from error


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return the signature of ``function``. Raises TypeError, naming the parameter, if it cannot be a JSON schema."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _unusable(function, "it yields values", "Return a list")
    parameters = _parameters(function)
    annotations = {name: _annotation(function, parameter) for name, parameter in parameters.items()}
    hidden = tuple(name for name, annotation in annotations.items() if _is_environment(annotation))
    shown = {name: parameter for name, parameter in parameters.items() if name not in hidden}
    types = {name: _type_adapter(function, each, annotations[name]) for name, each in shown.items()}
    return Signature(_schema(function, shown, annotations, types), types, hidden)


def description_of(function: Callable[..., Any]) -> str:
    """Return the docstring without its sections about arguments, results and errors, or "" without a docstring."""
    from docstring_parser import parse

    text = parse(inspect.getdoc(function) or "").description or ""
    return "\n\n".join(" ".join(block.split()) for block in text.split("\n\n") if block.strip())


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters by name. Raises TypeError for one that a model could not fill in."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise _unusable(function, "Python cannot list its parameters", "Wrap it in a function of your own") from error
    for parameter in parameters.values():
        flaw = _flaw(parameter)
        if flaw is not None:
            raise _unusable(function, *flaw)
    return parameters


def _flaw(parameter: inspect.Parameter) -> tuple[str, str] | None:
    """Return why a model could not fill in ``parameter``, and what to do about it."""
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = str(parameter).partition(":")[0]
        return f"its parameter {stars!r} can be anything", f"Name each parameter, {_INSTEAD}"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return (
            f"its parameter {name!r} is positional-only, and tools are called by keyword",
            f"Remove the '/', {_INSTEAD}",
        )
    if parameter.annotation is not parameter.empty:
        return None
    if name in ("self", "cls"):
        return "it is a method without its object", "Use the method of an instance, as in Action.of(instance.method)"
    return f"its parameter {name!r} has no type", f"Annotate it, as in {name}: str, {_INSTEAD}"


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of ``parameter``, also if it is written as text."""
    target: Any = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(target):  # an object with a method __call__
        target = type(target).__call__
    names = getattr(inspect.unwrap(target), "__globals__", {})
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)[parameter.name]
    except NameError as error:
        raise _unusable(
            function,
            f"the type of its parameter {parameter.name!r} names {error.name!r}, which its module does not define",
            "Define or import it at the top of the module",
        ) from error
    except (AttributeError, SyntaxError, TypeError) as error:
        why = f"the type of its parameter {parameter.name!r} cannot be read: {error}"
        raise _unusable(function, why[:_MAX_REASON_CHARS], "Correct it") from error


def _is_environment(annotation: Any) -> bool:
    """Return whether ``annotation`` is an Environment, a subclass, or a union with one."""
    union = typing.get_origin(annotation) in (typing.Union, UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    return any(isinstance(kind, type) and issubclass(kind, Environment) for kind in kinds)


def _type_adapter(function: Callable[..., Any], parameter: inspect.Parameter, annotation: Any) -> TypeAdapter[Any]:
    """Return what checks the values of ``parameter``; a default of None makes None one of them."""
    name = parameter.name
    if isinstance(parameter.default, FieldInfo):
        instead = f"Write {name}: Annotated[TYPE, Field(...)] = VALUE, {_INSTEAD}"
        raise _unusable(function, f"the default of its parameter {name!r} is a Field", instead)
    try:
        adapter = TypeAdapter(annotation)
        if parameter.default is None and not _accepts_none(adapter):
            adapter = TypeAdapter(annotation | None)
        adapter.json_schema()
    except (*_NO_SCHEMA, TypeError) as error:
        reason = str(error).partition("\n")[0][:_MAX_REASON_CHARS].rstrip(".")
        why = f"the type of its parameter {name!r} has no JSON schema: {reason}"
        raise _unusable(function, why, f"Use a type that JSON can hold, {_INSTEAD}") from error
    return adapter


def _accepts_none(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.validate_python(None)
    except ValidationError:
        return False
    return True


def _schema(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    annotations: Mapping[str, Any],
    types: Mapping[str, TypeAdapter[Any]],
) -> dict[str, Any]:
    described = _argument_descriptions(function)
    found, shared = TypeAdapter.json_schemas([(name, "validation", adapter) for name, adapter in types.items()])
    properties: dict[str, Any] = {}
    for name, parameter in parameters.items():
        schema = _without_titles(found[name, "validation"])
        words = _annotated_description(annotations[name]) or described.get(name)
        if words and "description" not in schema:
            schema["description"] = words
        if parameter.default is not parameter.empty:
            schema |= _default(types[name], parameter.default)
        properties[name] = schema
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    whole = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return whole | ({"$defs": _without_titles(shared["$defs"])} if shared.get("$defs") else {})


def _argument_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    from docstring_parser import parse

    found = parse(inspect.getdoc(function) or "").params
    return {each.arg_name: " ".join(each.description.split()) for each in found if each.description}


def _annotated_description(annotation: Any) -> str | None:
    """Return the text in ``Annotated[TYPE, "text"]``."""
    return next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, str)), None)


def _default(adapter: TypeAdapter[Any], value: Any) -> dict[str, Any]:
    """Return the default as a part of a schema; {} for one that JSON cannot hold."""
    try:
        default = adapter.dump_python(value, mode="json", warnings="error")
        json.dumps(default, allow_nan=False)
    except (ValueError, TypeError):
        return {}
    return {"default": default}


def _without_titles(node: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names: they tell a model nothing."""
    if isinstance(node, list):
        return [_without_titles(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    return {key: value if key in _DATA else _without_titles(value) for key, value in kept.items()}


def _unusable(function: Callable[..., Any], why: str, instead: str) -> TypeError:
    name = getattr(function, "__name__", None) or repr(function)[:80]
    return TypeError(f"The function {name} cannot become an action: {why}. {instead}.")
