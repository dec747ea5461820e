"""Results of looking at, keeping and restoring the files of a sandbox."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Literal, Self

from pydantic import Field

from sandbox.text.masking import Mask
from sandbox.text.wording import one_line

from .result import Result

Kind = Literal["file", "folder", "link", "special"]
_MARKS = {"created": "+", "modified": "~", "deleted": "-"}


class ChangedPath(Result):
    """A path of the workspace that has changed; ``kind``, ``size_bytes`` and ``mode`` are those of now, or of what was deleted.

    ``was`` is the kind before where that changed, ``old_mode`` the mode before where that changed.
    """

    path: str
    change: Literal["created", "modified", "deleted"]
    kind: Kind = "file"
    size_bytes: int = 0
    mode: int = 0
    was: Kind | None = None
    old_mode: int | None = None

    def _words(self) -> str:
        """Return one line about it."""
        notes = [f"was a {self.was}"] if self.was else []
        if self.old_mode is not None:
            notes.append(f"mode {self.old_mode:o} to {self.mode:o}")
        end = "/" if self.kind == "folder" else ""
        return f"{_MARKS[self.change]} {one_line(self.path)[:300]}{end}" + (f" ({', '.join(notes)})" if notes else "")


class ChangesResult(Result):
    """The changes by path, at most as many as were asked for (``truncated``); the counts are of all of them.

    ``summarised`` says of folders that tools leave behind (node_modules and the like) how many changes there are in each; .git is
    left out. ``unread`` could not be looked into. ``running`` commands may go on changing files.
    """

    since: str
    created: int = 0
    modified: int = 0
    deleted: int = 0
    changes: tuple[ChangedPath, ...] = ()
    truncated: bool = False
    summarised: dict[str, int] = Field(default_factory=dict)
    entries: int = 0
    unread: tuple[str, ...] = ()
    running: tuple[str, ...] = ()

    def _words(self) -> str:
        """Return the counts, then a line for each path."""
        lines = [f"Since {self.since}: {self.created} created, {self.modified} modified, {self.deleted} deleted"]
        lines += [change.to_text() for change in self.changes]
        lines += [f"* {folder}/: {count} changes in it" for folder, count in self.summarised.items()]
        lines += [f"[not looked into: {one_line(name)[:300]}]" for name in self.unread]
        if self.truncated:
            lines.append("[more than are shown]")
        return "\n".join(lines)


class CheckpointResult(Result):
    """A checkpoint: it took ``added_bytes`` on the host, and all checkpoints together take ``store_bytes``.

    ``read_files`` of the ``files`` had to be read, the others were known from before. ``created_at`` is the host's time.
    """

    id: str
    created_at: str = ""
    files: int = 0
    folders: int = 0
    links: int = 0
    size_bytes: int = 0
    read_files: int = 0
    added_bytes: int = 0
    store_bytes: int = 0
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()


class CheckpointsResult(Result):
    """The checkpoints, the oldest first, and how many bytes of the host they take together."""

    checkpoints: tuple[CheckpointResult, ...] = ()
    store_bytes: int = 0
    limit_bytes: int = 0


class SavedCheckpointResult(Result):
    """The file of the host that a checkpoint was written to, and its size."""

    id: str
    path: str
    size_bytes: int = 0


class DeletedCheckpointResult(Result):
    """``freed_bytes`` is what no other checkpoint needed."""

    id: str
    freed_bytes: int = 0
    store_bytes: int = 0


class RollbackResult(Result):
    """What a rollback did: paths written (``restored``), removed, and given their old mode and time (``adjusted``).

    ``killed`` are the commands that were killed for it. ``differs`` names what still differs from the checkpoint.
    ``unread`` could not be looked into when it was made: below that nothing was brought back.
    """

    id: str
    restored: int = 0
    removed: int = 0
    adjusted: int = 0
    sent_bytes: int = 0
    killed: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    seconds: float = 0.0


class PatchResult(Result):
    """``patch`` is a diff in git's form that ``git apply`` takes (bytes: files need not be UTF-8).

    ``files`` are the paths in it. ``left_out`` says of what is not in it why: too large, a device, an empty folder, left behind by
    tools.
    """

    since: str
    patch: bytes = b""
    files: tuple[str, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    seconds: float = 0.0

    def masked(self, mask: Mask) -> Self:
        """See the base class; the patch is for the host's own code, which needs it as it is."""
        return super().masked(mask).model_copy(update={"patch": self.patch})

    def _words(self) -> str:
        """Return the patch; bytes in it that are not UTF-8 are replaced."""
        lines = [self.patch.decode("utf-8", "replace")]
        lines += [f"[not in the patch: {path}: {why}]" for path, why in self.left_out.items()]
        return "\n".join(lines)


class ForkResult(Result):
    """``environments`` are started, and the caller has to close them; they have the files of the checkpoint ``id``.

    A context manager, which closes all of them: ``with env.fork(3).unwrap() as forks:``.
    """

    id: str
    count: int = 0
    environments: tuple[Any, ...] = Field((), exclude=True)
    start_seconds: tuple[float, ...] = ()
    seconds: float = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with ExitStack() as closing:
            for environment in self.environments:
                closing.callback(environment.close)
