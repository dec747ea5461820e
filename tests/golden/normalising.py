"""The one place where golden prompts lose what is another each time. Everything else in them is as it was sent."""

from __future__ import annotations

import re
from typing import Any

# What a delegated agent's result says of its run: an id made at random, and how long it took.
_RUN_ID = re.compile(r'(?<="run_id": ")[0-9a-f]{12,32}(?=")')
_SECONDS = re.compile(r'(?<="seconds": )\d+(?:\.\d+)?(?=[,}\s])')

# The command of an MCP server in the sandbox begins with a mark made at random.
_MARK = re.compile(r"\bmcp-[0-9a-f]{16}\b")


def normalised(value: Any) -> Any:
    """``value`` with RUN for the ids of runs, SECONDS for how long they took, and MARK for the marks of MCP servers."""
    if isinstance(value, dict):
        return {key: normalised(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [normalised(inner) for inner in value]
    if isinstance(value, str):
        return _MARK.sub("mcp-MARK", _SECONDS.sub("SECONDS", _RUN_ID.sub("RUN", value)))
    return value
