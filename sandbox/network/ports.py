"""Check TCP ports that a caller gives."""

from __future__ import annotations

from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text

MOST = 65535


def is_port(value: object, least: int = 1) -> bool:
    """Return whether ``value`` is a port number from ``least`` on."""
    return type(value) is int and least <= value <= MOST


def check_port(call: str, name: str, value: object, least: int = 1) -> None:
    """Check the argument ``name`` of ``call``. Raises TypeError for no int, SandboxError ``invalid_arguments`` for no port."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{call}(): {name} must be an int, not {type(value).__name__}.")
    if not is_port(value, least):
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"{name} is {value_text(value)}, which is not a port.",
            f"Give a number from {least} to {MOST}.",
        )
