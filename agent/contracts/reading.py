"""Read actions and observations from data that a model or a file may have made. Names of the early contract are
accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic import Field as ModelField

from sandbox.errors import ErrorCode, SandboxError

from .actions import ACTIONS, Action
from .events import Event, stamped
from .observations import OBSERVATIONS, Observation

E = TypeVar("E", bound=Event)

_ACTIONS = {kind.type: kind for kind in ACTIONS}
_OBSERVATIONS = {kind.type: kind for kind in OBSERVATIONS}
_READERS: dict[type[Any], type[BaseModel]] = {}
# The early contract's name → ours, by action.
_OLD_ARGUMENTS = {
    "write": {"contents": "content"},
    "kill": {"id": "command_id"},
    "message": {"thought": "content"},
}
_OLD_TYPES = {"think": "message", "output": "run"}


class MalformedActionError(SandboxError):
    """The data is not an action or observation; ``message`` says what is wrong with it."""

    def __init__(self, message: str, hint: str = 'Give {"action": "NAME", "args": {...}}.') -> None:
        super().__init__(ErrorCode.unparsable_response, message, hint)


def action_from_dict(data: Any) -> Action:
    """Read an action. Old names are accepted: ``think``, ``contents``, ``id`` of kill. Raises MalformedActionError."""
    if not isinstance(data, Mapping):
        raise MalformedActionError(f"An action must be an object, not {type(data).__name__}.")
    if "action" not in data:
        raise MalformedActionError(f"'action' is missing in {_short(dict(data))}.")
    named = data["action"]
    name = _OLD_TYPES.get(named, named) if isinstance(named, str) else None
    kind = _ACTIONS.get(name or "")
    if name is None or kind is None:
        raise MalformedActionError(f"There is no action {_short(named)}.", f"Use one of: {', '.join(_ACTIONS)}.")
    args = data.get("args") or {}
    if not isinstance(args, Mapping):
        raise MalformedActionError(f"The arguments of {name} must be an object, not {type(args).__name__}.")
    return _made(kind, name, _renamed(name, named, args), data)


def observation_from_dict(data: Any) -> Observation:
    """Read an observation, also one of the early contract (``output``, ``error``). Raises MalformedActionError."""
    hint = 'Give {"observation": "NAME", "content": "...", "extras": {...}}.'
    if not isinstance(data, Mapping) or "observation" not in data:
        raise MalformedActionError(f"This is not an observation: {_short(data)}.", hint)
    named = data["observation"]
    name = _OLD_TYPES.get(named, named) if isinstance(named, str) else None
    kind = _OBSERVATIONS.get(name or "")
    if name is None or kind is None:
        raise MalformedActionError(
            f"There is no observation {_short(named)}.", f"Use one of: {', '.join(_OBSERVATIONS)}."
        )
    extras = data.get("extras") or {}
    if not isinstance(extras, Mapping):
        raise MalformedActionError(f"The extras of {name} must be an object, not {type(extras).__name__}.", hint)
    if named == "output":
        extras = {"command_id": -1, "command": "", **extras}
    return _made(kind, name, {"content": data.get("content", ""), **extras}, data)


def _renamed(name: str, named: str, args: Mapping[str, Any]) -> dict[str, Any]:
    old = _OLD_ARGUMENTS.get(name, {})
    if name == "message" and named != "think":
        old = {}
    return {old.get(key, str(key)): value for key, value in args.items()}


def _made(kind: type[E], name: str, fields: Mapping[str, Any], data: Mapping[str, Any]) -> E:
    try:
        read = _reader(kind).model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedActionError(f"The {kind.kind} {name} has wrong arguments: {where}: {first['msg']}.") from None
    event = kind(**{name: getattr(read, name) for name in type(read).model_fields})
    stamped(event, data)
    return event


def _reader(kind: type[Any]) -> type[BaseModel]:
    """Return what checks the fields of a type: none may be missing, unknown or of a wrong type."""
    if kind not in _READERS:
        types = get_type_hints(kind)
        fields: dict[str, Any] = {f.name: (types[f.name], _default(f)) for f in dataclass_fields(kind)}
        _READERS[kind] = create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return _READERS[kind]


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return ... if field.default_factory is MISSING else ModelField(default_factory=field.default_factory)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
