"""What is wrong with the arguments of a tool, in the words of its schema: only the arguments that are wrong are mentioned."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

Schema = Mapping[str, Any]
VALUE_CHARS = 80
_KINDS = {
    "string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip


def kind_of(schema: Schema) -> str:
    """What a value of this schema is: "a number above 0", "one of 'a', 'b'"."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind_of(option) for option in options if option.get("type") != "null"))
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema:
        return repr(schema["const"])
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    words = " or ".join(_KINDS.get(kind, str(kind)) for kind in kinds) or "another value"
    bounds = []
    if "exclusiveMinimum" in schema:
        bounds.append(f"above {schema['exclusiveMinimum']:g}")
    if "minimum" in schema:
        bounds.append(f"of at least {schema['minimum']:g}")
    if "maximum" in schema:
        bounds.append(f"of at most {schema['maximum']:g}")
    if "maxLength" in schema:
        bounds.append(f"of at most {schema['maxLength']} characters")
    if schema.get("minLength"):
        bounds.append("that is not empty")
    if isinstance(items := schema.get("items"), Mapping) and items.get("type") in _KINDS:
        bounds.append(f"of which each is {kind_of(items)}")
    return " ".join([words, " and ".join(bounds)]).strip()


def missing(tool: str, names: Iterable[str], schema: Schema) -> str:
    """The sentence for arguments that are not there."""
    properties = schema.get("properties", {})
    listed = [f"{name} ({_about(properties.get(name, {}))})" for name in names]
    return f"{tool} needs {' and '.join(listed)}"


def unknown(tool: str, name: str, schema: Schema) -> str:
    """The sentence for an argument that the tool does not have."""
    known = list(schema.get("properties", {}))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    have = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}" if known else "it takes none"
    return f"{tool} has no argument {name[:VALUE_CHARS]!r}: {have}"


def wrong(name: str, value: Any, schema: Schema) -> str:
    """The sentence for a value that does not fit; ``name`` is that of the argument."""
    own = schema.get("properties", {}).get(name, {})
    about = "" if "enum" in own else own.get("description", "")
    shown = repr(value)
    shown = shown if len(shown) <= VALUE_CHARS else f"{shown[:VALUE_CHARS]}…"
    return f"{name} must be {kind_of(own)}, not {shown}" + (f" ({about.rstrip('.')})" if about else "")


def _about(schema: Schema) -> str:
    return str(schema.get("description", "")).rstrip(".") or kind_of(schema)
