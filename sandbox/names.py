"""The syntax of names that come from outside: from a database, a file, a command line, a label.

Each kind has one pattern, which is checked wherever such a name is read. A name that matches can be a file name: it is never empty,
"." or "..", and contains no separator, blank or control character.
"""

from __future__ import annotations

import re
from typing import TypeGuard

_PATTERNS = {
    "run": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"),
    "task": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"),
    "sandbox": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"),
    "agent": re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}"),
}
RULES = {
    "run": "up to 100 letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    "task": "up to 100 letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    "sandbox": "up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    "agent": "up to 64 letters, digits, '_' and '-', beginning with a letter",
}


def is_run_id(value: object) -> TypeGuard[str]:
    """Return whether ``value`` can be the id of a run, or of a part of one."""
    return _matches("run", value)


def is_task_id(value: object) -> TypeGuard[str]:
    """Return whether ``value`` can be the id of a task of a batch."""
    return _matches("task", value)


def is_sandbox_name(value: object) -> TypeGuard[str]:
    """Return whether ``value`` can be the name that a person gives to a sandbox."""
    return _matches("sandbox", value)


def is_agent_name(value: object) -> TypeGuard[str]:
    """Return whether ``value`` can be the name of an agent, or of a part or an input of one."""
    return _matches("agent", value)


def _matches(kind: str, value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _PATTERNS[kind].fullmatch(value) is not None
