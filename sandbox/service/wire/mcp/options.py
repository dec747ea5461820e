"""What a client asks for in the query of /mcp: an existing sandbox, or what its own is to be like."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.mcp.tools import Tool, chosen_tools
from sandbox.service.http.bodies import CreateSandbox, read_body
from sandbox.service.http.problems import Problem, ProblemCode, problem_of

TEXTS = ("image", "profile")
LIMITS = ("memory_bytes", "cpus")
SECONDS = ("time_to_live_seconds", "idle_seconds")
NAMES = ("sandbox", *TEXTS, "network", "allow", *LIMITS, *SECONDS, "tools", "ask")
# Of the query, as it is compared and kept.
MOST_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """``sandbox`` is the id of an existing one; else ``body`` is what is created. ``asks``: the user approves changes."""

    sandbox: str | None
    body: CreateSandbox
    tools: Mapping[str, Tool]
    asks: bool


def read_options(query: QueryParams) -> Options:
    """Return the options in a query. Raises Problem."""
    if unknown := [name for name in query if name not in NAMES]:
        raise _wrong(unknown[0], query[unknown[0]], f"The possible parameters are {', '.join(NAMES)}.")
    sandbox = query.get("sandbox")
    if sandbox is not None and (others := [name for name in query if name not in ("sandbox", "tools", "ask")]):
        raise _wrong(others[0], query[others[0]], "Leave it out: the sandbox exists already.")
    names = [each.strip() for each in query.get("tools", "").split(",") if each.strip()]
    try:
        tools = chosen_tools(names)
    except SandboxError as error:
        raise problem_of(error) from error
    ask = query.get("ask", "false")
    if ask not in ("true", "false"):
        raise _wrong("ask", ask, "Give true or false.")
    return Options(sandbox, _body(query), tools, ask == "true")


def _body(query: QueryParams) -> CreateSandbox:
    """Return the sandbox that is asked for. Raises Problem."""
    data: dict[str, Any] = {name: query[name] for name in TEXTS if name in query}
    data |= {name: _number(query, name) for name in SECONDS if name in query}
    data["limits"] = {name: _number(query, name) for name in LIMITS if name in query}
    rules = query.getlist("allow")
    mode = query.get("network", "allow" if rules else "none")
    data["network"] = {"mode": mode, "rules": rules}
    data["metadata"] = {"made_by": "mcp"}


    return read_body(CreateSandbox, json.dumps(data).encode())


def _number(query: QueryParams, name: str) -> float | int:
    text = query[name]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or len(text) > 20:
        raise _wrong(name, text, "Give a number.")
    return int(number) if number.is_integer() else number


def _wrong(name: str, value: str, hint: str) -> Problem:
    return Problem(422, ProblemCode.invalid_query, f"The parameter {name!r:.60} is {value!r:.80}.", hint)
