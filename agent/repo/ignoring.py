"""Which files of a repository count: those that git would add, found without git and without the repository's
configuration.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.guest.protocol.leftovers import is_leftover

from .beneath import Folder, is_git_name
from .git_folder import MOST_PATTERN_BYTES, WorkTree, find_root, read_work_tree, user_excludes
from .index import Index
from .patterns import MOST_LINE_BYTES, Patterns, TooMuchWorkError, Work

IGNORE_FILE = ".gitignore"
MOST_LEVELS = 256
# On the host and in the sandbox the whole path has to fit into 4096.
MOST_PATH_BYTES = 3500
MOST_FILES = 200_000
MOST_ENTRIES = 2_000_000
MOST_PATTERNS = 20_000
_TOO_MUCH_WORK = "The patterns in its .gitignore files take too long to read and to match"


@dataclass(frozen=True, slots=True)
class Found:
    """A file or link that counts, with its size in bytes."""

    path: str
    size: int
    is_link: bool


@dataclass(slots=True)
class _Asked:
    ignored: bool
    below: dict[str, _Asked] = field(default_factory=dict)


def special_kind(status: os.stat_result) -> str:
    """Return the word for a pipe, a socket or a device; "" for everything else."""
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(status.st_mode), "")


class Rules:
    """The files of the folder ``repo``, and which new ones would be ignored. Paths are relative, with forward slashes.

    Raises OSError, and SandboxError ``workspace_invalid`` for a folder that is too deep or has too many files or patterns.
    """

    def __init__(self, repo: Path) -> None:
        self.repo = repo
        self.problems: list[str] = []
        # The patterns in force below a folder, by its parts from the root of the work tree; () has the user's own and info/exclude.
        self._patterns: dict[tuple[str, ...], tuple[Patterns, ...]] = {}
        self._depths: list[int] = []
        self._count = self._seen = 0
        self._work = Work()
        self._prefix: tuple[str, ...] = ()
        # Folders that ``ignored`` was asked about. It is a tree, so that a deep path takes no more than its length.
        self._asked = _Asked(False)
        with Folder(repo) as held:
            try:
                self._tree, self._prefix = self._located()
                self._found = self._search(held)
            except TooMuchWorkError:
                raise self._refused(_TOO_MUCH_WORK) from None

    def found(self) -> list[Found]:
        """Return files and links that are tracked or not ignored, sorted by path."""
        return list(self._found.values())

    def files(self) -> list[str]:
        """Return the paths of ``found``."""
        return list(self._found)

    def ignored(self, paths: Iterable[str]) -> set[str]:
        """Return those of ``paths`` that are leftovers of tools, in a .git, or would be ignored.

        Raises SandboxError ``workspace_invalid`` if that takes too long to decide.
        """
        try:
            return {path for path in paths if is_leftover(path) or self._is_ignored(path)}
        except TooMuchWorkError:
            raise self._refused(_TOO_MUCH_WORK) from None

    def _is_ignored(self, path: str) -> bool:
        *folder, name = parts = path.split("/")
        here = self._asked
        for end, part in enumerate(folder, 1):
            below = here.below.get(part)
            if below is None:
                below = here.below[part] = _Asked(is_git_name(part) or self._verdict(parts[:end], True))
            if below.ignored:
                return True
            here = below
        return is_git_name(name) or self._verdict(parts, False)

    def _verdict(self, parts: Sequence[str], is_folder: bool) -> bool:
        """Return whether the last of ``parts`` is ignored, regardless of its folders. The deepest .gitignore with a
        matching pattern decides.
        """
        full = (*self._prefix, *parts)
        self._work.take((1 + len(self._depths)) * len(full))  # each depth is looked up by the parts above it
        for depth in self._depths:
            for patterns in self._patterns.get(full[:depth], ()) if depth < len(full) else ():
                verdict = patterns.verdict(full[depth:], is_folder, self._work)
                if verdict is not None:
                    return verdict
        return False

    def _set(self, parts: tuple[str, ...], patterns: tuple[Patterns, ...]) -> None:
        if patterns:
            self._patterns[parts] = patterns
            if len(parts) not in self._depths:
                self._depths = sorted((*self._depths, len(parts)), reverse=True)

    def _located(self) -> tuple[WorkTree | None, tuple[str, ...]]:
        """Return the work tree that the repository is in, and its parts from there. A folder that the work tree
        ignores stands alone.
        """
        root = find_root(self.repo)
        users = self._with(user_excludes(), (), "the user's file of patterns")
        self._set((), users)
        if root is None:
            return None, ()
        tree = read_work_tree(root)
        parts = Path(self.repo).resolve().relative_to(root).parts
        if tree.problem:
            self.problems.append(f"files that .gitignore matches are left out even if git tracks them: {tree.problem}")
        if tree.exclude_problem:
            self.problems.append(tree.exclude_problem)
        if tree.index.refused:
            count = tree.index.refused
            self.problems.append(
                f"not copied: {count} path{'s' if count > 1 else ''} in git's index lead outside or into .git"
            )
        self._set((), self._with(tree.exclude, users, "info/exclude"))
        with Folder(root) as held:
            for end in range(len(parts)):
                self._load(held, "/".join(parts[:end]), parts[:end])
                if self._verdict(parts[: end + 1], True):
                    self._patterns.clear()
                    self._set((), users)
                    return None, ()
        return tree, parts

    def _with(self, data: bytes, others: tuple[Patterns, ...], path: str) -> tuple[Patterns, ...]:
        """Return the patterns in ``data``, which is at ``path``, followed by ``others``, which count only if these do
        not match.
        """
        patterns = Patterns.of_bytes(data, self._work)
        if patterns.too_long:
            lines = f"{patterns.too_long} line{'s' if patterns.too_long > 1 else ''}"
            self.problems.append(f"not used: {lines} of more than {MOST_LINE_BYTES} bytes in {path}")
        self._count += len(patterns.patterns)
        if self._count > MOST_PATTERNS:
            raise self._refused(f"Its .gitignore files have more than {MOST_PATTERNS} patterns")
        return (patterns, *others) if patterns.patterns else others

    def _load(self, held: Folder, folder: str, parts: tuple[str, ...]) -> None:
        """Read the .gitignore of a folder. A link or a pipe of that name is not one, as for git."""
        path = f"{folder}/{IGNORE_FILE}" if folder else IGNORE_FILE
        status = held.status(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            if status is not None and (kind := special_kind(status)):
                self.problems.append(f"{path} is not used: it is {kind}")
            return
        data = held.read(path, MOST_PATTERN_BYTES)
        if data is None:
            self.problems.append(
                f"{path} is not used: it is larger than {MOST_PATTERN_BYTES >> 10} KiB or cannot be read"
            )
            return
        self._set(parts, self._with(data, self._patterns.get(parts, ()), path))

    def _search(self, held: Folder) -> dict[str, Found]:
        tree, above = self._tree, "".join(f"{part}/" for part in self._prefix)
        index = Index() if tree is None else tree.index
        tracked = {path.removeprefix(above) for path in index.files if path.startswith(above)}
        submodules = {path.removeprefix(above) for path in index.submodules if path.startswith(above)}
        found: dict[str, Found] = {}
        special: dict[str, str] = {}
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            below: list[tuple[str, ...]] = []
            for path, status in self._entries(held, waiting.pop()):
                if not stat.S_ISDIR(status.st_mode):
                    if path in tracked or not self._is_left_out(path, False):
                        self._take(found, special, path, status)
                elif path in submodules:
                    self.problems.append(f"not copied: {path} is a submodule")
                elif not self._is_left_out(path, True):
                    below.append(tuple(path.split("/")))
            waiting.extend(reversed(below))
        for path in sorted(tracked - found.keys()):  # they are in a folder that is ignored, or are not there
            there = held.status(path) if path.count("/") <= MOST_LEVELS else None
            if there is not None:
                self._take(found, special, path, there)
        self.problems += [f"not copied: {path} is {kind}" for path, kind in sorted(special.items())]
        return {path: found[path] for path in sorted(found)}

    def _entries(self, held: Folder, parts: tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
        """Return what is in a folder, by path, once its .gitignore is in force; nothing for a repository in the work
        tree of another.
        """
        folder = "/".join(parts)
        if len(parts) > MOST_LEVELS:
            raise self._refused(f"It has folders more than {MOST_LEVELS} levels deep ({folder[:60]}…)")
        try:
            entries = held.entries(folder)
        except PermissionError:
            if not parts:
                raise
            self.problems.append(f"not copied: {folder} cannot be read")
            return []
        self._seen += len(entries)
        if self._seen > MOST_ENTRIES:
            raise self._refused(f"It has more than {MOST_ENTRIES} files and folders")
        names = {name for name, _ in entries}
        if self._tree is not None and parts and ".git" in names:
            self.problems.append(f"not copied: {folder} is a repository of its own")
            return []
        if IGNORE_FILE in names:
            self._load(held, folder, (*self._prefix, *parts))
        return [(f"{folder}/{name}" if folder else name, status) for name, status in entries if not is_git_name(name)]

    def _is_left_out(self, path: str, is_folder: bool) -> bool:
        return (self._tree is None and is_leftover(path)) or self._verdict(path.split("/"), is_folder)

    def _take(self, found: dict[str, Found], special: dict[str, str], path: str, status: os.stat_result) -> None:
        if kind := special_kind(status):
            special[path] = kind
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            if len(os.fsencode(path)) > MOST_PATH_BYTES:
                raise self._refused(f"It has paths of more than {MOST_PATH_BYTES} bytes ({path[:60]}…)")
            found[path] = Found(path, status.st_size, stat.S_ISLNK(status.st_mode))
            if len(found) > MOST_FILES:
                raise self._refused(f"It has more than {MOST_FILES} files that git does not ignore")

    def _refused(self, problem: str) -> SandboxError:
        return SandboxError(
            ErrorCode.workspace_invalid,
            f"The repository {self.repo} cannot be copied. {problem}.",
            "List what the agent does not need in .gitignore, or name another folder with --repo.",
        )
