"""The history of a repository on its way into a sandbox: objects and refs, and neither configuration nor hooks.

All of it is hostile data, which only the git in the sandbox reads. Here it is copied by name and kind: regular files beneath a held
descriptor, bounded, and nothing that leads elsewhere (alternates, links, other worktrees).
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError

from .beneath import Folder, leads_into_git
from .git_folder import find_root, folders_of_git

_OBJECT = re.compile(
    r"objects/(?:[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?|pack/pack-[0-9a-f]{40}(?:[0-9a-f]{24})?\.(?:pack|idx|rev))"
)
_REF = re.compile(r"refs/[^\0\\:?*\[~^ ]+")
_ID = re.compile(rb"(?:ref: refs/[\x21-\x7e]+|[0-9a-f]{40}|[0-9a-f]{64})\n?")
_SHALLOW = re.compile(rb"(?:(?:[0-9a-f]{40}|[0-9a-f]{64})\n)*")
MOST_REF_BYTES = 1024
MOST_LIST_BYTES = 64 << 20
MOST_FILES = 100_000
_LEVELS = 20
_CHUNK = 1 << 20


class History:
    """Objects and refs of the work tree whose root is ``repo``, found and not yet copied.

    Raises SandboxError ``workspace_invalid`` if ``repo`` is not such a root, or has more than MOST_FILES loose objects and refs.
    """

    def __init__(self, repo: Path) -> None:
        root = find_root(repo)
        found = None if root is None or root != repo.resolve() else folders_of_git(root)
        if found is None:
            raise SandboxError(
                ErrorCode.workspace_invalid,
                f"The history of {repo} cannot be copied: it is not the root of a git work tree.",
                "Name the root of the work tree with --repo, or leave out --history.",
            )
        self._own, self._common = found
        with Folder(*self._common) as held:
            self._files = dict(_found(held))
        if len(self._files) > MOST_FILES:
            raise SandboxError(
                ErrorCode.workspace_invalid,
                f"The history of {repo} has more than {MOST_FILES} files.",
                "Pack it with git gc, or leave out --history.",
            )

    @property
    def size_bytes(self) -> int:
        """The size of its objects and refs."""
        return sum(self._files.values())

    def copy(self, target: Folder) -> None:
        """Copy it into the .git of ``target``. Raises OSError."""
        with Folder(*self._own) as own:
            _copy_text(own, "HEAD", target, MOST_REF_BYTES, _ID)
        with Folder(*self._common) as common:
            _copy_text(common, "shallow", target, MOST_LIST_BYTES, _SHALLOW)
            _copy_text(common, "packed-refs", target, MOST_LIST_BYTES, None)
            for path, size in self._files.items():
                if path.startswith("refs/"):
                    _copy_text(common, path, target, MOST_REF_BYTES, _ID)
                else:
                    _copy_object(common, path, target, size)


def _found(held: Folder) -> Iterator[tuple[str, int]]:
    waiting, count = ["objects", "refs"], 0
    while waiting:
        folder = waiting.pop()
        status = held.status(folder)
        if status is None or not stat.S_ISDIR(status.st_mode):
            continue
        for name, each in held.entries(folder):
            path = f"{folder}/{name}"
            if stat.S_ISDIR(each.st_mode):
                if path.count("/") < _LEVELS and path not in ("objects/info", "refs/bisect", "refs/worktree"):
                    waiting.append(path)
            elif (
                stat.S_ISREG(each.st_mode)
                and (_OBJECT.fullmatch(path) or _REF.fullmatch(path))
                and not leads_into_git(path)
            ):
                count += 1
                yield path, each.st_size
                if count > MOST_FILES:
                    return


def _copy_text(source: Folder, path: str, target: Folder, most_bytes: int, form: re.Pattern[bytes] | None) -> None:
    data = source.read(path, most_bytes)
    if data is not None and (form is None or form.fullmatch(data)):
        with target.create(f".git/{path}") as file:
            file.write(data)


def _copy_object(source: Folder, path: str, target: Folder, size: int) -> None:
    with source.open(path) as read, target.create(f".git/{path}") as written:
        while size > 0 and (chunk := read.read(min(size, _CHUNK))):
            written.write(chunk)
            size -= len(chunk)
