"""The state of a sandbox's files: changes, patches, checkpoints and rollbacks, over the requests of one sandbox."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sandbox import operations as op
from sandbox.argument_types import HOST_PATH, check_host_path, check_types
from sandbox.envelope import Envelope, Failure, Notice, Success
from sandbox.envelope import now as timestamp
from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.guest.protocol.leftovers import LEFTOVERS
from sandbox.guest.protocol.records import FILE, FOLDER, LINK, WORKSPACE
from sandbox.messages.faults import fault_error, violation, word_notice
from sandbox.text.masking import Mask

from .checkpoint import EMPTY, Checkpoint, lacks
from .guest_files import Scan
from .history import History
from .methods import MOST_CHANGES, write_new
from .table import Difference, Entry, Key, Table, as_text, differences, display_path, unreadable_paths

if TYPE_CHECKING:
    from sandbox.operations.state import Kind

log = logging.getLogger(__name__)

T = TypeVar("T")
NAMED = 20
_LEFTOVER_FOLDERS = frozenset(name.encode() for name in LEFTOVERS)


class Masking(Protocol):
    """Masks secrets in answers; see ``environment.secrets``."""

    def envelope(self, envelope: Envelope[T]) -> Envelope[T]:
        """Return the answer with every secret masked."""

    @property
    def mask(self) -> Mask:
        """The mask of all secrets known so far."""


class FileState:
    """Implements ``StateMethods`` for one sandbox.

    ``live`` raises SandboxError unless the sandbox is in use, ``kill`` kills a command, ``root_is_kept`` says whether only
    workspace and home can be written. Secrets of ``hidden`` are masked in every answer.
    """

    def __init__(
        self,
        history: History,
        hidden: Masking,
        live: Callable[[], object],
        kill: Callable[[str], Envelope[Any]],
        root_is_kept: Callable[[], bool],
    ) -> None:
        self.history = history
        self._hidden = hidden
        self._live = live
        self._kill = kill
        self._root_is_kept = root_is_kept

    def begin(self, empty: bool) -> None:
        """Remember the present workspace as the start; ``empty`` says that nothing is in it."""
        try:
            self.history.start = EMPTY if empty else self.history.scan().table
        except OperationError as error:
            log.info("the start of the workspace is not known: %s", error)

    def with_history(self, work: Callable[[History], Success[T]], *, locked: bool = True) -> Envelope[T]:
        """Return the answer of ``work``, or the failure it raised; ``locked`` keeps other work on the history out meanwhile."""
        return self._hidden.envelope(self._of_history(work, locked))

    def _of_history(self, work: Callable[[History], Success[T]], locked: bool) -> Envelope[T]:
        started = time.monotonic()
        try:
            self._live()
            with self.history.lock if locked else contextlib.nullcontext():
                done = work(self.history)
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        except OSError as error:  # of the host's files
            message = (
                f"{error.filename or 'A file'} on the host could not be read or written: {error.strerror or error}."
            )
            code = ErrorCode.host_disk_full if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.io_error
            return Failure(code, message, "Give another path, or free space there.")
        return Success(done.result, notices=done.notices, duration_ms=(time.monotonic() - started) * 1000)

    def changes(
        self, since: str | None = None, *, leftovers: bool = False, max_changes: int = MOST_CHANGES
    ) -> Envelope[op.ChangesResult]:
        """See ``StateMethods.changes``."""
        check_types("changes", since=(since, str | None), max_changes=(max_changes, int))
        most = max(0, max_changes)

        def work(history: History) -> Success[op.ChangesResult]:
            if since == "last":
                return Success(_last(history.last_changes()))
            before = _table(history, since)
            scan = history.scan()
            found = [d for d in differences(before.entries(), scan.entries) if d.entry.root == WORKSPACE]
            listed, summarised = (found, {}) if leftovers else _summarised(found)
            counts: dict[str, Any] = Counter(d.kind for d in listed)
            return Success(
                op.ChangesResult(
                    since=since or "start",
                    changes=tuple(map(_changed, listed[:most])),
                    **counts,
                    truncated=len(listed) > most,
                    summarised=summarised,
                    entries=len(scan.entries),
                    unread=scan.unread,
                    running=scan.running,
                )
            )

        return self.with_history(work)

    def mark(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.mark``."""
        check_types("mark", name=(name, str | None))

        def work(history: History) -> Success[op.CheckpointResult]:
            began = time.monotonic()
            ident = history.new_id(name)
            scan = history.scan()
            history.marks[ident] = scan.table
            entries = scan.entries.values()
            kinds = Counter(entry.kind for entry in entries)
            return Success(
                op.CheckpointResult(
                    id=ident,
                    created_at=timestamp(),
                    files=kinds[FILE],
                    folders=kinds[FOLDER],
                    links=kinds[LINK],
                    size_bytes=sum(e.size for e in entries if e.kind == FILE),
                    store_bytes=history.store_bytes,
                    seconds=round(time.monotonic() - began, 3),
                )
            )

        return self.with_history(work)

    def export_patch(
        self, since: str | None = None, *, to: str | os.PathLike[str] | None = None, leftovers: bool = False
    ) -> Envelope[op.PatchResult]:
        """See ``StateMethods.export_patch``."""
        check_types("export_patch", since=(since, str | None), to=(to, HOST_PATH | None))

        def work(history: History) -> Success[op.PatchResult]:
            began = time.monotonic()
            if to is not None:
                check_host_path(to)
            from .patch import export

            made = export(history, since, leftovers)
            patch = b"".join(made.parts)
            if to is not None:
                write_new(to, patch)
            result = op.PatchResult(
                since=since or "start",
                patch=patch,
                files=tuple(made.files),
                left_out=made.left_out,
                seconds=round(time.monotonic() - began, 3),
            )
            return Success(result, notices=self._torn(made.torn, ()))

        return self.with_history(work)

    def checkpoint(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.checkpoint``."""
        check_types("checkpoint", name=(name, str | None))

        def work(history: History) -> Success[op.CheckpointResult]:
            made, scan, torn = history.checkpoint(name)
            notices = self.torn_notice(torn, scan.running) + self.missing_notice(history, made)
            return Success(made.result, notices=notices + self.root_notice())

        return self.with_history(work)

    def missing_notice(self, history: History, made: Checkpoint) -> tuple[Notice, ...]:
        """Return the notice of what a checkpoint could not keep, if there is anything."""
        return self._not_kept(history.count_missing(made), made.result.skipped) if made.result.skipped else ()

    def root_notice(self) -> tuple[Notice, ...]:
        """Return the notice that more can be written than is kept, if it can."""
        return () if self._root_is_kept() else self._notices({"code": "root_not_kept"})

    def torn_notice(self, torn: Sequence[Key], running: Sequence[str]) -> tuple[Notice, ...]:
        """Return the notice that the files are not those of one moment, if they are not."""
        return self._torn([path.decode("utf-8", "replace") for _, path in torn], running)

    def checkpoints(self) -> Envelope[op.CheckpointsResult]:
        """See ``StateMethods.checkpoints``."""

        def work(history: History) -> Success[op.CheckpointsResult]:
            kept = tuple(checkpoint.result for checkpoint in history.checkpoints.values())
            return Success(
                op.CheckpointsResult(checkpoints=kept, store_bytes=history.store_bytes, limit_bytes=history.limit)
            )

        return self.with_history(work)

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.delete_checkpoint``."""
        check_types("delete_checkpoint", id=(id, str))

        def work(history: History) -> Success[op.DeletedCheckpointResult]:
            freed = 0 if history.marks.pop(id, None) is not None else history.delete(id)
            return Success(op.DeletedCheckpointResult(id=id, freed_bytes=freed, store_bytes=history.store_bytes))

        return self.with_history(work)

    def save_checkpoint(self, id: str, to: str | os.PathLike[str]) -> Envelope[op.SavedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.save_checkpoint``."""
        check_types("save_checkpoint", id=(id, str), to=(to, HOST_PATH))

        def work(history: History) -> Success[op.SavedCheckpointResult]:
            from .checkpoint_file import save

            check_host_path(to)
            size = save(history.get(id), history.store, to, history.limit)
            return Success(op.SavedCheckpointResult(id=id, path=os.fspath(to), size_bytes=size))

        return self.with_history(work)

    def load_checkpoint(self, path: str | os.PathLike[str], name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.load_checkpoint``."""
        check_types("load_checkpoint", path=(path, HOST_PATH), name=(name, str | None))

        def work(history: History) -> Success[op.CheckpointResult]:
            from .checkpoint_file import load, open_file

            check_host_path(path)
            with open_file(path) as file:
                loaded = load(file, os.fspath(path), history.new_id(name), history.store)
            history.checkpoints[loaded.result.id] = loaded
            return Success(loaded.result)

        return self.with_history(work)

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002
        """See ``StateMethods.rollback``."""
        check_types("rollback", id=(id, str))

        def work(history: History) -> Success[op.RollbackResult]:
            checkpoint = history.get(id)
            scan, killed = self._wait_until_idle(history, kill)
            result = self.restore(history, checkpoint, scan, killed)
            blind = unreadable_paths(checkpoint.table.entries().values())
            notices = self._not_kept(len(blind), blind[:NAMED]) if blind else ()
            return Success(result.model_copy(update={"unread": tuple(blind[:NAMED])}), notices=notices)

        return self.with_history(work)

    def _torn(self, names: Sequence[str], running: Sequence[str]) -> tuple[Notice, ...]:
        if not names and not running:
            return ()
        return self._notices(
            {"code": "changed_meanwhile", "count": len(names), "names": list(names)[:10], "ids": list(running)[:10]}
        )

    def _not_kept(self, count: int, names: Sequence[str]) -> tuple[Notice, ...]:
        return self._notices({"code": "not_kept", "count": count, "names": list(names)})

    def _notices(self, *noticed: Mapping[str, Any]) -> tuple[Notice, ...]:
        masked = map(self._hidden.mask.fields, noticed)  # before they are truncated
        return tuple(notice for fields in masked if (notice := word_notice(str(fields["code"]), fields)) is not None)

    def _wait_until_idle(self, history: History, kill: bool) -> tuple[Scan, tuple[str, ...]]:
        """Return a scan while nothing runs, and the commands killed for it. Raises OperationError ``commands_running``."""
        scan = history.scan((WORKSPACE, 1))
        killed = scan.running
        if scan.running and kill:
            for ident in scan.running:
                self._kill(ident).unwrap()
            scan = history.scan((WORKSPACE, 1))
        if scan.running:
            fields = {"ids": list(scan.running)[:10], "count": len(scan.running)}
            raise fault_error(ErrorCode.commands_running, fields, "rollback")
        return scan, killed

    def restore(
        self,
        history: History,
        checkpoint: Checkpoint,
        scan: Scan,
        killed: tuple[str, ...] = (),
        *,
        elsewhere: bool = False,
    ) -> op.RollbackResult:
        """Go back to ``checkpoint``. Raises SandboxError, with ``restore_incomplete`` if a path still differs.

        ``elsewhere`` says that it is of another sandbox: what it could not keep is not here either, and is no failure.
        """
        began = time.monotonic()
        steps = history.plan_restore(checkpoint, scan)
        sent = history.restore(checkpoint, steps)
        differing = {entry.key: entry for entry in (*history.verify(checkpoint), *steps.impossible)}
        then = checkpoint.table.entries() if elsewhere else {}
        wrong = [
            display_path(entry)
            for key, entry in differing.items()
            if key not in then or not lacks(then[key], checkpoint.digests)
        ]
        result = op.RollbackResult(
            id=checkpoint.result.id,
            restored=len(steps.put) + len(steps.same) + len(steps.make),
            removed=len(steps.remove),
            adjusted=len(steps.attributes),
            sent_bytes=sent,
            killed=killed,
            differs=tuple(wrong[:NAMED]),
            seconds=round(time.monotonic() - began, 3),
        )
        if wrong:
            raise OperationError(
                ErrorCode.restore_incomplete,
                f"{len(wrong)} paths are not as they were in {checkpoint.result.id!r}: {', '.join(wrong[:5])}.",
                "Devices, pipes and sockets cannot be brought back; for the rest, do it again when nothing runs.",
                effects="partial",
                result=result,
            )
        return result


def _table(history: History, since: str | None) -> Table:
    if since in history.marks:
        return history.marks[since]
    if since not in (None, "start"):
        return history.get(since, or_mark=True).table
    if history.start is None:
        raise OperationError(
            ErrorCode.checkpoint_not_found,
            "What the workspace was at the start is not known.",
            "Make a mark or a checkpoint, and give its id as since.",
        )
    return history.start


def _summarised(found: Sequence[Difference]) -> tuple[list[Difference], dict[str, int]]:
    """Return the changes to list one by one, and the number of changes below each folder that tools leave behind."""
    listed, summarised = [], Counter[str]()
    for difference in found:
        parts = difference.entry.path.split(b"/")
        at = next((i for i, part in enumerate(parts) if part in _LEFTOVER_FOLDERS), None)
        if at is None:
            listed.append(difference)
        elif parts[at] != b".git":  # git writes there even when it only reads
            summarised[b"/".join(parts[: at + 1]).decode("utf-8", "replace")] += 1
    return listed, dict(summarised.most_common(NAMED))


def _kind(entry: Entry) -> Kind:
    return {FILE: "file", FOLDER: "folder", LINK: "link"}.get(entry.kind, "special")  # type: ignore[return-value]


def _changed(difference: Difference) -> op.ChangedPath:
    entry, before = difference.entry, difference.before if difference.after else None
    return op.ChangedPath(
        path=display_path(entry),
        change=difference.kind,
        kind=_kind(entry),
        size_bytes=entry.size if entry.kind == FILE else 0,
        mode=entry.mode,
        was=_kind(before) if before and before.kind != entry.kind else None,
        old_mode=before.mode if before and before.mode != entry.mode else None,
    )


def _last(reported: Mapping[str, Any]) -> op.ChangesResult:
    """Check what the guest reported of the last command. Raises SandboxUnavailableError."""
    listed: list[op.ChangedPath] = []
    counts: dict[str, Any] = {}
    for kind in ("created", "modified", "deleted"):
        paths = reported.get(kind, [])
        if not isinstance(paths, list):
            raise violation("changes")
        counts[kind] = len(paths[:MOST_CHANGES])
        listed += [op.ChangedPath(path=as_text(p)[:4096], change=kind) for p in paths[:MOST_CHANGES]]
    since = f"the beginning of {as_text(reported['id'])[:64]}" if reported.get("id") else "the start"
    return op.ChangesResult(since=since, changes=tuple(listed), **counts)
