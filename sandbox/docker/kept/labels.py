"""The labels of containers, read with suspicion: whoever may build an image or create a container can write any.

Each function answers None for what a sandbox of ours would not carry. An image's labels are inherited by its containers, so that
an empty label means the same as none: a sandbox carries all those that mean something, empty where they do not apply.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.names import is_sandbox_name

KEEP_LABEL, NAME_LABEL = "dev.gamebox.keep", "dev.gamebox.name"
PID_LABEL, STARTED_LABEL = "dev.gamebox.pid", "dev.gamebox.started"
_IDENT = re.compile(r"gamebox-[0-9a-f]{16}")
_KEEP_BYTES = 1 << 16


def is_ident(text: str) -> bool:
    """Whether a container of ours may be called that: nothing that the engine or a path reads as more than a name."""
    return _IDENT.fullmatch(text) is not None


def text(listed: dict[str, Any], label: str) -> str:
    """A label of a container of the engine's list; "" where it has none."""
    return str((listed.get("Labels") or {}).get(label) or "")


def ident(listed: dict[str, Any]) -> str | None:
    """What the container says to be called, if it is called that and it is a name of ours."""
    said = text(listed, SANDBOX_LABEL)
    return said if is_ident(said) and f"/{said}" in (listed.get("Names") or ()) else None


def name(listed: dict[str, Any]) -> str | None:
    """What its maker called it."""
    said = text(listed, NAME_LABEL)
    return said if is_sandbox_name(said) else None


def keep(listed: dict[str, Any]) -> dict[str, Any] | None:
    """What is written down of a kept sandbox."""
    said = text(listed, KEEP_LABEL)
    try:
        fields = json.loads(said) if 0 < len(said) <= _KEEP_BYTES else None
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def keep_seconds(listed: dict[str, Any]) -> float | None:
    """For how long a kept one waits for an orchestrator."""
    try:
        seconds = float((keep(listed) or {})["seconds"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < math.inf else None


def number(digits: str) -> int | None:
    """A process id or a time, of at most as many digits as any has."""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 12 else None


def pid(listed: dict[str, Any]) -> int | None:
    """The process that made it."""
    return number(text(listed, PID_LABEL))


def started(listed: dict[str, Any]) -> float | None:
    """When it was made, in seconds since the epoch."""
    found = number(text(listed, STARTED_LABEL))
    return None if found is None else float(found)
