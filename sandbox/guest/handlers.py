"""The operations on files, search, transfer and pages, by name. Each is imported when it is first asked for: a guest starts
without them, and holds only what its sandbox uses.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .context import Call

    Handler = Callable[[Call], dict[str, Any] | tuple[dict[str, Any], bytes]]

_HOMES = {
    "read": ("reading", "read"),
    "write": ("files", "write"),
    "edit": ("files", "edit"),
    "list": ("listing", "list_folder"),
    "stat": ("status", "status_of"),
    "search": ("search", "search"),
    "make_dir": ("tree", "make_dir"),
    "move": ("tree", "move"),
    "delete": ("tree", "delete"),
    "upload": ("transfer", "upload"),
    "download": ("transfer", "download"),
    "browse": ("browse", "browse"),
    "scan": ("scanning", "scan"),
    "fetch": ("fetching_files", "fetch"),
    "restore": ("restoring", "restore"),
    "last_changes": ("scanning", "last_changes"),
}


def has_handler(operation: str) -> bool:
    """Whether there is a handler of that name."""
    return operation in _HOMES


def handler(operation: str) -> Handler:
    """The handler of that name. Raises KeyError."""
    module, name = _HOMES[operation]
    found: Handler = getattr(import_module(f".{module}", __package__), name)
    return found
