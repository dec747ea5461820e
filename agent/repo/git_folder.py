"""What the .git of a work tree says of its files, read without git: which are tracked, and info/exclude.

No configuration of the repository is obeyed, and no program is started. A .git that is a file, as in a worktree or a submodule of
the user, is followed only where the folder that it names says itself that it belongs to this work tree.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from sandbox.frozen import dataclass

from .beneath import Folder, read_file
from .index import MOST_INDEX_BYTES, Index, IndexUnreadableError, parse_index

# A folder whose links may be followed, and what is reached from there without following any.
Place = tuple[Path, str]
MOST_POINTER_BYTES = 4096
MOST_PATTERN_BYTES = 256 << 10
MOST_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkTree:
    """A git work tree: its root, and what is tracked in it. ``exclude`` is the text of info/exclude; ``problem`` says why the
    index is not used, ``exclude_problem`` why info/exclude is not.
    """

    root: Path
    index: Index = field(default_factory=Index)
    exclude: bytes = b""
    problem: str = ""
    exclude_problem: str = ""


def find_root(folder: Path, *, owned: bool = False) -> Path | None:
    """Return the root of the git work tree that ``folder`` is in, by its real path; None if it is in none.

    A folder above counts if it and its .git belong to the same user, or to this one, and it is on the same file system. With
    ``owned`` the .git must belong to this user wherever it is, as git has it: for a repository that nobody named.
    """
    here = Path(os.path.realpath(folder))
    first = here.stat()
    while True:
        status = here.stat()
        if status.st_dev != first.st_dev or status.st_uid not in (first.st_uid, os.geteuid()):
            return None
        if _has_git(here):
            users = _this_user(status) | (set() if owned else {first.st_uid})
            named = not owned and os.path.samestat(status, first)
            return here if named or _owners_of_git(here) <= users else None
        if here.parent == here:
            return None
        here = here.parent


def _this_user(work_tree: os.stat_result) -> set[int]:
    """Return who may own a .git that is used unasked: this user; for root also the owner of the work tree, and the
    user who called sudo.
    """
    if os.geteuid() != 0:
        return {os.geteuid()}
    caller = os.environ.get("SUDO_UID", "")
    return {0, work_tree.st_uid} | ({int(caller)} if caller.isdecimal() else set())


def _owners_of_git(root: Path) -> set[int]:
    """Return the owners of the .git of ``root`` and of the folders that it names; -1 for what cannot be opened."""
    try:
        owners = {(root / ".git").lstat().st_uid}
        for place in folders_of_git(root) or ():
            with Folder(*place) as held:
                owners.add(held.owner)
    except OSError:
        return {-1}
    return owners


def repository_around(folder: Path) -> Path | None:
    """Return the root of the git work tree that ``folder`` is in, unless it is the user's home, a folder above that, or ``/``.

    A .git that another user owns is not used.
    """
    root = find_root(folder, owned=True)
    home = Path(os.path.realpath(os.environ.get("HOME") or Path.home()))
    return None if root is None or home.is_relative_to(root) else root


def _has_git(folder: Path) -> bool:
    try:
        with Folder(folder) as held:
            there = held.status(".git")
            if there is None:
                return False
            if stat.S_ISDIR(there.st_mode):
                return held.status(".git/HEAD") is not None
            return stat.S_ISREG(there.st_mode) and _pointer(held) is not None
    except OSError:
        return False


def read_work_tree(root: Path) -> WorkTree:
    """Return what the .git of ``root`` says. A .git that cannot be used leaves the index empty, with the problem."""
    with Folder(root) as held:
        found = held.status(".git")
        if found is not None and stat.S_ISDIR(found.st_mode):
            index, problem = _index(held, ".git/index")
            exclude, unread = _exclude(held, ".git/info/exclude")
            return WorkTree(root, index, exclude, problem, unread)
        pointer = _pointer(held)
    own = None if pointer is None else _checked(root, pointer)
    if own is None:
        return WorkTree(root, problem="its .git does not lead to a git directory that belongs to it")
    git_folder, common = own
    try:
        with Folder(*git_folder) as held:
            index, problem = _index(held, "index")
        with Folder(*common) as held:
            exclude, unread = _exclude(held, "info/exclude")
            return WorkTree(root, index, exclude, problem, unread)
    except OSError as error:
        return WorkTree(root, problem=f"its git directory cannot be opened: {error.strerror}")


def folders_of_git(root: Path) -> tuple[Place, Place] | None:
    """Return the folder of git of the work tree ``root``, and the one it shares with other worktrees, which has objects and refs.

    Each is to be opened by ``Folder(*place)``. None if its .git cannot be used. Raises OSError.
    """
    with Folder(root) as held:
        found = held.status(".git")
        if found is not None and stat.S_ISDIR(found.st_mode):
            return (root, ".git"), (root, ".git")
        pointer = _pointer(held)
    return None if pointer is None else _checked(root, pointer)


def _index(held: Folder, path: str) -> tuple[Index, str]:
    if held.status(path) is None:  # nothing was ever added
        return Index(), ""
    data = held.read(path, MOST_INDEX_BYTES)
    if data is None:
        return Index(), f"its index is not a readable file of at most {MOST_INDEX_BYTES >> 20} MiB"
    try:
        return parse_index(data), ""
    except IndexUnreadableError as error:
        return Index(), f"its index cannot be used: {error}"


def _exclude(held: Folder, path: str) -> tuple[bytes, str]:
    data = held.read(path, MOST_PATTERN_BYTES)
    if data is None and held.status(path) is not None:
        return (
            b"",
            f".git/info/exclude is not used: it is not a readable file of at most {MOST_PATTERN_BYTES >> 10} KiB",
        )
    return data or b"", ""


def _pointer(held: Folder) -> str | None:
    """Return what a .git file names."""
    text = os.fsdecode(held.read(".git", MOST_POINTER_BYTES) or b"")
    return text.removeprefix("gitdir:").strip() if text.startswith("gitdir:") and "\0" not in text else None


def _checked(root: Path, pointer: str) -> tuple[Place, Place] | None:
    """Return the git folder that a .git file names, and the one it shares with other worktrees; None unless it belongs
    to ``root``.

    That of a submodule is in .git/modules of another work tree, and its core.worktree names ``root`` in turn. That of
    a worktree names the .git file. Both are outside of ``root``: what is inside was written by the author of the
    pointer, and proves nothing.
    """
    named = Path(os.path.normpath(root / pointer))
    parts = named.parts
    if ".git" in parts and "modules" in parts[parts.index(".git") :]:
        at = parts.index(".git")
        main, below = _outside(root, Path(*parts[:at])), "/".join(parts[at:])
        if main is not None and _submodule_of(main, below) == root:
            return (main, below), (main, below)
    if len(parts) > 2 and parts[-2] == "worktrees":
        common = _outside(root, named.parent.parent)
        below = "/".join(parts[-2:])
        if common is not None and _work_tree_of(common, below) == root:
            return (common, below), (common, "")
    return None


def _outside(root: Path, folder: Path) -> Path | None:
    """Return the real path of ``folder``; None if it is reached through ``root`` or is in it."""
    real = Path(os.path.realpath(folder))
    return None if folder.is_relative_to(root) or real.is_relative_to(root) else real


def _submodule_of(base: Path, below: str) -> Path | None:
    """Return the work tree that a submodule's git folder, at ``below`` in ``base``, says it belongs to."""
    try:
        with Folder(base, below) as held:
            configs = [held.read(name, MOST_CONFIG_BYTES) or b"" for name in ("config", "config.worktree")]
        values = [value for config in configs for value in _values_of_core(config, "worktree")]
        return Path(os.path.realpath(base / below / values[-1])) if values else None
    except (OSError, ValueError):
        return None


