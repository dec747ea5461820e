"""The methods of an environment on the state of its files. They are for the host's own code, not tools for a model."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError

if TYPE_CHECKING:
    from .file_state import FileState

MOST_CHANGES = 1000


class StateMethods:
    """Every method answers with an envelope. See docs/reference/state.md for what is kept, where, and what it costs.

    Raises SandboxError ``sandbox_closed`` for a sandbox that was not started or is closed.
    """

    def changes(
        self, since: str | None = None, *, leftovers: bool = False, max_changes: int = MOST_CHANGES
    ) -> Envelope[op.ChangesResult]:
        """List what was created, modified and deleted in the workspace since the start, or the mark or checkpoint ``since``.

        ``since="last"`` lists what the last command changed, as its notice said. Names, types, modes, sizes and times are
        compared, not contents: a file that was rewritten with the same bytes counts. ``leftovers`` also lists the files in
        .git, node_modules and the like. Failures: ``checkpoint_not_found``, ``too_many_files``.
        """
        return self._no_state("changes")

    def mark(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """Remember the present files for ``changes``. Cheaper than a checkpoint, since no contents are kept."""
        return self._no_state("mark")

    def checkpoint(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """Keep all files of workspace and home on the host. ``name`` is the checkpoint's id; without it, one is made up.

        May be called while commands run: a notice then says that the files are not those of one moment. Failures: ``store_full``,
        ``host_disk_full``, ``too_many_files``; nothing is kept then.
        """
        return self._no_state("checkpoint")

    def checkpoints(self) -> Envelope[op.CheckpointsResult]:
        """List the checkpoints."""
        return self._no_state("checkpoints")

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002
        """Forget a checkpoint and the contents that only it needed, or a mark."""
        return self._no_state("delete_checkpoint")

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002
        """Make workspace, home and sessions what they were in the checkpoint: bytes, modes, times, and nothing else there.

        While anything runs in the sandbox it is the failure ``commands_running``; with ``kill`` they are killed first. Do not start
        any until it has answered. Whatever fails before all contents have arrived leaves the files as they were (effects "none").
        ``restore_incomplete`` names what differs after all.
        """
        return self._no_state("rollback")

    def save_checkpoint(self, id: str, to: str | os.PathLike[str]) -> Envelope[op.SavedCheckpointResult]:  # noqa: A002
        """Write a checkpoint to a new file of the host, a tar, which other processes can load later."""
        return self._no_state("save_checkpoint")

    def load_checkpoint(self, path: str | os.PathLike[str], name: str | None = None) -> Envelope[op.CheckpointResult]:
        """Load a file that ``save_checkpoint`` wrote as a checkpoint of this sandbox, for ``rollback``."""
        return self._no_state("load_checkpoint")

    def export_patch(
        self, since: str | None = None, *, to: str | os.PathLike[str] | None = None, leftovers: bool = False
    ) -> Envelope[op.PatchResult]:
        """Return the changes of the workspace since the start, or since a checkpoint, as a diff for ``git apply``.

        ``to`` also writes it to a new file of the host. ``leftovers`` includes files that tools left behind.
        """
        return self._no_state("export_patch")

    def fork(self, count: int = 1, checkpoint: str | None = None) -> Envelope[op.ForkResult]:
        """Start ``count`` more environments like this one, with the files of a checkpoint, or the present ones."""
        return self._no_state("fork")

    def _no_state(self, method: str) -> Failure[Any]:
        where = "DockerEnvironment" if method == "fork" else "DockerEnvironment or LocalEnvironment"
        return Failure.of(
            SandboxError(
                ErrorCode.operation_not_supported,
                f"{type(self).__name__} has no {method}().",
                f"Use {where}.",
            )
        )


class FileStateMethods(StateMethods):
    """The methods of an environment that has a ``FileState``."""

    _began_empty = False

    @property
    def state(self) -> FileState:
        """What the methods on the files share: how they were at the start, and the checkpoints. Made when it is first used."""
        own: dict[str, FileState] = vars(self)
        found = own.get("_state")
        if found is None:
            made = self._make_state()
            if self._began_empty:
                made.begin(empty=True)
            found = own.setdefault("_state", made)  # two threads at once have the same one
        return found

    @abstractmethod
    def _make_state(self) -> FileState: ...

    def _begin_state(self, empty: bool) -> None:
        """Remember the present workspace as the start. What keeps the state, 8 ms to load, is not made if nothing is in there."""
        self._began_empty = empty
        if not empty or "_state" in vars(self):
            self.state.begin(empty)

    def _close_state(self) -> None:
        if "_state" in vars(self):
            self.state.history.close()

    def changes(
        self, since: str | None = None, *, leftovers: bool = False, max_changes: int = MOST_CHANGES
    ) -> Envelope[op.ChangesResult]:
        """See ``StateMethods.changes``."""
        return self.state.changes(since, leftovers=leftovers, max_changes=max_changes)

    def mark(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.mark``."""
        return self.state.mark(name)

    def export_patch(
        self, since: str | None = None, *, to: str | os.PathLike[str] | None = None, leftovers: bool = False
    ) -> Envelope[op.PatchResult]:
        """See ``StateMethods.export_patch``."""
        return self.state.export_patch(since, to=to, leftovers=leftovers)

    def checkpoint(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.checkpoint``."""
        return self.state.checkpoint(name)

    def checkpoints(self) -> Envelope[op.CheckpointsResult]:
        """See ``StateMethods.checkpoints``."""
        return self.state.checkpoints()

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.delete_checkpoint``."""
        return self.state.delete_checkpoint(id)

    def save_checkpoint(self, id: str, to: str | os.PathLike[str]) -> Envelope[op.SavedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.save_checkpoint``."""
        return self.state.save_checkpoint(id, to)

    def load_checkpoint(self, path: str | os.PathLike[str], name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.load_checkpoint``."""
        return self.state.load_checkpoint(path, name)

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002
        """See ``StateMethods.rollback``."""
        return self.state.rollback(id, kill=kill)


def write_new(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a new file of the host, or leave nothing of it. Raises SandboxError ``path_exists``, OSError."""
    try:
        with Path(path).open("xb", buffering=0) as file:
            try:
                with memoryview(data) as view:
                    done = 0
                    while done < len(view):
                        done += file.write(view[done:])
            except BaseException:
                Path(path).unlink()
                raise
    except FileExistsError as error:
        raise SandboxError(
            ErrorCode.path_exists, f"{os.fspath(path)} exists on the host.", "Give a path that does not exist yet."
        ) from error
