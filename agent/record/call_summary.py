"""Summarize the arguments of a call for a person: the main one first, in a few lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandbox.envelope import jsonable
from sandbox.operations import OPERATIONS, schema_of
from sandbox.text.excerpt import few_lines

MAIN_LINES = 3
LINE_CHARS = 200
OTHER_CHARS = 60
"""Characters of an argument that is not the main one."""


def summarize_args(args: Any, parameters: Mapping[str, Any] | None = None) -> str:
    """Return the main argument in at most 3 lines, then the others as ``name=value`` on one line.

    The main argument is the first one that the action's schema ``parameters`` requires, or else declares. Without a schema, all
    arguments have their names, unless there is only one.
    """
    if not isinstance(args, Mapping) or not args:
        return "" if args is None or isinstance(args, Mapping) else _few_lines(args)
    names = _in_order(args, parameters or {})
    has_main = parameters is not None or len(names) == 1
    main = _few_lines(args[names[0]]).replace("\n", "\n      ") if has_main else ""
    others = " ".join(f"{name}={_short(args[name])}" for name in (names[1:] if has_main else names))
    return f"{main} {others if len(others) <= LINE_CHARS else f'{others[:LINE_CHARS]}…'}".strip()


def summary_of_call(tool: str, args: Any, recorded: str | None) -> str:
    """Return the summary that was recorded with a call; for an older log, make one as if ``tool`` were an operation."""
    return recorded if isinstance(recorded, str) else summarize_args(args, parameters_of(tool))


def parameters_of(tool: str) -> Mapping[str, Any] | None:
    """Return the schema of an operation's arguments; None for any other tool."""
    return schema_of(OPERATIONS[tool]) if tool in OPERATIONS else None


def _in_order(args: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments: required ones first, then those that are declared, then all others."""
    properties, required = parameters.get("properties"), parameters.get("required")
    declared = list(properties) if isinstance(properties, Mapping) else []
    first = [name for name in declared if isinstance(required, list | tuple) and name in required]
    return [name for name in dict.fromkeys([*first, *declared, *map(str, args)]) if name in args]


def _few_lines(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
    return few_lines(text, MAIN_LINES, LINE_CHARS)


def _short(value: Any) -> str:
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= OTHER_CHARS else f"{text[:OTHER_CHARS]}…"
