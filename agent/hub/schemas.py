"""Check schemas that users write: whether arguments can be validated with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

_REFERENCES = ("$ref", "$dynamicRef")


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return why ``schema`` cannot be used to validate anything; None if it can.

    It is not a JSON schema, or a ``$ref`` leads out of it, to nothing, to something that is not a schema, or in a
    circle. Nothing is fetched. A recursive schema (a ``$ref`` below ``properties`` or ``items``) is not a circle.
    """
    from jsonschema import Draft202012Validator, SchemaError  # costs 60 ms, and only a declared schema needs it

    root = dict(schema)
    try:
        Draft202012Validator.check_schema(root)
        _References().follow(root)
    except SchemaError as error:
        return str(error.message[:500])
    except _LostError as error:
        return str(error)
    except RecursionError:
        return "it is nested too deeply"
    return None


class _LostError(Exception):
    """A reference that does not lead to a schema; the text says why."""


class _References:
    """The schemas that references lead to. Each is known by its identity, because several references may lead to one."""

    def __init__(self) -> None:
        # Which schemas are applied to the same value.
        self._applied: dict[int, list[int]] = {}
        self._words: dict[int, str] = {}

    def follow(self, root: dict[str, Any]) -> None:
        """Follow all references. Raises _LostError, and SchemaError for an invalid schema at the end of one."""
        from jsonschema import Draft202012Validator
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        resource = DRAFT202012.create_resource(root)
        name = resource.id() or ""
        registry: Registry[Any] = Registry()  # which knows nothing and fetches nothing
        todo: list[tuple[Any, Any]] = [(root, registry.with_resource(name, resource).resolver(name))]
        while todo:
            schema, resolver = todo.pop()
            if id(schema) in self._applied or not isinstance(schema, dict):
                continue
            self._applied[id(schema)] = [id(each) for each in _in_place(schema)]
            for key in _REFERENCES:
                if key in schema:
                    target, where = _target(f"{key} {schema[key]!r:.200}", schema[key], resolver)
                    Draft202012Validator.check_schema(target)
                    todo.append((target, where))
                    self._applied[id(schema)].append(id(target))
                    self._words[id(schema)] = f"{key} {schema[key]!r:.200}"
            below = DRAFT202012.create_resource(schema).subresources()
            todo += [(each.contents, resolver.in_subresource(each)) for each in below]
        self._no_circle()

    def _no_circle(self) -> None:
        try:
            TopologicalSorter(self._applied).prepare()
        except CycleError as error:
            word = next(self._words[each] for each in error.args[1] if each in self._words)
            raise _LostError(f"its {word} leads in a circle") from None


def _in_place(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas in it that apply to the same value."""
    yield from (schema[key] for key in ("not", "if", "then", "else") if key in schema)
    yield from (each for key in ("allOf", "anyOf", "oneOf") for each in schema.get(key, ()))
    yield from schema.get("dependentSchemas", {}).values()


def _target(word: str, reference: str, resolver: Any) -> tuple[Any, Any]:
    """Return the schema that a reference leads to, and the resolver for its own references. Raises _LostError."""
    from referencing.exceptions import Unresolvable

    try:
        found = resolver.lookup(reference)
    except (Unresolvable, LookupError, ValueError, TypeError, AttributeError):  # by paths through texts and numbers
        raise _LostError(f"its {word} leads to nothing within it") from None
    if not isinstance(found.contents, (dict, bool)):
        raise _LostError(f"its {word} leads to something that is not a schema")
    return found.contents, found.resolver
