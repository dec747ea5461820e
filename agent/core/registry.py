"""The registry of actions: finds them by name, checks arguments, and warns of actions that will confuse a model."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, cast

from sandbox.messages import arguments as argument_words

from .actions import EMPTY_SCHEMA, Action

# What the providers of models accept as the name of a function.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
# A server may declare schemas of any size.
REMEMBERED_SCHEMA_CHARS = 16_384


class ActionWarning(UserWarning):
    """A flaw of an action that will confuse a model."""


class ActionRegistry:
    """Actions by name, in the order of registration. A function becomes the action that ``Action.of`` makes of it."""

    def __init__(self, actions: Iterable[Action | Callable[..., Any]] = ()) -> None:
        self.actions: dict[str, Action] = {}
        listed: object = actions
        if isinstance(listed, (str, Mapping, Action)) or not isinstance(listed, Iterable):
            raise TypeError(
                f"ActionRegistry needs a list of actions and functions, not {type(listed).__name__} {listed!r:.80}."
            )
        for action in actions:
            self.register(action)

    def register(self, action: Action | Callable[..., Any], *, replace: bool = False) -> None:
        """Add an action, or a function as one.

        Raises ValueError for a name that is taken, unless ``replace``, and TypeError for what is neither an action nor a
        function, or for a function that cannot become one. Warns (``ActionWarning``) of what ``lint`` finds.
        """
        action = as_action(action)
        if action.name in self.actions and not replace:
            raise ValueError(f"Action already registered: {action.name}")
        for problem in lint(action):
            warnings.warn(f"Action {action.name!r}: {problem}", ActionWarning, stacklevel=2)
        self.actions[action.name] = action

    def get_action(self, name: object) -> Action | None:
        """Return the action of that name, or None."""
        return self.actions.get(name) if isinstance(name, str) else None

    def get_actions(self) -> list[Action]:
        """Return all actions, in the order of registration."""
        return list(self.actions.values())

    def tools(self) -> list[dict[str, Any]]:
        """Return the actions as tools for function calling, sorted by name."""
        return tools_of(self.get_actions())

    def validate_args(self, action: Action, args: Any) -> tuple[bool, str]:
        """Return (True, "ok"), or False and a sentence about what is wrong with ``args``."""
        if not isinstance(args, Mapping):
            return False, f"the arguments must be an object, not {type(args).__name__}."
        schema = action.parameters or EMPTY_SCHEMA
        missing = [key for key in schema.get("required", []) if key not in args]
        if missing:
            return False, argument_words.missing(action.name, missing, schema)
        from jsonschema import Draft202012Validator, SchemaError  # takes 60 ms to import, and only a call needs it
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        try:
            if self._valid_schemas.get(action.name) is not schema:  # a check takes a third of the time of a step
                _check_schema(schema)
                self._valid_schemas[action.name] = schema
            # An empty registry of schemas: a $ref is never fetched from the network.
            errors = list(Draft202012Validator(schema, registry=Registry()).iter_errors(dict(args)))
        except (SchemaError, Unresolvable):
            return True, "ok"  # lint warns of the schema; the function itself is then the judge
        except (ArithmeticError, ValueError, RecursionError) as error:
            # A number too large to divide or print, or arguments nested too deep.
            return False, f"the arguments cannot be checked ({type(error).__name__}: {error})"[:300]
        errors.sort(key=lambda e: [str(p) for p in e.absolute_path])
        return (False, "; ".join(_worded(action.name, e, schema) for e in errors[:5])) if errors else (True, "ok")

    @cached_property
    def _valid_schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas that were found valid, by the name of the action."""
        return {}


