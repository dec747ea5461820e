"""Writing changes back to the host: all of them or none, and nothing that a sandbox should not decide."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError

from .changes import Change
from .snapshot import Snapshot, state_of, stays_inside

log = logging.getLogger(__name__)


def apply(snapshot: Snapshot, folder: Path, changes: Sequence[Change]) -> None:
    """Make ``repo`` on the host what it became in ``folder``. Everything is checked first, then written.

    Raises SandboxError ``apply_refused``, with nothing changed, for paths in .git, links and folders that lead out,
    and files that changed on the host since the copy; also when writing fails, after putting back what was there.
    """
    problems = [f"{c.path!r} {why}" for c in changes if (why := _refusal(snapshot, folder, c))]
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise SandboxError(
            ErrorCode.apply_refused,
            f"Nothing was written back: {shown}.",
            "Apply the diff by hand, or run the agent again on the present state of the repository.",
        )
    with tempfile.TemporaryDirectory(prefix="gamebox-undo-") as kept:
        done: list[Change] = []
        try:
            for change in sorted(changes, key=lambda c: (c.after is not None, c.path)):
                _keep(snapshot.repo / change.path, Path(kept) / str(len(done)))
                done.append(change)
                _write(snapshot.repo, change, folder / change.path)
        except BaseException as error:
            _undo(snapshot.repo, done, Path(kept))
            if not isinstance(error, OSError):
                raise
            raise SandboxError(
                ErrorCode.apply_refused, f"Nothing was written back: {error}.", "Mend that, or apply the diff by hand."
            ) from error


def _refusal(snapshot: Snapshot, folder: Path, change: Change) -> str | None:
    """Why this change may not be written, or None."""
    parts = change.path.split("/")
    if change.path.startswith("/") or ".." in parts or "" in parts:
        return "is no path inside the repository"
    # Names that some file systems take for .git as well.
    if any(p.rstrip(". ").casefold() in {".git", "git~1"} for p in parts):
        return "is in .git"
    target = snapshot.repo / change.path
    if not target.parent.resolve().is_relative_to(snapshot.repo.resolve()):
        return "leads out of the repository through a link"
    if change.after is not None and change.after.link and not stays_inside(change.path, change.after.digest):
        return f"is a link to {change.after.digest!r}, which leads out of the repository"
    if change.before is None and os.path.lexists(target):
        return "has appeared on the host since the copy"
    if change.before is not None and state_of(target) != change.before:
        return "was changed on the host since the copy"
    if change.after is not None and state_of(folder / change.path) != change.after:
        return "could not be fetched from the sandbox"
    return None


def _write(repo: Path, change: Change, source: Path) -> None:
    target = repo / change.path
    if change.after is None:
        target.unlink()
        _remove_empty(target.parent, repo)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".gamebox-{secrets.token_hex(8)}")
    try:
        if change.after.link:
            temporary.symlink_to(change.after.digest)
        else:
            shutil.copyfile(source, temporary, follow_symlinks=False)
            mode = target.stat().st_mode & 0o777 if target.is_file() and not target.is_symlink() else 0o644
            # whoever may read may execute, as git does it
            temporary.chmod(mode | (mode & 0o444) >> 2 if change.after.executable else mode & ~0o111)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_empty(folder: Path, repo: Path) -> None:
    """Folders that became empty go, as git sees it."""
    while folder != repo:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _keep(target: Path, kept: Path) -> None:
    if os.path.lexists(target):
        shutil.copy2(target, kept, follow_symlinks=False)


def _undo(repo: Path, done: Sequence[Change], kept: Path) -> None:
    for number, change in reversed(list(enumerate(done))):
        target, saved = repo / change.path, kept / str(number)
        try:
            if os.path.lexists(saved):
                target.parent.mkdir(parents=True, exist_ok=True)
                if os.path.lexists(target):
                    target.unlink()
                shutil.copy2(saved, target, follow_symlinks=False)
            elif os.path.lexists(target):
                target.unlink()
                _remove_empty(target.parent, repo)
        except OSError:
            log.exception("could not put back %s; what was there is in %s", target, saved)
