"""What a run leaves in the folders for temporary files, undone: what stands there may be executed by whoever works there next."""

from __future__ import annotations

import filecmp
import logging
import os
import posixpath
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from sandbox.envelope import Failure
from sandbox.environment import Environment
from sandbox.errors import ErrorCode, SandboxError

log = logging.getLogger(__name__)

TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - paths of the sandbox
SECONDS = 60.0
AT_ONCE = 100
NO_SHELL = frozenset({ErrorCode.program_not_found, ErrorCode.operation_not_supported})
_WHERE = 'printf %s "${TMPDIR:-/tmp}"'
_THERE = 'if [ -e "$p" ] || [ -L "$p" ]; then printf "%s\\0" "$p"; fi'
_LISTED = f'for p in "$1"/* "$1"/.[!.]* "$1"/..?*; do {_THERE}; done'
# A link is not followed: what it leads to is not what is to go. Says what is still there.
_GONE = f'exec 2>/dev/null; for p; do [ -L "$p" ] || chmod -R u+rwX -- "$p"; rm -rf -- "$p"; {_THERE}; done'


class TemporaryFiles:
    """The sandbox's folder for temporary files as it was when this was made, kept on the host until ``end()``.

    Raises SandboxError where it cannot be kept. Of /dev/shm only the names are kept.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        own = environment.list(TMP, depth=1).ok  # else it is the host's, where commands have one of their own
        self.place = TMP if own else self._said(_WHERE)
        self._shared = frozenset(self._names(_LISTED, SHM)) if own else None
        self._kept = tempfile.mkdtemp(prefix="gamebox-kept-")
        self.end = weakref.finalize(self, shutil.rmtree, self._kept, ignore_errors=True)
        self._skipped = self._taken(self._kept)

    def undo(self) -> list[str]:
        """Remove what has come since, and bring back what is other now, or gone; the paths of which that was not possible."""
        with tempfile.TemporaryDirectory(prefix="gamebox-kept-", ignore_cleanup_errors=True) as now:
            skipped = self._taken(now)
            new = [path for path in skipped if path not in self._skipped]
            other: list[str] = []
            for path, was in _differences(Path(self._kept, "files"), Path(now, "files")):
                (other if was else new).append(path)
        shared = [] if self._shared is None else [path for path in self._names(_LISTED, SHM) if path not in self._shared]
        gone = [*(posixpath.join(self.place, path) for path in (*new, *other)), *shared]
        left = [path for at in range(0, len(gone), AT_ONCE) for path in self._names(_GONE, *gone[at : at + AT_ONCE])]
        return left + [path for path in other if not self._brought_back(path)]

    def _taken(self, folder: str) -> frozenset[str]:
        """Copy it to ``folder``; the paths of what is no file, folder or link, or could not be read."""
        answer = self._environment.download(self.place, Path(folder, "files"))
        return frozenset(answer.unwrap().skipped)

    def _names(self, script: str, *args: str) -> list[str]:
        """The paths that a script says; none where there is no shell, which nobody could have left anything with either."""
        return [path for path in self._said(script, *args).split("\0") if path]

    def _said(self, script: str, *args: str) -> str:
        request = {"argv": ["sh", "-c", script, "sh", *args], "session": None, "timeout_seconds": SECONDS}
        answer = self._environment.execute("run", request)
        if not answer.ok and answer.code in NO_SHELL:
            return ""
        return str(answer.unwrap().stdout)

    def _brought_back(self, path: str) -> bool:
        kept = Path(self._kept, "files", path)
        back = self._environment.upload(kept, posixpath.join(self.place, path))
        return not isinstance(back, Failure)


def _differences(before: Path, after: Path, below: str = "") -> Iterator[tuple[str, bool]]:
    """The topmost paths that are not the same, each with whether it was there before."""
    then, now = _entries(before), _entries(after)
    for name in sorted(then.keys() | now.keys()):
        path = posixpath.join(below, name)
        was, is_ = then.get(name), now.get(name)
        if was is not None and is_ is not None and was.is_dir(follow_symlinks=False) and is_.is_dir(follow_symlinks=False):
            yield from _differences(before / name, after / name, path)
        elif was is None or is_ is None or not _same(was, is_):
            yield path, was is not None


def _entries(folder: Path) -> dict[str, os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return {entry.name: entry for entry in found}


def _same(one: os.DirEntry[str], other: os.DirEntry[str]) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and Path(one.path).readlink() == Path(other.path).readlink()
    if one.is_dir() or other.is_dir():
        return False
    same_mode = one.stat().st_mode == other.stat().st_mode
    return same_mode and filecmp.cmp(one.path, other.path, shallow=False)


def undone(files: TemporaryFiles) -> bool:
    """Undo and let go; whether nothing is left. What is left is told in the log of the program."""
    try:
        left = files.undo()
    except (SandboxError, OSError) as error:
        log.warning("temporary files of an agent that only reads may be left in the sandbox: %s", error)
        return False
    finally:
        files.end()
    if left:
        log.warning("temporary files that an agent that only reads has changed could not be brought back: %s", ", ".join(left[:20]))
    return not left