def _check_schema(schema: Mapping[str, Any]) -> None:
    """Raise SchemaError if a schema is not valid. Equal ones are checked once: each agent has its own of the same operations."""
    from jsonschema import Draft202012Validator

    try:
        text = json.dumps(schema, sort_keys=True)
        is_json = len(text) <= REMEMBERED_SCHEMA_CHARS and json.loads(text) == schema
    except (TypeError, ValueError, RecursionError):
        is_json = False
    if is_json:
        _check_schema_text(text)
    else:
        Draft202012Validator.check_schema(schema)


@lru_cache(maxsize=256)
def _check_schema_text(text: str) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json.loads(text))


def as_action(item: Action | Callable[..., Any]) -> Action:
    """Return ``item`` if it is an action, otherwise the action of that function. Raises TypeError for anything else."""
    candidate: Any = item
    if isinstance(candidate, type) and (issubclass(candidate, Action) or hasattr(candidate, "execute")):
        raise TypeError(f"{candidate.__name__} is a class of actions: register an instance, {candidate.__name__}(...).")
    if isinstance(item, Action):
        return item
    if hasattr(candidate, "execute"):  # an action of a class that is not ours
        return cast("Action", candidate)
    if not callable(candidate):
        raise TypeError(f"A registry takes actions and functions, not {type(candidate).__name__} {candidate!r:.80}.")
    return Action.of(candidate)


def tools_of(actions: Iterable[Action]) -> list[dict[str, Any]]:
    """Return actions as tools for function calling, sorted by name."""
    return [{"type": "function", "function": a.spec()} for a in sorted(actions, key=lambda a: a.name)]


def lint(action: Action) -> list[str]:
    """Return what will make this action hard to use: in its name, description or schema, or between schema and function."""
    schema = action.parameters
    problems = []
    if not NAME.fullmatch(action.name):
        problems.append("its name should be letters, digits, _ and -, at most 64, as providers of models demand")
    if not action.description.strip():
        problems.append("its description is empty, so a model cannot know when to use it")
    properties = schema.get("properties", {})
    if schema and schema.get("type") != "object":
        problems.append('its parameters need "type": "object"')
    problems += [
        f"required {key!r} is not among the properties" for key in schema.get("required", []) if key not in properties
    ]
    return problems + _schema_errors(schema) + _signature_problems(action, properties, schema.get("required", []))


def _worded(tool: str, error: Any, schema: Mapping[str, Any]) -> str:
    path = [str(part) for part in error.absolute_path]
    if error.validator == "additionalProperties" and not path:
        known = schema.get("properties") or {}
        return "; ".join(
            argument_words.unknown(tool, str(name), schema) for name in error.instance if name not in known
        )
    if len(path) == 1 and path[0] in (schema.get("properties") or {}):
        return argument_words.wrong(path[0], error.instance, schema)
    return f"{'.'.join(path)}: {error.message[:300]}" if path else str(error.message[:300])


def _schema_errors(schema: Mapping[str, Any]) -> list[str]:
    """Check only the types: jsonschema takes 60 ms to import, and programs often make registries when they are imported."""
    known = {"string", "integer", "number", "boolean", "object", "array", "null"}
    found = []
    for key, prop in schema.get("properties", {}).items():
        kinds = prop.get("type", []) if isinstance(prop, Mapping) else [f"{prop!r}"]
        kinds = [kinds] if isinstance(kinds, str) else kinds
        found += [
            f"property {key!r} has the type {kind!r}, which JSON Schema does not know"
            for kind in kinds
            if kind not in known
        ]
    return found


def _signature_problems(action: Action, properties: Mapping[str, Any], required: Iterable[str]) -> list[str]:
    if action.function is None or getattr(action, "signature", None) is not None:
        return []
    try:
        signature = inspect.signature(action.function)
    except (TypeError, ValueError):
        return []
    named = {n: p for n, p in signature.parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    problems = [f"its function does not take {key!r}" for key in properties if key not in named and not takes_all]
    needed = [n for n, p in named.items() if p.default is p.empty]
    return problems + [
        f"its function needs {n!r}, which is not required by the schema" for n in needed if n not in required
    ]
