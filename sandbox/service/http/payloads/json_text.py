"""JSON as it is taken from a client: one object, without what two readers could read differently, and no bomb."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sandbox.service.http.problems import Problem, ProblemCode

# Arrays and objects in one another.
MOST_DEPTH = 64
# What is not in strings: a list of lists takes 30 times its text in memory, and a long text once.
MOST_STRUCTURE_BYTES = 1 << 20
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OPEN, _CLOSE = b"[{", b"]}"


def read_json(data: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; none counts as {}. Raises Problem.

    Lone surrogates are taken: they stand for bytes that are not UTF-8, as in names of files. What may not have them is refused
    where it is validated.
    """
    _check_structure(data)
    try:
        found = json.loads(data or b"{}", parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise invalid(f"The body is not JSON: {str(error)[:200].rstrip('.')}.") from error
    if not isinstance(found, dict):
        raise invalid("The body is not a JSON object.")
    return found


def _check_structure(data: bytes) -> None:
    if len(data) <= MOST_STRUCTURE_BYTES and data.count(b"[") + data.count(b"{") <= MOST_DEPTH:
        return
    structure = _STRINGS.sub(b"", data)
    if len(structure) > MOST_STRUCTURE_BYTES:
        raise too_much()
    depth = 0
    for char in structure:
        if char in _OPEN:
            depth += 1
            if depth > MOST_DEPTH:
                raise invalid(f"The body is nested more than {MOST_DEPTH} levels deep.")
        elif char in _CLOSE:
            depth -= 1


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"it has the name {twice[:80]!r} twice in one object")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"it has {text}, which JSON does not have")


def too_much() -> Problem:
    """Return the problem of a body that has too much outside strings."""
    return Problem(
        413,
        ProblemCode.body_too_large,
        f"The body has more than {MOST_STRUCTURE_BYTES} bytes outside long strings.",
        "Send less; files can be streamed with PUT /v1/sandboxes/{sandbox_id}/files.",
    )


def invalid(detail: str) -> Problem:
    """Return the problem of a body that is not JSON as it is taken here."""
    return Problem(400, ProblemCode.invalid_json, detail, "Send one JSON object.")
