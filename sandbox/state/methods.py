"""The methods of an environment on the state of its files, for the host's own code: they are no tools of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError

MOST_CHANGES = 1000


class StateMethods:
    """Every method answers with an envelope. See docs/reference/state.md for what is kept, where, and what it costs.

    Raises SandboxError ``sandbox_closed`` for a sandbox that was not started or is closed.
    """

    def changes(
        self, since: str | None = None, *, leftovers: bool = False, max_changes: int = MOST_CHANGES
    ) -> Envelope[op.ChangesResult]:
        """What was created, modified and deleted in the workspace since the start, a mark or a checkpoint (``since``: its id).

        ``since="last"``: during the last command, of which a notice told. By names, types, modes, sizes and times, not by content:
        a file that was written anew with the same bytes counts. ``leftovers`` lists what is in .git, node_modules and the like one
        by one. Failures: ``checkpoint_not_found``, ``too_many_files``.
        """
        return self._no_state("changes")

    def mark(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """Remember what is where, for ``changes``; no contents, so it is cheaper than a checkpoint."""
        return self._no_state("mark")

    def checkpoint(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """Keep all files of workspace and home on the host. ``name`` is its id, else one is made up.

        May be called while commands run: a notice says that it is not the state of one moment. Failures: ``store_full``,
        ``host_disk_full``, ``too_many_files``; nothing is kept then.
        """
        return self._no_state("checkpoint")

    def checkpoints(self) -> Envelope[op.CheckpointsResult]:
        """What checkpoints there are."""
        return self._no_state("checkpoints")

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002
        """Forget a checkpoint, and what only it needed; or a mark."""
        return self._no_state("delete_checkpoint")

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002
        """Make workspace, home and sessions what they were in the checkpoint: bytes, modes, times, and nothing else there.

        While anything runs in the sandbox it is the failure ``commands_running``; with ``kill`` they are killed first. Do not start
        any until it has answered. Whatever fails before all contents have arrived leaves the files as they were (effects "none").
        ``restore_incomplete`` names what differs after all.
        """
        return self._no_state("rollback")

    def save_checkpoint(self, id: str, to: str | os.PathLike[str]) -> Envelope[op.SavedCheckpointResult]:  # noqa: A002
        """Write a checkpoint to a file of the host, a tar, which must not exist: for another process, another day."""
        return self._no_state("save_checkpoint")

    def load_checkpoint(self, path: str | os.PathLike[str], name: str | None = None) -> Envelope[op.CheckpointResult]:
        """Take the checkpoint in such a file for one of this sandbox: ``rollback`` brings its files here."""
        return self._no_state("load_checkpoint")

    def export_patch(
        self, since: str | None = None, *, to: str | os.PathLike[str] | None = None, leftovers: bool = False
    ) -> Envelope[op.PatchResult]:
        """The changes of the workspace since the start, or since a checkpoint, as a diff that ``git apply`` takes.

        With ``to``, it is written to that path of the host as well, which must not exist. ``leftovers`` puts in what tools left
        behind, too.
        """
        return self._no_state("export_patch")

    def fork(self, count: int = 1, checkpoint: str | None = None) -> Envelope[op.ForkResult]:
        """``count`` further environments like this one, started, with the files of a checkpoint, or else of now."""
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


def write_new(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a new file of the host; of one that cannot be written, nothing stays. Raises SandboxError ``path_exists``, OSError."""
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
