"""The state of files: what a repository was when it was copied, and what came back."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.text.wording import size

from .beneath import Folder, leads_into_git, walk_files
from .history import History
from .ignoring import Found, Rules
from .inside import GIT

_CHUNK = 1 << 20
_BLOCK = 4096
# Left on the disk of the host, which others need as well.
_SPARE_BYTES = 256 << 20
_SHOWN_FOLDERS = 4
SMALLER = "List what the agent does not need in .gitignore, or name a smaller folder with --repo"


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file or link. ``digest`` is the SHA-256 of a file's bytes, or the target of a link."""

    digest: str
    executable: bool = False
    link: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the files of ``repo`` at ``copy``, with their states.

    ``left_out`` are links that lead out, or into .git; ``problems`` say what else of the repository is not in the
    copy. ``size_bytes`` is the size of the copy. ``laid`` are files and folders that the sandbox's image had in the
    workspace beside them.
    """

    repo: Path
    copy: Path
    rules: Rules
    files: Mapping[str, FileState]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    size_bytes: int = 0
    laid: tuple[str, ...] = ()


def take(repo: Path, copy: Path, most_bytes: int | None = None, *, history: bool = False) -> Snapshot:
    """Copy what counts of ``repo`` to ``copy``, which must not exist. Nothing outside of ``repo`` is read, and nothing is run.

    With ``history`` the copy has a .git with the objects and refs of the repository, which only the git in a sandbox may read.
    Raises SandboxError: ``workspace_invalid`` if ``repo`` is not a folder or cannot be read; ``no_space`` before anything is copied
    if it takes more than ``most_bytes``, the room of the sandbox's workspace; ``host_disk_full`` likewise for the disk of ``copy``.
    """
    if not repo.is_dir():
        what = "is a file, not a folder" if repo.exists() else "does not exist"
        raise SandboxError(
            ErrorCode.workspace_invalid, f"The repository {repo} {what}.", "Name the folder of the repository."
        )
    try:
        rules = Rules(repo)
        past = History(repo) if history else None
        found = rules.found() if past is None else [*rules.found(), Found(GIT, past.size_bytes, False)]
        needed = check_room(repo, found, copy.parent, most_bytes)
        copy.mkdir()
        files, left_out = {}, []
        with Folder(repo) as source, Folder(copy) as target:
            for each in rules.found():
                if each.is_link and not _may_copy_link(each.path, source.link(each.path)):
                    left_out.append(each.path)
                    continue
                try:
                    files[each.path] = _copy(source, target, each)
                except OSError as error:
                    error.filename = each.path
                    raise
            if past is not None:
                past.copy(target)
    except OSError as error:
        raise _unreadable(repo, error) from error
    return Snapshot(repo, copy, rules, files, tuple(left_out), tuple(rules.problems), needed)


def _unreadable(repo: Path, error: OSError) -> SandboxError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SandboxError(
            ErrorCode.host_disk_full,
            f"The repository {repo} cannot be copied: {error.strerror}.",
            "Free some space in the temporary folder, or name another with TMPDIR.",
        )
    return SandboxError(
        ErrorCode.workspace_invalid,
        f"The repository {repo} cannot be copied: {error}.",
        "Make its files readable, or list what the agent does not need in .gitignore.",
    )


def check_room(repo: Path, found: Iterable[Found], place: Path, most_bytes: int | None = None) -> int:
    """Return what the files ``found`` take in bytes. Raises SandboxError, as ``take`` does, if they do not fit."""
    folders: Counter[str] = Counter()
    for each in found:
        folders[each.path.partition("/")[0]] += -(-each.size // _BLOCK) * _BLOCK
    needed = folders.total()
    free = max(0, shutil.disk_usage(place).free - _SPARE_BYTES)
    if most_bytes is not None and needed > most_bytes:
        code, where = ErrorCode.no_space, f"the workspace of the sandbox has {size(most_bytes)}"
        more = ""
    elif needed > free:
        code, where = ErrorCode.host_disk_full, f"only {size(free)} are free on the disk of {place}"
        more = ", or name a folder on a larger disk with TMPDIR"
    else:
        return needed
    largest = ", ".join(f"{name} ({size(count)})" for name, count in folders.most_common(_SHOWN_FOLDERS))
    raise SandboxError(
        code,
        f"The repository {repo} is too large: its files take {size(needed)}, and {where}. The largest: {largest}.",
        f"{SMALLER}{more}.",
    )


def state_in(folder: Folder, path: str) -> FileState | None:
    """Return the state of the file or link at ``path`` in ``folder``; None if there is neither, or a link is on the
    way.
    """
    status = folder.status(path)
    if status is not None and stat.S_ISLNK(status.st_mode):
        return FileState(folder.link(path), link=True)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    digest = hashlib.sha256()
    with folder.open(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return FileState(digest.hexdigest(), bool(status.st_mode & stat.S_IXUSR))


def states_under(folder: Path) -> dict[str, FileState]:
    """Return the states of all files and links below ``folder``, by relative path. Links are not followed; .git is
    left out.
    """
    with Folder(folder) as held:
        paths = [
            path for path, status in walk_files(held) if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        ]
        return {path: state for path in paths if (state := state_in(held, path)) is not None}


def _may_copy_link(path: str, target: str) -> bool:
    return stays_inside(path, target) and not leads_into_git(target)


def stays_inside(path: str, target: str) -> bool:
    """Return whether a link at ``path`` (relative to the repository) to ``target`` stays in the repository."""
    if not target or target.startswith("/"):
        return False
    joined = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - pure text
    return joined != ".." and not joined.startswith("../")


def _copy(source: Folder, target: Folder, found: Found) -> FileState:
    if found.is_link:
        link = source.link(found.path)
        target.create_link(found.path, link)
        return FileState(link, link=True)
    digest, left = hashlib.sha256(), found.size
    with source.open(found.path) as read:
        executable = bool(os.fstat(read.fileno()).st_mode & stat.S_IXUSR)
        with target.create(found.path) as written:
            # Not more than was counted: a file may grow meanwhile.
            while left > 0 and (chunk := read.read(min(left, _CHUNK))):
                digest.update(chunk)
                written.write(chunk)
                left -= len(chunk)
            os.fchmod(written.fileno(), 0o755 if executable else 0o644)
    return FileState(digest.hexdigest(), executable)
