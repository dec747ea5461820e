"""The one table of operations: each is declared where its request stands, and everything else is derived from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from .base import Request
from .result import Result

R = TypeVar("R", bound=Request)

# Request classes by the name of the operation, in the order in which their families were loaded.
OPERATIONS: dict[str, type[Request]] = {}


def operation(
    name: str,
    result: type[Result],
    *,
    changes_files: bool = False,
    starts_process: bool = False,
    repeatable: bool = False,
    ordered: bool = False,
    waits: bool = False,
    for_models: bool = True,
    in_every_sandbox: bool = True,
    positional: tuple[str, ...] | None = None,
    method_notes: str = "",
) -> Callable[[type[R]], type[R]]:
    """Declare the operation ``name``, answered with ``result``, whose request is the decorated class.

    The facts are those of ``Request``. ``positional`` is the arguments that are required, if it is not given.
    The guest has a table of its own, ``guest/loop/operations``. Then run ``python -m sandbox.environment.generated.write``.
    """

    def declare(request: type[R]) -> type[R]:
        if name in OPERATIONS:
            raise ValueError(f"the operation {name!r} is declared twice")
        required = tuple(field for field, info in request.model_fields.items() if info.is_required())
        request.operation, request.result = name, result
        request.changes_files, request.starts_process, request.repeatable = changes_files, starts_process, repeatable
        request.ordered, request.waits, request.for_models = ordered, waits, for_models
        request.in_every_sandbox = in_every_sandbox
        request.none_by_default = frozenset(field for field, info in request.model_fields.items() if info.default is None)
        request.positional, request.method_notes = required if positional is None else positional, method_notes
        OPERATIONS[name] = request
        return request

    return declare


def schema_of(request: type[Request]) -> dict[str, Any]:
    """Return the JSON schema of a request's arguments, without titles: what a model gets as ``parameters``."""
    found: dict[str, Any] = json.loads(_schema_text(request))
    return found


@lru_cache(maxsize=256)
def _schema_text(request: type[Request]) -> str:
    """Return the schema as JSON. pydantic takes 3 ms to make one, and every agent has eighteen; a copy is read in 0.02 ms."""
    schema: dict[str, Any] = _without_titles(request.model_json_schema())
    schema.pop("description", None)
    # For callers in Python; a model does not lose its connection.
    for name in ("request_id", *request.host_only()):
        schema["properties"].pop(name, None)
    schema.setdefault("required", [])
    return json.dumps(schema)


def _without_titles(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_titles(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(v) for v in node] if isinstance(node, list) else node
