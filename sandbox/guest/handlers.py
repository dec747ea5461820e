"""The operations on files, search, transfer and pages, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .browse import browse
from .context import Call
from .files import edit, write
from .listing import list_folder
from .reading import read
from .search import search
from .transfer import download, upload
from .tree import delete, make_dir, move

HANDLERS: dict[str, Callable[[Call], dict[str, Any] | tuple[dict[str, Any], bytes]]] = {
    "read": read,
    "write": write,
    "edit": edit,
    "list": list_folder,
    "search": search,
    "make_dir": make_dir,
    "move": move,
    "delete": delete,
    "upload": upload,
    "download": download,
    "browse": browse,
}
