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
    "read": ("files.reading", "read"),
    "write": ("files.writing", "write"),
    "edit": ("files.writing", "edit"),
    "list": ("files.listing", "list_folder"),
    "stat": ("files.listing", "status_of"),
    "search": ("files.search", "search"),
    "make_dir": ("files.tree", "make_dir"),
    "move": ("files.tree", "move"),
    "delete": ("files.tree", "delete"),
    "upload": ("files.transfer", "upload"),
    "download": ("files.transfer", "download"),
    "browse": ("pages.browse", "browse"),
    "scan": ("state.scanning", "scan"),
    "fetch": ("state.fetching", "fetch"),
    "restore": ("state.restoring", "restore"),
    "last_changes": ("state.scanning", "last_changes"),
}


def has_handler(operation: str) -> bool:
    """Whether there is a handler of that name."""
    return operation in _HOMES


def handler(operation: str) -> Handler:
    """The handler of that name. Raises KeyError."""
    module, name = _HOMES[operation]
    found: Handler = getattr(import_module(f"..{module}", __package__), name)
    return found
