"""The declarations of a server's tools, checked and bounded before a model sees them or arguments are checked with them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from sandbox.frozen import dataclass
from sandbox.text.invisible import without_invisible
from sandbox.text.masking import map_texts

from .messages import too_deep

MAX_NAME = 128
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 20_000
# In a schema whose references are expanded.
MAX_NODES = 2000
MAX_SCHEMA_DEPTH = 40
# Keywords that are removed. A pattern, or uniqueItems with a long list, can keep the host busy for ever; multipleOf fails for large
# numbers; references are expanded. The server checks its arguments itself, so nothing is lost.
DROPPED = frozenset(
    [
        "pattern",
        "patternProperties",
        "propertyNames",
        "format",
        "uniqueItems",
        "multipleOf",
        "contentSchema",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$schema",
        "$id",
        "$anchor",
        "$defs",
        "definitions",
        "$comment",
        "$vocabulary",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
    ]
)
_NAMED = frozenset({"properties", "dependentSchemas"})  # their keys are names, not keywords
_PLAIN = frozenset({"enum", "const", "default", "examples", "required", "type", "dependentRequired"})


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name at the server, its description as one paragraph, and the schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """A digest of the declaration."""
        declaration = json.dumps([self.name, self.description, self.parameters], sort_keys=True)
        return hashlib.sha256(declaration.encode("utf-8", "surrogatepass")).hexdigest()


def tool_of(declared: Any) -> Tool:
    """Check a declaration. Raises ValueError if it is invalid or beyond the bounds."""
    name = declared.get("name") if isinstance(declared, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_./:-]{1,128}", name):
        raise ValueError(f"a tool has no usable name: {str(name)[:80]!r}")
    description = declared.get("description")
    words = " ".join(without_invisible(description).split()) if isinstance(description, str) else ""
    return Tool(name, words[:MAX_DESCRIPTION_CHARS], schema_of(name, declared.get("inputSchema")))


def schema_of(name: str, schema: Any) -> dict[str, Any]:
    """Return a schema with which arguments can be checked safely. Raises ValueError."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError(f"the arguments of {name!r} are not an object")
    if too_deep(schema, MAX_SCHEMA_DEPTH) or len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise ValueError(f"the schema of {name!r} is too large")
    plain: dict[str, Any] = _Expander(schema).expand(schema, 0)
    plain = {"properties": {}, "required": [], **plain, "type": "object"}
    if len(json.dumps(plain)) > 2 * MAX_SCHEMA_CHARS or not isinstance(plain["properties"], dict):
        raise ValueError(f"the schema of {name!r} is too large, or invalid")
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(plain)
    except (SchemaError, RecursionError) as error:
        raise ValueError(f"the schema of {name!r} is invalid: {str(error)[:200]}") from error
    return plain


class _Expander:
    """Expands the references of a schema and removes dangerous keywords."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def expand(self, node: Any, depth: int, following: tuple[str, ...] = ()) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_SCHEMA_DEPTH:
            raise ValueError("a schema is too large when its references are expanded")
        if isinstance(node, list):
            return [self.expand(child, depth + 1, following) for child in node]
        if not isinstance(node, dict):
            return without_invisible(node)[:MAX_DESCRIPTION_CHARS] if isinstance(node, str) else node
        if "$ref" in node:
            target = node["$ref"]
            found = None if target in following else self._resolve(target)
            rest = {key: value for key, value in node.items() if key != "$ref"}
            # A reference in a circle or to elsewhere allows anything: the server refuses what it does not take.
            merged = {**found, **rest} if isinstance(found, dict) else rest
            return self.expand(merged, depth + 1, (*following, str(target)))
        return {key: self._member(key, value, depth, following) for key, value in node.items() if key not in DROPPED}

    def _member(self, key: str, value: Any, depth: int, following: tuple[str, ...]) -> Any:
        if key in _PLAIN:
            return map_texts(value, without_invisible, bytes)
        if key in _NAMED and isinstance(value, dict):
            return {without_invisible(str(name)): self.expand(child, depth + 1, following) for name, child in value.items()}
        return self.expand(value, depth + 1, following)

    def _resolve(self, target: Any) -> Any:
        """Return what a reference within the document points to, or None."""
        if not isinstance(target, str) or not target.startswith("#/"):
            return None
        node: Any = self._root
        for part in target[2:].split("/"):
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        return node
