"""Pack the files of this host that a build copies: the same bytes for the same names, modes and contents."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from docker.utils.build import PatternMatcher  # takes texts, whatever its stubs say

from sandbox.docker.builds.steps import invalid
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text
from sandbox.transfers import folders
from sandbox.transfers.archives import BLOCK, entry_chunks

IGNORE_FILE = ".dockerignore"
# What the program that unpacks it takes.
MOST_FILES = 200_000
_MOST_IGNORE_BYTES = 64 << 10
# 2000-01-01. A date of its own for each file would make another layer of the same content; zip files begin with 1980.
_DATE = 946_684_800


def locate(path: Path) -> tuple[Path, str]:
    """Return the folder that ``path`` is packed from, and the name to copy of it. Raises SandboxError ``path_not_found``."""
    whole = path.expanduser().absolute()
    if not os.path.lexists(whole):
        raise SandboxError(
            ErrorCode.path_not_found, f"{value_text(str(path), 300)} does not exist on this host.", "Name a file or a folder of it."
        )
    return (whole, ".") if whole.is_dir() else (whole.parent, whole.name)


def pack(root: Path, source: str) -> Iterator[bytes]:
    """Yield a tar of what ``source``, a name or pattern below ``root``, stands for, with all that is below it.

    Links stay links. What ``.dockerignore`` in ``root`` names is left out. Raises SandboxError: ``invalid_arguments`` if nothing is
    left or there is too much, ``io_error`` for what cannot be read.
    """
    try:
        yield from _pack(root, source)
    except OSError as error:
        raise SandboxError(
            ErrorCode.io_error,
            f"COPY {value_text(source)} cannot read {value_text(str(error.filename or root), 300)}: {error.strerror}.",
            f"Make sure that you can read it, or leave it out with {IGNORE_FILE}.",
        ) from error


def _pack(root: Path, source: str) -> Iterator[bytes]:
    wanted = [part for part in source.split("/") if part not in ("", ".")]
    if ".." in wanted:
        raise invalid(f"COPY {value_text(source)} leads out of the folder {value_text(str(root), 200)}.", "Copy what is below it.")
    ignored = read_ignored(root)
    count = 0
    for entry, name in _entries(root, ignored, wanted):
        count += 1
        if count > MOST_FILES:
            raise invalid(f"COPY {value_text(source)} has more than {MOST_FILES} files.", f"Leave some out with {IGNORE_FILE}.")
        yield from entry_chunks(entry.path, name, date=_DATE)
    if not count and wanted:
        known = f", or {IGNORE_FILE} leaves it out" if ignored is not None else ""
        raise invalid(
            f"COPY {value_text(source)}: there is no such file in {value_text(str(root), 200)}{known}.",
            "Name a file that exists, relative to that folder.",
        )
    yield bytes(2 * BLOCK)


def read_ignored(root: Path) -> PatternMatcher | None:
    """Return what ``.dockerignore`` leaves out, or None without one. Raises SandboxError ``invalid_arguments``."""
    try:
        with (root / IGNORE_FILE).open("rb") as file:
            content = file.read(_MOST_IGNORE_BYTES + 1)
        if len(content) > _MOST_IGNORE_BYTES:
            raise invalid(f"{IGNORE_FILE} has more than {_MOST_IGNORE_BYTES} bytes.", "Shorten it.")
        lines = [line.strip() for line in content.decode().splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise invalid(f"{IGNORE_FILE} is not text in UTF-8.", "Write one pattern a line.") from None
    return PatternMatcher([line for line in lines if line and not line.startswith("#")])


def _entries(
    root: Path, ignored: PatternMatcher | None, wanted: list[str]
) -> Iterator[tuple[os.DirEntry[str], str]]:
    start = f"{str(root).rstrip('/')}/"

    def enters(entry: os.DirEntry[str]) -> bool:
        name = entry.path[len(start) :]
        return _leads_to(name, wanted) and not _is_left_out(name, ignored)

    for entry in folders.walk(start, enters):
        name = entry.path[len(start) :]
        if _is_wanted(name, wanted) and (ignored is None or not ignored.matches(cast("Any", name))):
            yield entry, name


def _is_wanted(name: str, wanted: list[str]) -> bool:
    """Return whether a name is what the pattern stands for, or below it."""
    parts = name.split("/")
    return len(parts) >= len(wanted) and _fit(parts, wanted)


def _leads_to(name: str, wanted: list[str]) -> bool:
    """Return whether a wanted name may be below this folder."""
    return _fit(name.split("/"), wanted)


def _fit(parts: Iterable[str], wanted: list[str]) -> bool:
    pairs = zip(parts, wanted, strict=False)
    return all(part == pattern or fnmatch.fnmatchcase(part, pattern) for part, pattern in pairs)


def _is_left_out(folder: str, ignored: PatternMatcher | None) -> bool:
    """Return whether a folder is left out with all that is below it."""
    if ignored is None or not ignored.matches(cast("Any", folder)):
        return False
    excepted = (pattern.cleaned_pattern for pattern in ignored.patterns if pattern.exclusion)
    return not any(each.startswith(f"{folder}/") or "*" in each for each in excepted)
