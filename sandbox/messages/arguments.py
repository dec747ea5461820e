"""Word what is wrong with the arguments of a tool, from its schema. Mentions only the arguments that are wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sandbox.text.wording import value_text

Schema = Mapping[str, Any]
VALUE_CHARS = 80
_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "of at least", "exclusiveMaximum": "below", "maximum": "of at most"}


def kind_of(schema: Any) -> str:
    """Return what a value of this schema is: "a number above 0", "one of 'a', 'b'". Accepts any schema, however strange."""
    if not isinstance(schema, Mapping):
        return "another value"
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        kinds = [
            kind_of(option) for option in options if not (isinstance(option, Mapping) and option.get("type") == "null")
        ]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    if isinstance(schema.get("enum"), list):
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema:
        return repr(schema["const"])
    named = schema.get("type")
    kinds = [kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)]
    words = (
        " or ".join(_KINDS.get(kind, kind) for kind in kinds if kind != "null" or len(kinds) == 1) or "another value"
    )
    bounds = [f"{phrase} {_bound(schema[name])}" for name, phrase in _BOUNDS.items() if name in schema]
    if "maxLength" in schema:
        bounds.append(f"of at most {_bound(schema['maxLength'])} characters")
    if "maxItems" in schema:
        bounds.append(f"of at most {_bound(schema['maxItems'])} items")
    if schema.get("minLength") or schema.get("minItems"):
        bounds.append("that is not empty")
    items = schema.get("items")
    if isinstance(items, Mapping) and isinstance(items.get("type"), str) and items["type"] in _KINDS:
        bounds.append(f"of which each is {kind_of(items)}")
    return " ".join([words, " and ".join(bounds)]).strip()


def _bound(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def missing(tool: str, names: Iterable[str], schema: Schema) -> str:
    """Return the sentence for missing arguments."""
    listed = [f"{name} ({_about(_property(schema, name))})" for name in names]
    return f"{tool} needs {' and '.join(listed)}"


def unknown(tool: str, name: str, schema: Schema) -> str:
    """Return the sentence for an argument that the tool does not have."""
    known = [str(name) for name in schema.get("properties") or ()]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    have = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}" if known else "it takes none"
    return f"{tool} has no argument {name[:VALUE_CHARS]!r}: {have}"


def wrong(name: str, value: Any, schema: Schema) -> str:
    """Return the sentence for an invalid value of the argument ``name``."""
    return _wrong(name, value, _property(schema, name))


def _wrong(path: str, value: Any, own: Schema) -> str:
    about = "" if "enum" in own else str(own.get("description") or "")
    return f"{path} must be {kind_of(own)}, not {value_text(value, VALUE_CHARS)}" + (
        f" ({about.rstrip('.')})" if about else ""
    )


def nested(problem: str, place: Sequence[int | str], value: Any, schema: Schema) -> str | None:
    """Return the sentence for a ``problem`` (pydantic's type of it) within an argument: "steps[0] has no field 'ref': ...".

    None where the schema does not say what belongs at ``place``, as for the branches of a union.
    """
    if problem in ("missing", "extra_forbidden"):
        *outer, last = place
        owner = _schema_at(outer, schema)
        if owner is None:
            return None
        path, name = path_of(outer), str(last)[:VALUE_CHARS]
        return missing(path, [name], owner) if problem == "missing" else _unknown_field(path, name, owner)
    own = _schema_at(place, schema)
    return None if own is None else _wrong(path_of(place), value, own)


def path_of(place: Sequence[int | str]) -> str:
    """Return where a value is within the arguments: "steps[0].action", "env['a b']"."""
    first, *inner = place
    return str(first) + "".join(map(_step_of, inner))


def _step_of(part: int | str) -> str:
    if isinstance(part, str) and part.isidentifier() and len(part) <= VALUE_CHARS:
        return f".{part}"
    return f"[{part if isinstance(part, int) else repr(part[:VALUE_CHARS])}]"


def _unknown_field(path: str, name: str, owner: Schema) -> str:
    known = [str(field) for field in owner.get("properties") or ()]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{path} has no field {name!r}: it has {', '.join(known)}{meant}"


def _schema_at(place: Sequence[int | str], schema: Schema) -> Schema | None:
    found: Any = schema
    for part in place:
        if not isinstance(found, Mapping):
            return None
        fields = found.get("properties")
        if isinstance(part, int):
            found = found.get("items")
        elif isinstance(fields, Mapping) and part in fields:
            found = fields[part]
        else:
            found = None if part == "[key]" else found.get("additionalProperties")
        found = _only_kind(found, schema)
    return found if isinstance(found, Mapping) else None


def _only_kind(found: Any, root: Schema) -> Any:
    """Return the schema that ``found`` refers to, or what it may be besides null. None if it may be several kinds."""
    if isinstance(found, Mapping) and isinstance(found.get("anyOf"), list):
        kinds = [kind for kind in found["anyOf"] if not (isinstance(kind, Mapping) and kind.get("type") == "null")]
        if len(kinds) != 1 or not isinstance(kinds[0], Mapping):
            return None
        found = {**{name: value for name, value in found.items() if name != "anyOf"}, **kinds[0]}
    reference = found.get("$ref") if isinstance(found, Mapping) else None
    if isinstance(reference, str):
        return (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
    return found


def _property(schema: Schema, name: str) -> Schema:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _about(schema: Schema) -> str:
    return str(schema.get("description") or "").rstrip(".") or kind_of(schema)
