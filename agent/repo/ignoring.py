"""Which files of a repository count: git's own answer where it is a git work tree, else its .gitignore files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

from sandbox.guest.leftovers import is_leftover

_GIT_SECONDS = 60


class Rules:
    """The files of ``repo`` and which new ones would be ignored. Paths are relative, with forward slashes."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo
        listed = _git(repo, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
        self._specs: dict[str, GitIgnoreSpec] = {}
        self._by_git = listed is not None
        self._files = sorted(set(_split(listed))) if listed is not None else sorted(self._walk(""))

    def files(self) -> list[str]:
        """Files and links that are tracked or not ignored."""
        return [f for f in self._files if (self.repo / f).is_symlink() or (self.repo / f).is_file()]

    def ignored(self, paths: Iterable[str]) -> set[str]:
        """Those of ``paths`` that are leftovers of tools or would be ignored."""
        asked = list(paths)
        found = {p for p in asked if is_leftover(p)}
        rest = [p for p in asked if p not in found]
        if not self._by_git:
            return found | {p for p in rest if self._matches(p)}
        answer = _git(self.repo, "check-ignore", "--stdin", "-z", text="\0".join(rest)) if rest else ""
        return found | set(_split(answer or ""))

    def _walk(self, folder: str) -> Iterator[str]:
        self._load(folder)
        with os.scandir(self.repo / folder) as entries:
            found = sorted(entries, key=lambda e: e.name)
        for entry in found:
            path = f"{folder}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_leftover(path) or self._matches(path + "/" if is_folder else path):
                continue
            if is_folder:
                yield from self._walk(path + "/")
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield path

    def _load(self, folder: str) -> None:
        file = self.repo / folder / ".gitignore"
        if file.is_file():
            self._specs[folder] = GitIgnoreSpec.from_lines(
                file.read_text(encoding="utf-8", errors="replace").splitlines()
            )

    def _matches(self, path: str) -> bool:
        """The deepest .gitignore that says anything decides; an ignored folder takes all that is in it along."""
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            part = "/".join(parts[:end]) + ("/" if end < len(parts) else "")
            verdict = None
            for depth in range(end):
                folder = "".join(f"{p}/" for p in parts[:depth])
                spec = self._specs.get(folder)
                said = spec.check_file(part[len(folder) :]).include if spec else None
                verdict = said if said is not None else verdict
            if verdict:
                return True
        return False


def _split(text: str) -> list[str]:
    return [p for p in text.split("\0") if p]


def _git(repo: Path, *args: str, text: str | None = None) -> str | None:
    """What git says, or None where there is no git or no work tree. File monitors of the repository are not started."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(repo), *args]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            input=None if text is None else os.fsencode(text),
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            env=environment,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # 1 from check-ignore means that nothing is ignored.
    return os.fsdecode(done.stdout) if done.returncode in ({0, 1} if text is not None else {0}) else None
