"""What the host knows about the files of one sandbox: its start, marks and checkpoints."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sandbox.argument_types import is_writable
from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol.records import FILE, HOME, UNREAD, WORKSPACE
from sandbox.text.wording import value_text

from .checkpoint import Checkpoint, comparable, lacks, summary, surely_same
from .contents import Contents
from .guest_files import GuestFiles, Scan
from .initial_workspace import InitialWorkspace
from .plan import Plan, empty_content, plan
from .store import Store
from .table import Entry, Key, Table, is_below, pack

RESTORE_SECONDS = 600.0
MOST_ID_CHARS = 64


@dataclass(slots=True)
class History(GuestFiles):
    """The history of one sandbox. Any thread may use it, one at a time: holding ``lock``."""

    limit: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    start: Table | None = None
    base: InitialWorkspace | Checkpoint | None = None
    marks: dict[str, Table] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    _store: Store | None = None
    _known: tuple[Table, Mapping[Key, bytes]] | None = None

    @property
    def store(self) -> Store:
        """The store for contents, made on first use."""
        if self._store is None:
            self._store = Store(self.limit)
        return self._store

    @property
    def store_bytes(self) -> int:
        """Bytes of all contents on the host."""
        return self._store.used_bytes if self._store is not None else 0

    def close(self) -> None:
        """Forget everything."""
        with self.lock:
            for checkpoint in (*self.checkpoints.values(), self.base):
                if isinstance(checkpoint, Checkpoint) and self._store is not None:
                    self._store.drop(checkpoint.digests.values())
            if isinstance(self.base, InitialWorkspace):
                self.base.close()
            self.checkpoints.clear()
            self.base = None
            if self._store is not None:
                self._store.release()
                self._store = None

    def begin_base(self, limit_bytes: int) -> InitialWorkspace:
        """Return what keeps the files that the sandbox starts with, for patches, instead of those of an earlier upload."""
        with self.lock:
            if isinstance(self.base, InitialWorkspace):
                self.base.give_up("another upload began")
            self.base = base = InitialWorkspace(limit_bytes)
        return base

    def new_id(self, name: str | None) -> str:
        """Return ``name``, or a new id for None. Raises OperationError for a name that is taken or invalid."""
        ident = f"k{secrets.token_hex(4)}" if name is None else name
        if not 0 < len(ident) <= MOST_ID_CHARS:
            problem = f"The name of a checkpoint has 1 to {MOST_ID_CHARS} characters, not {len(ident)}."
            raise OperationError(ErrorCode.invalid_arguments, problem, "Give another name.")
        if not is_writable(ident):
            problem = (
                f"{value_text(ident)} cannot be the name of a checkpoint: it has characters that cannot be written."
            )
            raise OperationError(ErrorCode.invalid_arguments, problem, "Give another name.")
        if ident in self.checkpoints or ident in self.marks or ident in ("start", "last"):
            raise OperationError(
                ErrorCode.invalid_arguments, f"There is a checkpoint or mark {ident!r} already.", "Give another name."
            )
        return ident

    def checkpoint(self, name: str | None) -> tuple[Checkpoint, Scan, list[Key]]:
        """Keep all files of workspace and home; return the checkpoint, the scan, and the paths that changed meanwhile."""
        began = time.monotonic()
        ident = self.new_id(name)
        scan = self.scan((WORKSPACE, HOME), sessions=True)
        entries = dict(scan.entries)
        digests = self.store.claim(self._digests_from_before(entries))
        reused = len(digests)
        try:
            contents, others = self._read(entries, digests)
        except BaseException:
            self.store.drop(digests.values())
            raise
        entries.update(contents.entries)
        for key, first in others.items():
            if first in contents.digests:
                self.store.keep((contents.digests[first],))
                contents.digests[key] = contents.digests[first]
        digests |= contents.digests
        table = Table(pack(entries.values()), scan.table.clock, scan.table.quiet)
        costs = {
            "seconds": round(time.monotonic() - began, 3),
            "added_bytes": contents.added_bytes,
            "read_files": len(digests) - reused,
        }
        result = summary(ident, entries, digests, self.store_bytes).model_copy(update=costs)
        checkpoint = Checkpoint(result, table, digests, scan.sessions)
        self.checkpoints[ident] = checkpoint
        self._known = (table, digests)
        return checkpoint, scan, contents.torn

    def count_missing(self, checkpoint: Checkpoint) -> int:
        """Return how many entries could not be kept."""
        entries = checkpoint.table.entries().values()
        return sum(lacks(entry, checkpoint.digests) for entry in entries)

    def _digests_from_before(self, entries: Mapping[Key, Entry]) -> dict[Key, bytes]:
        """Return the digests of files that have certainly not changed since they were last read."""
        if self._known is None:
            return {}
        table, known = self._known
        if not table.quiet:  # a file that was mapped into memory then may have been written since without a trace
            return {}
        found = {}
        for before in table.entries().values():
            digest, entry = known.get(before.key), entries.get(before.key)
            if digest is not None and entry is not None and surely_same(table, before, entry):
                found[before.key] = digest
        return found

    def _read(self, entries: Mapping[Key, Entry], known: Mapping[Key, bytes]) -> tuple[Contents, dict[Key, Key]]:
        """Fetch the other files, those with several names once. Returns their contents, and for each further name the one read."""
        firsts: dict[tuple[int, int], Key] = {}
        others: dict[Key, Key] = {}
        asked = []
        for key, entry in entries.items():
            if entry.kind != FILE or key in known:
                continue
            if entry.names > 1:
                first = firsts.setdefault((entry.device, entry.inode), key)
                if first != key:
                    others[key] = first
                    continue
            asked.append(entry)
        return self.fetch(asked, self.store), others

    def delete(self, ident: str) -> int:
        """Forget a checkpoint. Returns the bytes that only it needed. Raises OperationError ``checkpoint_not_found``."""
        checkpoint = self.get(ident)
        before = self.store_bytes
        del self.checkpoints[ident]
        self.store.drop(checkpoint.digests.values())
        return before - self.store_bytes

    def get(self, ident: str, *, or_mark: bool = False) -> Checkpoint:
        """Return a checkpoint. Raises OperationError ``checkpoint_not_found``; ``or_mark`` mentions marks in it, too."""
        checkpoint = self.checkpoints.get(ident)
        if checkpoint is None:
            known = ", ".join([*self.checkpoints, *(self.marks if or_mark else ())][-10:])
            message = f"There is no checkpoint {'or mark ' if or_mark else ''}{value_text(ident)}."
            if ident in self.marks:
                message = f"{value_text(ident)} is a mark: it has no contents."
            hint = f"There are: {known}." if known else "There is no checkpoint yet: make one with checkpoint()."
            raise OperationError(ErrorCode.checkpoint_not_found, message, hint)
        return checkpoint

    def plan_restore(self, checkpoint: Checkpoint, now: Scan) -> Plan:
        """Return the steps from the present files to ``checkpoint``."""
        digests = checkpoint.digests
        sure = self._digests_from_before(now.entries)
        then = checkpoint.table.entries()

        def same(entry: Entry, then: Entry) -> bool:
            if checkpoint.table.quiet and surely_same(checkpoint.table, then, entry):
                return True
            return sure.get(entry.key) is not None and sure.get(entry.key) == digests.get(then.key)

        return plan(now.entries, then, same, lambda entry: entry.key in digests)

    def restore(self, checkpoint: Checkpoint, steps: Plan) -> int:
        """Carry out the steps. Returns the bytes sent. Raises SandboxError whose ``effects`` say whether files were changed."""
        sent = 0

        def body() -> Iterator[bytes]:
            nonlocal sent
            for piece in _in_larger_pieces(steps.stream(lambda entry: self._content(checkpoint, entry))):
                sent += len(piece)
                yield piece

        args = {"path": ".", "sizes": steps.sizes(), "sessions": dict(checkpoint.sessions)}
        self._ask_checked("restore", args, RESTORE_SECONDS, body=body())
        return sent

    def _content(self, checkpoint: Checkpoint, entry: Entry) -> Iterator[bytes]:
        return self.store.pieces(checkpoint.digests[entry.key]) if entry.size else empty_content()

    def verify(self, checkpoint: Checkpoint) -> list[Entry]:
        """Return what differs from ``checkpoint``. The other files need not be read for the next one, and count as unchanged."""
        scan = self.scan((WORKSPACE, HOME))
        then, entries = checkpoint.table.entries(), scan.entries
        blind = {key for table in (then, entries) for key, entry in table.items() if entry.kind == UNREAD}
        owners = entries[WORKSPACE, b""].uid == 0  # no other user may change owners
        before, after = comparable(then, owners), comparable(entries, owners)
        wrong = [
            after.get(key) or before[key]
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key) and not is_below(key, blind)
        ]
        bad = {entry.key for entry in wrong}
        self._known = (scan.table, {key: d for key, d in checkpoint.digests.items() if key not in bad})
        ident = checkpoint.result.id
        if not wrong and ident in self.checkpoints:
            self.checkpoints[ident] = replace(checkpoint, table=scan.table)
        return wrong

    def adopt(self, store: Store, checkpoint: Checkpoint) -> None:
        """Start from the files of another sandbox's checkpoint, in its store."""
        self._store = store.share()
        store.keep(checkpoint.digests.values())
        self.base = checkpoint


def _in_larger_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= 1 << 17:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
