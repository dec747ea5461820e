"""From the keys of a file to a spec: each key is checked, and what is wrong is told with its line and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.frontmatter import AgentFileError, Section, Values
from agent.goals import Goal
from sandbox.names import is_agent_name

from .spec import EMPTY, AgentSpec

WORDS = {
    "string": "string", "boolean": "boolean", "number": "number", "integer": "integer", "list": "array", "dict": "object",
}  # fmt: skip
# Of the micro agents of old: what they say is documentation, and the image was called container.
OLD_KEYS = frozenset({"container", "examples", "generates"})


def spec_of(found: Values, goals: Sequence[Section], source: str, *, old: bool = False, trusted: bool = False) -> AgentSpec:
    """The spec that the keys and texts of a file make. ``old`` allows the further keys of the micro agents of old.

    ``trusted`` files, which are the product's own, are not looked over: their tests do that. Raises AgentFileError.
    """
    known = set(_KINDS) | (OLD_KEYS if old else set())
    for key in found.values:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(_KINDS))}"
            raise AgentFileError(f"the key {key[:80]!r} is not known: {meant}", found.line(key))
    given = {key: _KINDS[key](key, value, found.line(key)) for key, value in found.values.items() if key in _KINDS}
    for key in ("name", "description"):
        if key not in given:
            raise AgentFileError(f"the key {key!r} is missing")
    if old and "container" in found.values:
        given.setdefault("image", _text("container", found.values["container"], found.line("container")))
    if "actions" not in given:
        given["actions"] = _standard()
    spec = AgentSpec(
        **given, source=source, goals=tuple(Goal(n, goal.name, goal.text) for n, goal in enumerate(goals, 1))
    )
    if not trusted:
        from .checking import look_over

        look_over(spec, found, goals)
    return spec


def _standard() -> tuple[str, ...]:
    from agent.tools import standard_registry

    return tuple(action.name for action in standard_registry().get_actions())


def _text(key: str, value: Any, line: int | None) -> str:
    if not isinstance(value, str) or not value.strip():
        raise AgentFileError(f"{key} is a text, not {_shown(value)}", line)
    return value.strip()


def _name(key: str, value: Any, line: int | None) -> str:
    if not is_agent_name(value):
        raise AgentFileError(f"{key} is a letter, then letters, digits, _ and -, at most 64, not {_shown(value)}", line)
    return value


def _names(key: str, value: Any, line: int | None) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise AgentFileError(f"{key} is a list of names, not {_shown(value)}", line)
    twice = next((item for item in value if value.count(item) > 1), None)
    if twice is not None:
        raise AgentFileError(f"{key} names {twice[:80]!r} twice", line)
    return tuple(value)


def _mapping(key: str, value: Any, line: int | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AgentFileError(f"{key} is a mapping, not {_shown(value)}", line)
    return value


def _mappings(key: str, value: Any, line: int | None) -> Mapping[str, Mapping[str, Any]]:
    return {name: _mapping(f"{key}.{name}", inner, line) for name, inner in _mapping(key, value, line).items()}


def _flag(key: str, value: Any, line: int | None) -> bool:
    if not isinstance(value, bool):
        raise AgentFileError(f"{key} is true or false, not {_shown(value)}", line)
    return value


def _count(key: str, value: Any, line: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:
        raise AgentFileError(f"{key} is a whole number from 1 to 100000, not {_shown(value)}", line)
    return value


def _fields(key: str, value: Any, line: int | None) -> Mapping[str, Any]:
    """A JSON schema; names with the word of a type each, or with a schema each, become one in which all are required."""
    fields = EMPTY if value is None else _mapping(key, value, line)
    if fields.get("type") == "object":
        _mapping(f"{key}.properties", fields.get("properties", {}), line)
        _names(f"{key}.required", fields.get("required", []), line)
        return {"properties": {}, "required": [], "additionalProperties": False, **fields}
    properties = {name: _field(f"{key}.{name}", inner, line) for name, inner in fields.items()}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _field(key: str, value: Any, line: int | None) -> Mapping[str, Any]:
    if isinstance(value, str) and value in WORDS:
        return {"type": WORDS[value]}
    if isinstance(value, dict) and value:
        return value
    raise AgentFileError(f"{key} is one of {', '.join(WORDS)}, or a JSON schema, not {_shown(value)}", line)


def _shown(value: Any) -> str:
    return repr(value)[:80]


_KINDS: dict[str, Callable[[str, Any, int | None], Any]] = {
    "name": _name, "description": _text, "actions": _names, "language": _text, "language_options": _mapping, "memory": _text,
    "memory_options": _mapping, "kit_options": _mappings, "inputs": _fields, "outputs": _fields, "middleware": _names,
    "max_iterations": _count, "image": _text, "needs_repo": _flag, "read_only": _flag,
    "stuck": _mapping,
}  # fmt: skip
