"""Read the labels of containers, which are hostile: everyone who builds images or creates containers can write any.

Each function returns None for a value that no sandbox of ours has. Containers inherit the labels of their image, so an empty label
means the same as a missing one: a sandbox carries every label that means something, empty if it does not apply.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.names import is_sandbox_name

KEEP_LABEL, NAME_LABEL = "dev.gamebox.keep", "dev.gamebox.name"
# Of a service: it finds the sandbox again, whatever becomes of its process.
SERVICE_LABEL = "dev.gamebox.service"
PID_LABEL, STARTED_LABEL = "dev.gamebox.pid", "dev.gamebox.started"
_IDENT = re.compile(r"gamebox-[0-9a-f]{16}")
_KEEP_BYTES = 1 << 16


def is_ident(text: str) -> bool:
    """Return whether a container of ours may have that name: nothing that an engine or a path reads as more than a name."""
    return _IDENT.fullmatch(text) is not None


def text(listed: dict[str, Any], label: str) -> str:
    """Return a label of a container of the engine's list; "" if it is missing."""
    return str((listed.get("Labels") or {}).get(label) or "")


def ident(listed: dict[str, Any]) -> str | None:
    """Return the container name in the labels, if the container has that name and it is one of ours."""
    value = text(listed, SANDBOX_LABEL)
    return value if is_ident(value) and f"/{value}" in (listed.get("Names") or ()) else None


def name(listed: dict[str, Any]) -> str | None:
    """Return the name that its maker gave it."""
    value = text(listed, NAME_LABEL)
    return value if is_sandbox_name(value) else None


def keep(listed: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a kept sandbox's label."""
    value = text(listed, KEEP_LABEL)
    try:
        fields = json.loads(value) if 0 < len(value) <= _KEEP_BYTES else None
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def protocol(fields: dict[str, Any]) -> int:
    """Return which protocol the guest of a kept sandbox speaks; the first one was not written down. -1 if it is not known."""
    value = fields.get("protocol", 1)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1


def made_by(fields: dict[str, Any]) -> str:
    """Return the version of Gamebox that made a kept sandbox."""
    return "".join(each for each in str(fields.get("version", "0.1.0"))[:40] if each.isprintable())


def keep_seconds(listed: dict[str, Any]) -> float | None:
    """Return the seconds that a kept sandbox waits for an orchestrator."""
    try:
        seconds = float((keep(listed) or {})["seconds"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < math.inf else None


def number(digits: str) -> int | None:
    """Return a process id or a time of at most 12 digits."""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 12 else None


def pid(listed: dict[str, Any]) -> int | None:
    """Return the id of the process that made it."""
    return number(text(listed, PID_LABEL))


def started(listed: dict[str, Any]) -> float | None:
    """Return when it was made, in seconds since the epoch."""
    found = number(text(listed, STARTED_LABEL))
    return None if found is None else float(found)
