"""The state of files: what a repository was when it was copied, and what came back."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError

from .ignoring import Rules

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileState:
    """``digest`` is the SHA-256 of a file's bytes, or the target of a link."""

    digest: str
    executable: bool = False
    link: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the files of ``repo`` at ``copy``, and their states at that moment; ``left_out`` are links that lead
    out.
    """

    repo: Path
    copy: Path
    rules: Rules
    files: Mapping[str, FileState]
    left_out: tuple[str, ...] = ()


def take(repo: Path, copy: Path) -> Snapshot:
    """Copy what counts of ``repo`` to ``copy``, which must not exist.

    Raises SandboxError ``workspace_invalid`` if ``repo`` is no folder or cannot be read.
    """
    if not repo.is_dir():
        what = "is a file, not a folder" if repo.exists() else "does not exist"
        raise SandboxError(
            ErrorCode.workspace_invalid, f"The repository {repo} {what}.", "Give the folder of the repository."
        )
    try:
        rules = Rules(repo)
        copy.mkdir()
        files, left_out = {}, []
        for path in rules.files():
            if (repo / path).is_symlink() and not stays_inside(path, str((repo / path).readlink())):
                left_out.append(path)
                continue
            files[path] = _copy(repo / path, copy / path)
    except OSError as error:
        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The repository {repo} cannot be copied: {error}.",
            "Make its files readable, or list what the agent does not need in .gitignore.",
        ) from error
    return Snapshot(repo, copy, rules, files, tuple(left_out))


def state_of(path: Path) -> FileState | None:
    """The state of a file or link, or None if there is neither."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return FileState(str(path.readlink()), link=True)
        if not stat.S_ISREG(mode):
            return None
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileState(digest.hexdigest(), bool(mode & stat.S_IXUSR))


def states_under(folder: Path) -> dict[str, FileState]:
    """The states of all files and links below ``folder``, by relative path; links are not followed."""
    found = {}
    for base, folders, names in os.walk(folder):
        links = [n for n in folders if (Path(base) / n).is_symlink()]
        for name in [*names, *links]:
            path = Path(base) / name
            state = state_of(path)
            if state is not None:
                found[path.relative_to(folder).as_posix()] = state
    return found


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at ``path`` (relative to the repository) to ``target`` stays in the repository."""
    if not target or target.startswith("/"):
        return False
    joined = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - pure text
    return joined != ".." and not joined.startswith("../")


def _copy(source: Path, target: Path) -> FileState:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        link = str(source.readlink())
        target.symlink_to(link)
        return FileState(link, link=True)
    digest = hashlib.sha256()
    with source.open("rb") as read, target.open("wb") as written:
        while chunk := read.read(_CHUNK):
            digest.update(chunk)
            written.write(chunk)
        mode = os.fstat(read.fileno()).st_mode
    executable = bool(mode & stat.S_IXUSR)
    target.chmod(0o755 if executable else 0o644)
    return FileState(digest.hexdigest(), executable)
