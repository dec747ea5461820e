"""The tools of a server as they may be shown to a model: what they say of themselves is data, and bounded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.text.invisible import without_invisible

from .wire import too_deep

MAX_NAME = 128
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 20_000
# Of a schema with its references written out.
MAX_NODES = 2000
MAX_SCHEMA_DEPTH = 40
MAX_RESULT_CHARS = 100_000
# A pattern of a hostile server can keep a matcher busy for ever, as a long list of different items can; no number can be divided by
# every other; a reference can lead in circles. The server checks its arguments itself, so that nothing is lost with the former, and
# the latter are written out.
DROPPED = frozenset(
    {"pattern", "patternProperties", "propertyNames", "format", "$schema", "$id", "$anchor", "$defs", "definitions", "$comment",
     "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary", "unevaluatedProperties",
     "unevaluatedItems", "contentSchema", "multipleOf", "uniqueItems"}
)  # fmt: skip
_NAMED = frozenset({"properties", "dependentSchemas"})  # whose keys are names, not words of the schema
_PLAIN = frozenset({"enum", "const", "default", "examples", "required", "type", "dependentRequired"})


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name at the server, what it says of itself in one paragraph, and the schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """The same as long as the tool says the same of itself."""
        told = json.dumps([self.name, self.description, self.parameters], sort_keys=True)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def tool_of(declared: Any) -> Tool:
    """The tool that a server declares. Raises ValueError for what is none, or is beyond the bounds."""
    name = declared.get("name") if isinstance(declared, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_./:-]{1,128}", name):
        raise ValueError(f"a tool has no usable name: {str(name)[:80]!r}")
    description = declared.get("description")
    words = " ".join(without_invisible(description).split()) if isinstance(description, str) else ""
    return Tool(name, words[:MAX_DESCRIPTION_CHARS], schema_of(name, declared.get("inputSchema")))


def schema_of(name: str, schema: Any) -> dict[str, Any]:
    """A schema that is safe to check with. Raises ValueError."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError(f"the arguments of {name!r} are no object")
    if too_deep(schema, MAX_SCHEMA_DEPTH) or len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise ValueError(f"the schema of {name!r} is too large")
    plain: dict[str, Any] = _Plainer(schema).plain(schema, 0)
    plain = {"properties": {}, "required": [], **plain, "type": "object"}
    if len(json.dumps(plain)) > 2 * MAX_SCHEMA_CHARS or not isinstance(plain["properties"], dict):
        raise ValueError(f"the schema of {name!r} is too large, or none")
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(plain)
    except (SchemaError, RecursionError) as error:
        raise ValueError(f"the schema of {name!r} is none: {str(error)[:200]}") from error
    return plain


class _Plainer:
    """Writes out the references of a schema and leaves out what could harm."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def plain(self, node: Any, depth: int, following: tuple[str, ...] = ()) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_SCHEMA_DEPTH:
            raise ValueError("a schema is too large with its references written out")
        if isinstance(node, list):
            return [self.plain(child, depth + 1, following) for child in node]
        if not isinstance(node, dict):
            return without_invisible(node)[:MAX_DESCRIPTION_CHARS] if isinstance(node, str) else node
        if "$ref" in node:
            target = node["$ref"]
            found = None if target in following else self._found(target)
            rest = {key: value for key, value in node.items() if key != "$ref"}
            # Where it leads in circles or away, anything is allowed: the server will say what it does not take.
            merged = {**found, **rest} if isinstance(found, dict) else rest
            return self.plain(merged, depth + 1, (*following, str(target)))
        return {key: self._member(key, value, depth, following) for key, value in node.items() if key not in DROPPED}

    def _member(self, key: str, value: Any, depth: int, following: tuple[str, ...]) -> Any:
        if key in _PLAIN:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {str(name): self.plain(child, depth + 1, following) for name, child in value.items()}
        return self.plain(value, depth + 1, following)

    def _found(self, target: Any) -> Any:
        """What a reference within the document leads to."""
        if not isinstance(target, str) or not target.startswith("#/"):
            return None
        node: Any = self._root
        for part in target[2:].split("/"):
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        return node


def shown_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a call answered, for a model: texts joined, pictures and the like named, structured data where there is some."""
    content = result.get("content")
    blocks = [_block(block) for block in content[:1000]] if isinstance(content, list) else []
    shown: dict[str, Any] = {"text": "\n".join(blocks)[: 2 * MAX_RESULT_CHARS]}
    structured = result.get("structuredContent")
    if isinstance(structured, dict) and len(json.dumps(structured)) <= MAX_RESULT_CHARS:
        # Many servers send the same twice, once as text.
        same = any(_parsed(block) == structured for block in blocks)
        shown = {"structured": structured} if same else {**shown, "structured": structured}
    return shown


def _block(block: Any) -> str:
    if not isinstance(block, dict):
        return ""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource" and isinstance(block.get("resource"), dict):
        resource = block["resource"]
        if isinstance(resource.get("text"), str):
            return f"[resource {str(resource.get('uri'))[:500]}]\n{resource['text']}"
        return f"[resource {str(resource.get('uri'))[:500]}, not text, not shown]"
    if kind == "resource_link":
        return f"[resource {str(block.get('uri'))[:500]}: {str(block.get('name', ''))[:200]}]"
    return f"[{str(kind)[:40]}, {str(block.get('mimeType', ''))[:80]}, {_size(block.get('data'))} bytes, not shown]"


def _size(data: Any) -> int:
    try:
        return len(base64.b64decode(data)) if isinstance(data, str) else 0
    except ValueError:
        return len(data)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
