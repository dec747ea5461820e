"""Names and texts of a sandbox as its caller reads them."""

from __future__ import annotations

from collections.abc import Iterable

from sandbox.guest.protocol.records import UNREAD, WORKSPACE

from .table import Entry


def as_text(value: object) -> str:
    """What a guest calls a text, as one that is valid Unicode."""
    return str(value).encode("utf-8", "replace").decode()


def shown(entry: Entry) -> str:
    """A path as the agent would write it: relative to the workspace, or ~/ and relative to the home."""
    path = entry.path.decode("utf-8", "replace") or "."
    return path if entry.root == WORKSPACE else f"~/{path}"


def unread(entries: Iterable[Entry]) -> list[str]:
    """Where nobody could look."""
    return [shown(entry) for entry in entries if entry.kind == UNREAD]
