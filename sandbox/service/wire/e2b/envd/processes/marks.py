"""What is to be started, and the mark of it in the sandbox by which a service after this one knows it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from sandbox.frozen import dataclass

# It says its id, and becomes the command. Behind it stands a mark.
SAYS_PID = ("/bin/sh", "-c", 'echo $$; exec "$@"')
# What the sandbox lists of a command is cut after 500 characters.
MOST_MARK_CHARS, MOST_TAG_CHARS = 240, 64
_MARK = "gamebox-e2b:"
_LISTED = re.compile(re.escape(" ".join(SAYS_PID)) + rf" {_MARK}([A-Za-z0-9_=-]{{1,400}}) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str | None
    timeout_seconds: float | None = None
    stdin: bool = True
    size: tuple[int, int] | None = None
    """Rows and columns of its terminal, if it has one."""


def mark_of(asked: Asked, tag: str | None) -> str:
    """Return what stands in the command line of the shell that becomes a command, for a service after this one.

    The sandbox can write such a mark as well; it is about its own commands.
    """
    short_tag = {} if tag is None or len(tag) > MOST_TAG_CHARS else {"tag": tag}
    user = {} if asked.user is None else {"user": asked.user}
    said = {**short_tag, **user, "pty": asked.size is not None}
    sizes = [len(each) for each in asked.argv]
    whole = _encoded({**said, "sizes": sizes})
    return f"{_MARK}{whole if len(whole) <= MOST_MARK_CHARS else _encoded(said)}"


def _encoded(said: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode()


def read_mark(listed: str) -> tuple[Asked, str | None] | None:
    """Return what was asked for, as far as the list of the sandbox has it, and the tag; None for any other command."""
    found = _LISTED.fullmatch(listed)
    if found is None:
        return None
    try:
        said = json.loads(base64.urlsafe_b64decode(found[1]))
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    tag, user = said.get("tag"), said.get("user")
    asked = Asked(
        _split(found[2], said.get("sizes")),
        env={},
        cwd="",
        user=user if isinstance(user, str) else None,
        stdin=False,
        size=(0, 0) if said.get("pty") is True else None,
    )
    return asked, tag if isinstance(tag, str) else None


def _split(text: str, sizes: object) -> tuple[str, ...]:
    """Return the arguments of a command line whose sizes are known; the last ones may be cut."""
    if not isinstance(sizes, list) or not all(isinstance(each, int) and each >= 0 for each in sizes):
        return tuple(text.split(" "))
    found, at = [], 0
    for size in sizes:
        found.append(text[at : at + size])
        at += size + 1
    return tuple(found)


def is_marked(listed: str) -> bool:
    """Return whether a command line that the sandbox lists has a mark."""
    return _LISTED.fullmatch(listed) is not None
