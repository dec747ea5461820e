"""What the host asks a guest about its files; answers are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.guest.protocol.records import ENTRY, MOST_PATH_BYTES, WORKSPACE, check_sessions
from sandbox.pipe.replies import fault_of, violation, worded

from .contents import Contents, wanted
from .naming import as_text
from .store import Store
from .table import Entry, Key, Table, table_of

# Entries, and as many again of what could not be looked into.
MOST_RECORDS = 1_000_000
SCAN_SECONDS = 60.0

Ask = Callable[..., tuple[dict[str, Any], bytes]]


@dataclass(frozen=True, slots=True)
class Scan:
    """What the guest said of one moment."""

    table: Table
    entries: Mapping[Key, Entry]
    running: tuple[str, ...]
    unread: tuple[str, ...]
    sessions: Mapping[str, Any]


@dataclass(slots=True)
class Asking:
    """One guest. ``ask`` is its transport's ``request``."""

    ask: Ask

    def scan(self, roots: Sequence[int] = (WORKSPACE,), *, sessions: bool = False) -> Scan:
        """What is in the sandbox now. Raises SandboxError."""
        data = bytearray()

        def take(chunk: bytes) -> None:
            data.extend(chunk)
            if len(data) > MOST_PATH_BYTES + MOST_RECORDS * ENTRY.size:
                raise worded(ErrorCode.too_many_files, {"path_bytes": MOST_PATH_BYTES}, "scan")

        said = self._asked("scan", {"roots": list(roots), "sessions": sessions}, SCAN_SECONDS, sink=take)
        try:
            running = tuple(as_text(ident)[:64] for ident in said["running"])
            unread = tuple(as_text(name)[:4096] for name in said["unread"])
            table, entries = table_of(bytes(data), int(said["clock_ns"]), not running, roots)
            return Scan(table, entries, running, unread, check_sessions(said["sessions"]))
        except (KeyError, TypeError, ValueError) as error:
            raise violation("scan") from error

    def _asked(self, operation: str, args: dict[str, Any], seconds: float, **streams: Any) -> dict[str, Any]:
        fields, _ = self.ask(operation, args, timeout_seconds=seconds, **streams)
        if fields.get("fault") is not None:
            raise fault_of(fields["fault"], operation)
        if not isinstance(fields.get("result"), dict):
            raise violation(operation)
        found: dict[str, Any] = fields["result"]
        return found

    def fetch(self, entries: Sequence[Entry], store: Store) -> Contents:
        """The contents of these files, put into ``store``. Raises SandboxError; then nothing of them is kept."""
        contents = Contents(store, entries)
        try:
            if entries:
                self._asked("fetch", {}, SCAN_SECONDS, body=(wanted(entries),), sink=contents.take)
            contents.finish()
        except BaseException:
            contents.close()
            store.drop(contents.digests.values())
            raise
        return contents

    def last_changes(self) -> dict[str, Any]:
        """What the guest saw change during the last command."""
        return self._asked("last_changes", {}, SCAN_SECONDS)
