"""Write changes back to the host: all of them or none, and nothing that a sandbox must not decide."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent.errors import AgentErrorCode
from sandbox.errors import SandboxError

from .beneath import Folder, UnsafePathError, leads_into_git, split
from .changes import Change
from .snapshot import Snapshot, state_in, stays_inside

log = logging.getLogger(__name__)
_MOST_LINKS = 40  # that Linux follows for one path


def apply(snapshot: Snapshot, folder: Path, changes: Sequence[Change]) -> None:
    """Make ``snapshot.repo`` on the host what it became in ``folder``. Everything is checked before anything is
    written.

    Raises SandboxError ``apply_refused``, with nothing changed, for a path that leads out of the repository, through a
    link or into .git, for a folder that git would take for a repository, and for a file that changed on the host since
    the copy; also if writing fails, after restoring what was there. What cannot be restored is named, with the folder
    that keeps it.
    """
    try:
        with Folder(snapshot.repo) as repo, Folder(folder) as after:
            checks = _Checks(snapshot, repo, after, changes)
            problems = [f"{c.path!r:.300} {why}" for c in changes if (why := checks.refusal(c))]
            problems += checks.redirected()
            if problems:
                listed = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
                raise SandboxError(
                    AgentErrorCode.apply_refused,
                    f"Nothing was written back: {listed}.",
                    "Apply the diff by hand, or run the agent again on the repository as it is now.",
                )
            _write_all(repo, after, changes)
    except OSError as error:
        raise SandboxError(
            AgentErrorCode.apply_refused, f"Nothing was written back: {error}.", "Fix that, or apply the diff by hand."
        ) from error


class _Checks:
    """What must not be written, given what is on the host now and what all ``changes`` together would make of it."""

    def __init__(self, snapshot: Snapshot, repo: Folder, after: Folder, changes: Sequence[Change]) -> None:
        self._snapshot, self._repo, self._after = snapshot, repo, after
        self._real = os.path.realpath(snapshot.repo)
        self._links = {
            change.path: change.after.digest for change in changes if change.after is not None and change.after.link
        }
        self._changes = {change.path: change for change in changes}
        self._deleted = {change.path for change in changes if change.after is None}
        self._added: dict[str, set[str]] = {}
        for change in changes:
            parts = change.path.split("/") if change.after is not None else []
            for end in range(len(parts)):
                self._added.setdefault("/".join(parts[:end]), set()).add(parts[end])
        self._git_folders: dict[str, bool] = {}
        self._plain_folders = {""}

    def refusal(self, change: Change) -> str | None:
        """Return why this change must not be written, or None."""
        try:
            parts = split(change.path)
        except UnsafePathError:
            return "is not a path inside the repository"
        if leads_into_git(change.path):
            return "is in .git"
        folders = ["/".join(parts[:end]) for end in range(len(parts))]
        if (why := self._obstacle(folders)) is not None:
            return why
        if (
            change.after is not None
            and (taken := next((f for f in folders if self._is_git_folder(f)), None)) is not None
        ):
            return f"would be in {taken or '.'!r:.300}, which git would treat as a repository: it has HEAD, objects and refs"
        if (
            change.after is not None
            and change.after.link
            and (why := self._refused_link(change.path, change.after.digest))
        ):
            return f"is a link to {change.after.digest!r:.300}, which {why}"
        return self._refused_state(change)

    def _obstacle(self, folders: Sequence[str]) -> str | None:
        """Return a link or file of the host on the way to a path, unless it is deleted as well."""
        for folder in folders:
            if folder in self._plain_folders:
                continue
            status = self._repo.status(folder)
            if status is None or folder in self._deleted:
                return None
            if stat.S_ISLNK(status.st_mode):
                return f"leads through {folder!r:.300}, a link on the host"
            if not stat.S_ISDIR(status.st_mode):
                return f"needs the folder {folder!r:.300}, which is a file on the host"
            self._plain_folders.add(folder)
        return None

    def _is_git_folder(self, folder: str) -> bool:
        """Return whether git would take ``folder`` for a repository once everything is written, and so obey its
        config.
        """
        if folder not in self._git_folders:
            names = {name.casefold() for name in (*self._repo.names(folder), *self._added.get(folder, ()))}
            self._git_folders[folder] = "head" in names and ({"objects", "refs"} <= names or "commondir" in names)
        return self._git_folders[folder]

    def _refused_link(self, path: str, target: str) -> str | None:
        if not stays_inside(path, target):
            return "leads out of the repository"
        leads = self._resolved(path, target)
        if leads is None:
            return "leads out of the repository through another link, or in a circle"
        if leads_into_git(target) or leads_into_git(leads):
            return "leads into .git"
        return None

    def redirected(self) -> list[str]:
        """Return what is wrong with unchanged links: those that other links would make lead out, or into .git."""
        if not any((c.before and c.before.link) or (c.after and c.after.link) for c in self._changes.values()):
            return []
        found = []
        for path, state in self._snapshot.files.items():
            if state.link and path not in self._changes and (why := self._refused_link(path, state.digest)) is not None:
                real = os.path.relpath(os.path.realpath(os.path.join(self._real, path)), self._real)  # noqa: PTH118
                if not real.startswith("..") and not leads_into_git(real):  # it did not before
                    found.append(
                        f"{path!r:.300} is a link that would change where it leads: to {state.digest!r:.300}, which {why}"
                    )
        return found

    def _resolved(self, path: str, target: str) -> str | None:
        """Return where a link at ``path`` leads once everything is written, as a path in the repository.

        None if that is outside, or takes more links than Linux follows. The text of a link does not tell, because it
        may lead through others.
        """
        here = path.split("/")[:-1]
        waiting = target.split("/")[::-1]
        left = _MOST_LINKS
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    return None
                here.pop()
                continue
            link = self._link_at("/".join((*here, part)))
            if link is None:
                here.append(part)
                continue
            left -= 1
            if link.startswith("/"):  # on the host already
                if not f"{link}/".startswith(f"{self._real.rstrip('/')}/"):
                    return None
                here, link = [], link[len(self._real) :]
            if not left:
                return None
            waiting += link.split("/")[::-1]
        return "/".join(here)

    def _link_at(self, path: str) -> str | None:
        """Return the target of the link that will be at ``path``; None if there will be no link."""
        if path in self._changes or path in self._added:
            return self._links.get(path)
        status = self._repo.status(path)
        return self._repo.link(path) if status is not None and stat.S_ISLNK(status.st_mode) else None

    def _refused_state(self, change: Change) -> str | None:
        there = self._repo.status(change.path)
        if change.before is not None and state_in(self._repo, change.path) != change.before:
            return "has changed on the host since it was copied"
        if change.before is None and there is not None:
            if not stat.S_ISDIR(there.st_mode):
                return "has been created on the host since the copy"
            left = next((path for path in _files_in(self._repo, change.path) if path not in self._deleted), None)
            if left is not None:
                return f"would replace a folder on the host that still contains files, such as {left!r:.300}"
        if change.after is not None and state_in(self._after, change.path) != change.after:
            return "could not be fetched from the sandbox"
        return None


def _files_in(repo: Folder, folder: str) -> list[str]:
    """Return everything below a folder that is not a folder itself."""
    found: list[str] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        for name, status in repo.entries(here):
            (waiting if stat.S_ISDIR(status.st_mode) else found).append(f"{here}/{name}")
    return found


def _write_all(repo: Folder, after: Folder, changes: Sequence[Change]) -> None:
    done: list[Change] = []
    kept, left = Path(tempfile.mkdtemp(prefix="gamebox-undo-")), []
    try:
        # What is deleted first, so that a file may take the place of a folder and the other way round.
        for change in sorted(changes, key=lambda c: (c.after is not None, c.path)):
            _keep(repo, change.path, kept / str(len(done)))
            done.append(change)
            _write(repo, change, after)
    except BaseException as error:
        left = _undo(repo, done, kept)
        if not left:
            raise
        raise SandboxError(
            AgentErrorCode.apply_refused,
            f"Writing back failed ({error}), and {len(left)} file(s) could not be put back: {'; '.join(left[:5])}.",
            f"Copy what was there from {kept}, then remove that folder.",
        ) from error
    finally:
        if not left:
            shutil.rmtree(kept, ignore_errors=True)


def _write(repo: Folder, change: Change, after: Folder) -> None:
    status = repo.status(change.path)
    if change.after is None:
        repo.unlink(change.path)
        repo.remove_empty(change.path.rpartition("/")[0])
        return
    if status is not None and stat.S_ISDIR(status.st_mode):
        repo.remove_folders(change.path)
    if change.after.link:
        repo.replace_with_link(change.path, change.after.digest)
        return
    mode = stat.S_IMODE(status.st_mode) & 0o777 if status is not None and stat.S_ISREG(status.st_mode) else 0o644
    # Those who may read it may execute it, as git does it.
    mode = mode | (mode & 0o444) >> 2 if change.after.executable else mode & ~0o111
    with after.open(change.path) as source:
        repo.replace(change.path, source, mode)


def _keep(repo: Folder, path: str, kept: Path) -> None:
    status = repo.status(path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        kept.symlink_to(repo.link(path))
        return
    with repo.open(path) as source, kept.open("xb") as file:
        shutil.copyfileobj(source, file)
    kept.chmod(stat.S_IMODE(status.st_mode))
    os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))


def _undo(repo: Folder, done: Sequence[Change], kept: Path) -> list[str]:
    """Restore what was there. Return what could not be restored, each with the file that keeps it."""
    left = []
    for number, change in reversed(list(enumerate(done))):
        saved = kept / str(number)
        try:
            there = repo.status(change.path)
            if saved.is_symlink():
                repo.replace_with_link(change.path, str(saved.readlink()))
            elif saved.exists():
                status = saved.stat()
                with saved.open("rb") as source:
                    repo.replace(
                        change.path, source, stat.S_IMODE(status.st_mode), (status.st_atime_ns, status.st_mtime_ns)
                    )
            elif there is not None and not stat.S_ISDIR(there.st_mode):
                repo.unlink(change.path)
                repo.remove_empty(change.path.rpartition("/")[0])
        except OSError:
            log.exception("could not put back %s", change.path)
            was = str(saved) if saved.is_symlink() or saved.exists() else "nothing"
            left.append(f"{change.path!r:.300} (what was there: {was})")
    return left
