"""Ask a guest about its files, and check its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass
from sandbox.guest.protocol.records import ENTRY, MOST_PATH_BYTES, WORKSPACE, check_sessions
from sandbox.messages.faults import fault_error, violation
from sandbox.pipe.replies import fault_of

from .contents import Contents, pack_wanted
from .store import Store
from .table import Entry, Key, Table, as_text, table_of

# Entries, together with records of what could not be read.
MOST_RECORDS = 1_000_000
SCAN_SECONDS = 60.0

Ask = Callable[..., tuple[dict[str, Any], bytes]]


@dataclass(frozen=True, slots=True)
class Scan:
    """All files at one moment, as the guest reported them."""

    table: Table
    entries: Mapping[Key, Entry]
    running: tuple[str, ...]
    unread: tuple[str, ...]
    sessions: Mapping[str, Any]


@dataclass(slots=True)
class GuestFiles:
    """The files of one guest. ``ask`` is its transport's ``request``."""

    ask: Ask

    def scan(self, roots: Sequence[int] = (WORKSPACE,), *, sessions: bool = False) -> Scan:
        """Return what is in the sandbox now. Raises SandboxError."""
        data = bytearray()

        def take(chunk: bytes | memoryview) -> None:
            data.extend(chunk)
            if len(data) > MOST_PATH_BYTES + MOST_RECORDS * ENTRY.size:
                raise fault_error(ErrorCode.too_many_files, {"path_bytes": MOST_PATH_BYTES}, "scan")

        found = self._ask_checked("scan", {"roots": list(roots), "sessions": sessions}, SCAN_SECONDS, sink=take)
        try:
            running = tuple(as_text(ident)[:64] for ident in found["running"])
            unread = tuple(as_text(name)[:4096] for name in found["unread"])
            table, entries = table_of(bytes(data), int(found["clock_ns"]), not running, roots)
            return Scan(table, entries, running, unread, check_sessions(found["sessions"]))
        except (KeyError, TypeError, ValueError) as error:
            raise violation("scan") from error

    def _ask_checked(self, operation: str, args: dict[str, Any], seconds: float, **streams: Any) -> dict[str, Any]:
        fields, _ = self.ask(operation, args, timeout_seconds=seconds, **streams)
        if fields.get("fault") is not None:
            raise fault_of(fields["fault"], operation)
        if not isinstance(fields.get("result"), dict):
            raise violation(operation)
        found: dict[str, Any] = fields["result"]
        return found

    def fetch(self, entries: Sequence[Entry], store: Store) -> Contents:
        """Put the contents of these files into ``store``. Raises SandboxError, after dropping all of them."""
        contents = Contents(store, entries)
        try:
            if entries:
                self._ask_checked("fetch", {}, SCAN_SECONDS, body=(pack_wanted(entries),), sink=contents.take)
            contents.finish()
        except BaseException:
            contents.close()
            store.drop(contents.digests.values())
            raise
        return contents

    def last_changes(self) -> dict[str, Any]:
        """Return what the guest saw change during the last command."""
        return self._ask_checked("last_changes", {}, SCAN_SECONDS)
