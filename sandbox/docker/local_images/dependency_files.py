"""The files of a repository that say what it depends on, read from a folder that a stranger may have written."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import size, value_text

PATTERNS = (
    *("requirements*.txt", "requirements*.in", "constraints*.txt", "pyproject.toml", "setup.py", "setup.cfg", "uv.lock"),
    *("poetry.lock", "pdm.lock", "pylock*.toml", "Pipfile", "Pipfile.lock", "environment*.yml", ".python-version"),
    *("package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "pnpm-workspace.yaml"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", "bun.lock", "go.mod", "go.sum", "go.work", "go.work.sum", "Cargo.toml", "Cargo.lock"),
    *("Gemfile", "Gemfile.lock", "*.gemspec", "pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle"),
    *("settings.gradle.kts", "gradle.properties", "gradle.lockfile", "composer.json", "composer.lock", "apt-packages.txt"),
)
"""Names of these files, in any folder of the repository."""
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", ".tox", "target", "vendor", "__pycache__"})
MOST_FILES, MOST_ENTRIES, MOST_LEVELS = 500, 200_000, 24
MOST_FILE_BYTES, MOST_BYTES = 16 << 20, 64 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# 2000-01-01: zip files begin with 1980, and a date of its own for each file would make another archive of the same content.
_DATE = 946_684_800


def read_dependency_files(folder: Path) -> dict[str, bytes]:
    """Return the files of ``PATTERNS`` below ``folder`` by relative path, sorted. No link is followed, and no call waits.

    Folders of installed packages are left out, and what is deeper than 24 levels. Raises SandboxError: ``workspace_invalid`` for
    a folder that cannot be read, or with too many or too large files; ``path_not_found`` if there is none.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        for path, data in _files(folder):
            total += len(data)
            if len(found) >= MOST_FILES or total > MOST_BYTES:
                raise _too_much(f"more than {MOST_FILES} files with dependencies, or more than {size(MOST_BYTES)} of them")
            found[path] = data
    except OSError as error:
        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The folder {value_text(str(folder), 300)} cannot be read: {error.strerror}.",
            "Name a folder that can be read.",
        ) from error
    if not found:
        raise SandboxError(
            ErrorCode.path_not_found,
            "--setup found no file that says what the repository depends on.",
            "Add one, such as requirements.txt, pyproject.toml, package.json, go.mod or Cargo.toml; what is installed is kept for "
            "its content.",
        )
    return dict(sorted(found.items()))


def pack_files(files: dict[str, bytes]) -> bytes:
    """Return a tar of the files: the same bytes for the same names and contents."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = len(data), 0o644, _DATE
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    seen = 0
    waiting = [""]
    top = os.open(folder, _FOLDER & ~os.O_NOFOLLOW)  # named by the user
    try:
        while waiting:
            path = waiting.pop()
            with contextlib.suppress(OSError):  # a link or nothing by now
                held = _enter(top, path)
                try:
                    below = []
                    with os.scandir(held) as entries:
                        names = sorted(_bounded(entries, MOST_ENTRIES - seen))
                    seen += len(names)
                    for name in names:
                        status = os.stat(name, dir_fd=held, follow_symlinks=False)
                        whole = f"{path}/{name}" if path else name
                        if stat.S_ISDIR(status.st_mode):
                            if name not in _LEFT_OUT and whole.count("/") < MOST_LEVELS:
                                below.append(whole)
                        elif stat.S_ISREG(status.st_mode) and _is_wanted(name):
                            yield whole, _read(held, name, whole)
                    waiting += reversed(below)
                finally:
                    os.close(held)
    finally:
        os.close(top)


def _bounded(entries: Iterator[os.DirEntry[str]], left: int) -> Iterator[str]:
    for entry in entries:
        left -= 1
        if left < 0:
            raise _too_much(f"more than {MOST_ENTRIES} files and folders")
        yield entry.name


def _enter(top: int, path: str) -> int:
    """Return a descriptor of the folder ``path`` beneath ``top``, reached without links. Raises OSError."""
    held = os.dup(top)
    for name in path.split("/") if path else ():
        try:
            below = os.open(name, _FOLDER, dir_fd=held)
        finally:
            os.close(held)
        held = below
    return held


def _is_wanted(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)


def _read(folder: int, name: str, path: str) -> bytes:
    fd = os.open(name, _FILE, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("it was replaced")
        data = file.read(MOST_FILE_BYTES + 1)
    if len(data) > MOST_FILE_BYTES:
        raise _too_much(f"a file {value_text(path)} of more than {size(MOST_FILE_BYTES)}")
    return data


def _too_much(what: str) -> SandboxError:
    return SandboxError(
        ErrorCode.workspace_invalid,
        f"The folder for --setup has {what}.",
        "Name a smaller folder, or leave --setup out.",
    )