def _work_tree_of(base: Path, below: str) -> Path | None:
    """Return the work tree that a worktree's git folder, at ``below`` in ``base``, says it belongs to."""
    try:
        with Folder(base, below) as held:
            back = os.fsdecode(held.read("gitdir", MOST_POINTER_BYTES) or b"").strip()
        return Path(os.path.realpath(base / below / back)).parent if Path(back).name == ".git" else None
    except (OSError, ValueError):
        return None


def user_excludes() -> bytes:
    """Return what the user has git ignore everywhere: core.excludesFile of the user's configuration, or the default file.

    These files are the user's own, and so may be links; pipes and the like are not read.
    """
    home = Path(os.environ.get("HOME") or Path.home())
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
    named = os.environ.get("GIT_CONFIG_GLOBAL")
    configs = [Path(named)] if named is not None else [settings / "config", home / ".gitconfig"]
    chosen: Path | None = settings / "ignore"
    for config in [Path("/etc/gitconfig"), *configs]:
        for value in _values_of_core(_read(config, MOST_CONFIG_BYTES), "excludesfile"):
            chosen = home / value[2:] if value.startswith("~/") else Path(value) if value.startswith("/") else None
    return b"" if chosen is None else _read(chosen, MOST_PATTERN_BYTES)


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        return read_file(path, most_bytes)
    except (OSError, ValueError):
        return b""


def _values_of_core(config: bytes, wanted: str) -> Iterator[str]:
    """Return the values of ``wanted``, in lower case, in the section core of a configuration file, in order."""
    section = ""
    for line in os.fsdecode(config).splitlines():
        text = line.strip()
        if text.startswith("["):
            section, _, text = text[1:].partition("]")
            text = text.strip()
        name, equals, value = text.partition("=")
        if section.strip().casefold() == "core" and name.strip().casefold() == wanted and equals:
            yield value.strip().strip('"').replace("\\\\", "\\")
