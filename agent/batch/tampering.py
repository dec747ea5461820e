"""Traps that an agent running as root may have left for a verifier. The engine lists what differs from the image; it
is restored if that costs an honest agent nothing, and otherwise named.
"""

from __future__ import annotations

import posixpath
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from sandbox.environment.base import Environment
from sandbox.frozen import dataclass

Fresh = Callable[[], AbstractContextManager[Environment]]
PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Read by every program, or by every Python, whatever is run: none of these is the work that a task asks for.
_HOOKS = frozenset({"/etc/ld.so.preload"})
# A module may be source, bytecode, a library or a folder; what lies where Python looks for its library as an archive comes first.
_HOOK_OF_PYTHON = re.compile(
    r"/(?:(?:site|dist)-packages|python[0-9.]*)/(?:__pycache__/)?(?:site|user)customize(?:\.[^/]*|/__init__\.[^/]*)?$"
    r"|/python\d+\.zip(?:/|$)"
)
# What pytest takes from the folders above /tests.
_OF_PYTEST = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    }
)
_LIBRARIES = ("/lib/", "/lib32/", "/lib64/", "/libx32/")
_SYSTEM = ("/usr/", *_LIBRARIES, "/opt/", "/bin/", "/sbin/", "/etc/ld.so", "/etc/alternatives/")
# In many images these are links into /usr. A folder in the place of one is another set of programs or libraries for everything.
ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
MOST_TOUCHED = 50
MOST_PROGRAMS = 10_000


class Differing(Protocol):
    """A path that differs from the image: modified, added or deleted."""

    @property
    def path(self) -> str:
        """It is absolute."""

    @property
    def kind(self) -> str:
        """Folders in which something differs are modified, too."""


@dataclass(frozen=True, slots=True)
class Found:
    """What to do about paths that differ: remove ``removed``, and restore ``restored`` as in the image.

    ``programs`` were added where programs are looked for. ``touched`` are files of the image that changed, and new
    libraries beside those of the system. ``roots`` are those of ROOTS that differ, which means nothing if they are
    folders in the image.
    """

    removed: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()

    def without(self, links: Iterable[str]) -> Found:
        """The same, but for ``links`` and all beneath them."""
        ends = tuple(f"{link}/" for link in links)
        lists = (self.removed, self.restored, self.programs, self.touched, self.roots)
        return Found(*(tuple(path for path in paths if not f"{path}/".startswith(ends)) for paths in lists))


def classify(differing: Iterable[Differing]) -> Found:
    """Select what matters to a verifier among paths that differ."""
    every = list(differing)
    folders = {posixpath.dirname(each.path) for each in every}
    removed: list[str] = []
    restored: list[str] = []
    programs: list[str] = []
    touched: list[str] = []
    for each in every:
        folder = posixpath.dirname(each.path)
        if each.path in folders:
            continue  # something in it differs
        if _is_hook(each.path):
            (removed if each.kind == "added" else restored).append(each.path)
        elif folder in PATH:
            (programs if each.kind == "added" else restored).append(each.path)
        elif _is_systems(each):
            touched.append(each.path)
    roots = [each.path for each in every if each.path in ROOTS]
    return Found(*(tuple(sorted(paths)) for paths in (removed, restored, programs, touched, roots)))


def remove_traps(sandbox: Environment, fresh: Fresh) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Prepare ``sandbox`` for a verifier, with the help of an unused one like it (``fresh``). Nothing may run in it
    any more.

    Returns what was restored, and the changed files that the verdict may still depend on. Raises SandboxError if it
    cannot be done.
    """
    look = getattr(sandbox, "list_root_changes", None)
    found = Found() if look is None else classify(look())
    links: dict[str, str] = {}
    shadowing: tuple[str, ...] = ()
    if found.restored or found.programs or found.roots:
        with fresh() as untouched:
            links = {path: target for path, target in _links(untouched).items() if path in found.roots}
            found = found.without(links)
            _relink(sandbox, links)
            _restore(sandbox, untouched, found.restored)
            known = _programs(untouched)
            shadowing = tuple(path for path in found.programs if posixpath.basename(path) in known)
    for path in found.removed:
        sandbox.delete(path, recursive=True).unwrap()
    return (*links, *found.removed, *found.restored), _bounded((*shadowing, *found.touched))


def _is_hook(path: str) -> bool:
    folder, name = posixpath.split(path)
    return path in _HOOKS or _HOOK_OF_PYTHON.search(path) is not None or (folder == "/" and name in _OF_PYTEST)


def _is_systems(each: Differing) -> bool:
    """Return whether a path belongs to the system, by itself or by its folder. For added files, only libraries of the
    system count.
    """
    if each.kind == "added":
        return f"{each.path}/".startswith(_LIBRARIES)
    return each.path == "/etc" or f"{each.path}/".startswith(_SYSTEM)


def _links(untouched: Environment) -> dict[str, str]:
    """Return those of ROOTS that are links in the image, with their targets."""
    entries = untouched.list("/", depth=1, hidden=True, max_entries=MOST_PROGRAMS).unwrap().entries
    found = {f"/{entry.path.strip('/')}": entry.target for entry in entries if entry.type == "symlink"}
    return {path: target for path, target in found.items() if path in ROOTS and target is not None}


def _relink(sandbox: Environment, links: Mapping[str, str]) -> None:
    """Create these links in ``sandbox`` in place of what is there."""
    with tempfile.TemporaryDirectory(prefix="gamebox-restore-") as folder:
        for path, target in links.items():
            Path(folder, path.lstrip("/")).symlink_to(target)
            sandbox.delete(path, recursive=True)  # where it is not there any more that is no fault
        if links:
            sandbox.upload(folder, "/").unwrap()


def _restore(sandbox: Environment, untouched: Environment, paths: Sequence[str]) -> None:
    """Make ``paths`` in ``sandbox`` what they are in ``untouched``; a link becomes the file that it leads to."""
    if not paths:
        return
    with tempfile.TemporaryDirectory(prefix="gamebox-restore-") as folder:
        for path in paths:
            here = Path(folder, path.lstrip("/"))
            here.parent.mkdir(parents=True, exist_ok=True)
            answer = untouched.download(path, here)
            if answer.ok and here.is_file():
                here.chmod(0o755 if posixpath.dirname(path) in PATH else 0o644)
            sandbox.delete(path, recursive=True)  # where it is not there any more that is no fault
        sandbox.upload(folder, "/").unwrap()


def _programs(untouched: Environment) -> frozenset[str]:
    """Return the names of the image's programs."""
    found: set[str] = set()
    for folder in PATH:
        answer = untouched.list(folder, depth=1, hidden=True, max_entries=MOST_PROGRAMS)
        found |= {posixpath.basename(entry.path) for entry in answer.result.entries} if answer.ok else set()
    return frozenset(found)


def _bounded(paths: Sequence[str]) -> tuple[str, ...]:
    more = len(paths) - MOST_TOUCHED
    return tuple(paths) if more <= 0 else (*paths[:MOST_TOUCHED], f"and {more} more")
