"""What the host knows of the files of one sandbox: its start, marks and checkpoints. Asks the guest, checks, keeps."""

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

from .asking import Asking, Scan
from .base import StartBase
from .checkpoint import Checkpoint, comparable, lacks, summary, surely_same
from .contents import Contents
from .plan import Plan, empty_content, plan
from .store import Store
from .table import Entry, Key, Table, is_below, packed

RESTORE_SECONDS = 600.0
MOST_ID_CHARS = 64


@dataclass(slots=True)
class History(Asking):
    """One sandbox's. One operation at a time; any thread."""

    limit: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    start: Table | None = None
    base: StartBase | Checkpoint | None = None
    marks: dict[str, Table] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    _store: Store | None = None
    _known: tuple[Table, Mapping[Key, bytes]] | None = None

    @property
    def store(self) -> Store:
        """Where contents are kept; made when first needed."""
        if self._store is None:
            self._store = Store(self.limit)
        return self._store

    @property
    def store_bytes(self) -> int:
        """What is kept on the host."""
        return self._store.used_bytes if self._store is not None else 0

    def close(self) -> None:
        """Forget everything."""
        with self.lock:
            for checkpoint in (*self.checkpoints.values(), self.base):
                if isinstance(checkpoint, Checkpoint) and self._store is not None:
                    self._store.drop(checkpoint.digests.values())
            if isinstance(self.base, StartBase):
                self.base.close()
            self.checkpoints.clear()
            self.base = None
            if self._store is not None:
                self._store.release()
                self._store = None

    def new_id(self, name: str | None) -> str:
        """``name``, or an id where there is none. Raises OperationError for one that is taken, or too long."""
        ident = f"k{secrets.token_hex(4)}" if name is None else name
        if not 0 < len(ident) <= MOST_ID_CHARS:
            problem = f"The name of a checkpoint has 1 to {MOST_ID_CHARS} characters, not {len(ident)}."
            raise OperationError(ErrorCode.invalid_arguments, problem, "Give another name.")
        if not is_writable(ident):
            problem = f"{value_text(ident)} cannot be the name of a checkpoint: it has characters that cannot be written."
            raise OperationError(ErrorCode.invalid_arguments, problem, "Give another name.")
        if ident in self.checkpoints or ident in self.marks or ident in ("start", "last"):
            raise OperationError(
                ErrorCode.invalid_arguments, f"There is a checkpoint or mark {ident!r} already.", "Give another name."
            )
        return ident

    # --- checkpoints ------------------------------------------------------------------
    def checkpoint(self, name: str | None) -> tuple[Checkpoint, Scan, list[Key]]:
        """Keep all files of workspace and home; with what ran meanwhile, and the paths that changed while they were read."""
        began = time.monotonic()
        ident = self.new_id(name)
        scan = self.scan((WORKSPACE, HOME), sessions=True)
        entries = dict(scan.entries)
        digests = self.store.claimed(self._digests_from_before(entries))
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
        table = Table(packed(entries.values()), scan.table.clock, scan.table.quiet)
        taken = {
            "seconds": round(time.monotonic() - began, 3), "added_bytes": contents.added_bytes,
            "read_files": len(digests) - reused,
        }  # fmt: skip
        result = summary(ident, entries, digests, self.store_bytes).model_copy(update=taken)
        checkpoint = Checkpoint(result, table, digests, scan.sessions)
        self.checkpoints[ident] = checkpoint
        self._known = (table, digests)
        return checkpoint, scan, contents.torn

    def missing(self, checkpoint: Checkpoint) -> int:
        """How many entries of it could not be kept."""
        entries = checkpoint.table.entries().values()
        return sum(lacks(entry, checkpoint.digests) for entry in entries)

    def _digests_from_before(self, entries: Mapping[Key, Entry]) -> dict[Key, bytes]:
        """Digests of the files that are surely as they were when they were last read."""
        if self._known is None:
            return {}
        table, known = self._known
        if not table.quiet:  # what was mapped into memory then may have been written since without any sign
            return {}
        found = {}
        for before in table.entries().values():
            digest, entry = known.get(before.key), entries.get(before.key)
            if digest is not None and entry is not None and surely_same(table, before, entry):
                found[before.key] = digest
        return found

    def _read(self, entries: Mapping[Key, Entry], known: Mapping[Key, bytes]) -> tuple[Contents, dict[Key, Key]]:
        """The contents of the others; of files with several names one is read, the second answer says which for which."""
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
        """Forget a checkpoint; the bytes that nothing else needed. Raises OperationError ``checkpoint_not_found``."""
        checkpoint = self.found(ident)
        before = self.store_bytes
        del self.checkpoints[ident]
        self.store.drop(checkpoint.digests.values())
        return before - self.store_bytes

    def found(self, ident: str, *, or_mark: bool = False) -> Checkpoint:
        """The checkpoint of that id. Raises OperationError ``checkpoint_not_found``; ``or_mark``: a mark would have done."""
        checkpoint = self.checkpoints.get(ident)
        if checkpoint is None:
            known = ", ".join([*self.checkpoints, *(self.marks if or_mark else ())][-10:])
            message = f"There is no checkpoint {'or mark ' if or_mark else ''}{value_text(ident)}."
            if ident in self.marks:
                message = f"{value_text(ident)} is a mark: it has no contents."
            hint = f"There are: {known}." if known else "There is no checkpoint yet: make one with checkpoint()."
            raise OperationError(ErrorCode.checkpoint_not_found, message, hint)
        return checkpoint

    # --- going back ------------------------------------------------------------------
    def planned(self, checkpoint: Checkpoint, now: Scan) -> Plan:
        """The way from what is there to ``checkpoint``."""
        digests = checkpoint.digests
        sure = self._digests_from_before(now.entries)
        then = checkpoint.table.entries()

        def same(entry: Entry, then: Entry) -> bool:
            if checkpoint.table.quiet and surely_same(checkpoint.table, then, entry):
                return True
            return sure.get(entry.key) is not None and sure.get(entry.key) == digests.get(then.key)

        return plan(now.entries, then, same, lambda entry: entry.key in digests)

    def restore(self, checkpoint: Checkpoint, steps: Plan) -> int:
        """Carry out the steps; bytes that were sent. Raises SandboxError whose ``effects`` say how far it came."""
        sent = 0

        def body() -> Iterator[bytes]:
            nonlocal sent
            for piece in _larger(steps.stream(lambda entry: self._content(checkpoint, entry))):
                sent += len(piece)
                yield piece

        args = {"path": ".", "sizes": steps.sizes(), "sessions": dict(checkpoint.sessions)}
        self._asked("restore", args, RESTORE_SECONDS, body=body())
        return sent

    def _content(self, checkpoint: Checkpoint, entry: Entry) -> Iterator[bytes]:
        return self.store.pieces(checkpoint.digests[entry.key]) if entry.size else empty_content()

    def verified(self, checkpoint: Checkpoint) -> list[Entry]:
        """What is not as it was in ``checkpoint``; what is, need not be read by the next one, and is no change since."""
        scan = self.scan((WORKSPACE, HOME))
        then, entries = checkpoint.table.entries(), scan.entries
        blind = {key for table in (then, entries) for key, entry in table.items() if entry.kind == UNREAD}
        owners = entries[WORKSPACE, b""].uid == 0  # nobody else may give files away
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
        """Begin with the files of another sandbox's checkpoint, in its store."""
        self._store = store.share()
        store.keep(checkpoint.digests.values())
        self.base = checkpoint


def _larger(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= 1 << 17:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
