"""Restore the folders for temporary files after a run: the next agent might execute what was left there."""

from __future__ import annotations

import filecmp
import logging
import os
import posixpath
import re
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from agent.repo.scratch import temporary_folder
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.transfers import folders

log = logging.getLogger(__name__)

TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - paths of the sandbox
SECONDS = 60.0
AT_ONCE, ROUNDS = 500, 20
TOLD = 100  # so many of what could not be copied are told
NO_SHELL = frozenset({ErrorCode.program_not_found, ErrorCode.operation_not_supported})
_WHERE = 'printf %s "${TMPDIR:-/tmp}"'
_LISTED = 'for p in "$1"/* "$1"/.[!.]* "$1"/..?*; do if [ -e "$p" ] || [ -L "$p" ]; then printf "%s\\0" "$p"; fi; done'
# None of the programs is one that a command may have put before them. A link is not followed: what it leads to is not what goes.
_SAFE = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; exec 2>/dev/null;"
_REMOVED = f'{_SAFE} for p; do [ -L "$p" ] || [ ! -d "$p" ] || chmod -R u+rwX -- "$p"; done; rm -rf -- "$@"'
_TOPS = 'find "$place" -mindepth 1 -maxdepth 1'
_ALL_BUT = f'{_SAFE} place=$1; shift; {_TOPS} -type d "$@" -exec chmod -R u+rwX -- {{}} +; {_TOPS} "$@" -exec rm -rf -- {{}} +'
_WILD = re.compile(r"([*?\[\]\\])")


class TemporaryFiles:
    """A copy of the sandbox's folder for temporary files, on the host until ``end()``.

    In a container that is /tmp, elsewhere the TMPDIR of commands. Of /dev/shm only the names are stored. Raises SandboxError if the
    folder cannot be copied. Entries that are not a file, folder or link, or cannot be read, are left alone.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        contained = getattr(environment, "image", None) is not None
        self.place = TMP if contained else self._said(_WHERE)
        places = [self.place, SHM] if contained else [self.place] if self.place else []
        self._names = {place: self._listed(place) for place in places}
        self._kept = tempfile.mkdtemp(prefix="gamebox-kept-")
        self.end = weakref.finalize(self, folders.remove, self._kept)
        self._left_out = self._taken(self._kept) if self.place else frozenset()

    def undo(self) -> list[str]:
        """Remove new files, restore changed and deleted ones, and return the paths for which that was not possible."""
        for place, names in self._names.items():
            self._said(_ALL_BUT, place, *(word for name in names for word in ("!", "-path", _WILD.sub(r"\\\1", name))))
        changed = self._changed()
        for _ in range(ROUNDS):  # of what is no file, a few are told at a time
            if not changed:
                break
            gone = [posixpath.join(self.place, path) for path, _ in changed]
            for at in range(0, len(gone), AT_ONCE):
                self._said(_REMOVED, *gone[at : at + AT_ONCE])
            for path, was_there in changed:
                if was_there:
                    self._environment.upload(Path(self._kept, "files", path), posixpath.join(self.place, path))
            changed = self._changed()
        left = [name for place, names in self._names.items() for name in set(self._listed(place)) - set(names)]
        return left + [path for path, _ in changed]

    def _changed(self) -> list[tuple[str, bool]]:
        """Return the paths that differ, each with whether it was there before."""
        if not self.place:
            return []
        with temporary_folder("gamebox-kept-") as now:
            left_out = self._taken(now)
            found = dict(_differences(Path(self._kept, "files"), now / "files"))
        if len(self._left_out) < TOLD:  # else there may have been more
            found |= dict.fromkeys(left_out - self._left_out - found.keys(), False)
        return list(found.items())

    def _taken(self, folder: str | Path) -> frozenset[str]:
        """Copy the folder to the host, and return the first paths that could not be copied."""
        return frozenset(self._environment.download(self.place, Path(folder, "files")).unwrap().skipped)

    def _listed(self, place: str) -> list[str]:
        """Return the entries of a folder. Raises SandboxError if there are too many to list."""
        return [path for path in self._said(_LISTED, place).split("\0") if path]

    def _said(self, script: str, *args: str) -> str:
        """Return the output of a script; "" if there is no shell, without which no command can have left anything."""
        request = {"argv": ["/bin/sh", "-c", script, "sh", *args], "session": None, "timeout_seconds": SECONDS}
        answer = self._environment.execute("run", request)
        if not answer.ok and answer.code in NO_SHELL:
            return ""
        result = answer.unwrap()
        if result.truncated or result.encoding_errors:
            words = "There are too many temporary files, or some of their names are not valid text."
            raise SandboxError(ErrorCode.too_many_files, words, "Remove what is not needed from /tmp.")
        return str(result.stdout)


def _differences(before: Path, after: Path, below: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the topmost paths that differ, each with whether it was there before."""
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
    """Restore the files and delete the copy. Returns whether nothing is left; the program's log names what is."""
    try:
        left = files.undo()
    except (SandboxError, OSError) as error:
        log.warning("temporary files of a read-only agent may be left in the sandbox: %s", error)
        return False
    finally:
        files.end()
    if left:
        log.warning("temporary files that a read-only agent changed could not be restored: %s", ", ".join(left[:20]))
    return not left
