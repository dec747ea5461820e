"""What a sandbox's image has in the workspace beside the repository: a set-up's node_modules or .venv, which no diff shows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace

from sandbox.docker.images.runtime import ARGV
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered

from .beneath import UnsafePathError, is_git_name, split
from .snapshot import Snapshot

MOST = 1000
_SECONDS = 60.0
_PACKAGES = frozenset({"node_modules", ".venv"})
# Names what is not among the paths on standard input, without looking into what it names.
_PROGRAM = """
import json, os, sys
known = set(json.load(sys.stdin))
folders = {""}
for path in known:
    parts = path.split("/")
    folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
found, waiting = [], [""]
while waiting and len(found) <= MOST:
    here = waiting.pop()
    for entry in os.scandir(here or "."):
        path = f"{here}/{entry.name}" if here else entry.name
        if path in folders and entry.is_dir(follow_symlinks=False):
            waiting.append(path)
        elif path not in known:
            found.append(path)
print(json.dumps(found[:MOST + 1]))
"""


def find_laid(environment: Environment, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with what a started sandbox has beside its files, if its image put files into the workspace.

    A folder stands for all that is or will be in it, and has no file of the repository. Raises SandboxError.
    """
    if not getattr(getattr(environment, "backend", None), "starts_filled", False):
        return snapshot
    answer = answered(
        environment.run,
        argv=(*ARGV, "-c", _PROGRAM.replace("MOST", str(MOST))),
        stdin=json.dumps(sorted(snapshot.files)),
        session=None,
        timeout_seconds=_SECONDS,
    )
    if not answer.ok or answer.result.exit_code != 0:
        return snapshot
    return replace(snapshot, laid=checked(_read(answer.result.stdout), snapshot.files))


def names_to_leave(snapshot: Snapshot) -> tuple[str, ...]:
    """Return names of folders with packages that need not be copied back, at any depth: no file of the repository is in one."""
    names = {path.rpartition("/")[2] for path in snapshot.laid} & _PACKAGES
    return tuple(sorted(name for name in names if not any(name in path.split("/") for path in snapshot.files)))


def checked(paths: Iterable[object], files: Collection[str]) -> tuple[str, ...]:
    """Return those of ``paths``, which a sandbox has sent, that are paths outside .git with none of ``files`` at or below them."""
    taken = set(files)
    for file in files:
        parts = file.split("/")
        taken.update("/".join(parts[:end]) for end in range(1, len(parts)))
    found: list[str] = []
    for path in list(paths)[:MOST]:
        if not isinstance(path, str) or path in taken or not path.isprintable():
            continue
        try:
            if not any(is_git_name(part) for part in split(path)):
                found.append(path)
        except UnsafePathError:
            continue
    return tuple(sorted(set(found)))


def _read(text: str) -> list[object]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []
