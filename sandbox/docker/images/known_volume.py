"""The name of the runtime volume that an earlier process of this user found, as long as no file that goes into it has changed.

The name is a digest of some 160 files. Reading them takes each new process 8 ms before its first sandbox, asking for their times
and sizes less than one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from sandbox.user_cache import keep, read_kept

from .recipes import BUNDLED_DISTRIBUTIONS, images_folder

_FOLDER = "runtime"
_MOST_KEPT = 16
_PACKAGE = Path(__file__).parents[2]
# Path, times of the last change of content and of anything in ns, size; 0 for what is missing. A folder's times tell of files that
# came or went.
Stamp = tuple[str, int, int, int]


class KnownVolume(NamedTuple):
    """The volume ``name``, right for an engine whose image ``parent`` has the ``content``."""

    name: str
    parent: str
    content: str


class Snapshot(NamedTuple):
    """How an installation was before its files were read."""

    asked: bytes
    stamps: list[Stamp]


def recall() -> KnownVolume | None:
    """Return what `remember` kept; None if nothing, or if a file has changed since."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        known, stamps = json.loads(read_kept(_FOLDER, _asked()))
        if all(_stamp(path) == (path, *rest) for path, *rest in stamps):
            return KnownVolume(*known)
    return None


def remember(known: KnownVolume, before: Snapshot) -> None:
    """Keep ``known`` for `recall`."""
    content = json.dumps([known, before.stamps]).encode()
    with contextlib.suppress(OSError, ValueError):  # then the next process reads the files, too
        keep(_FOLDER, before.asked, content, most=_MOST_KEPT)


def take_snapshot() -> Snapshot:
    """Look at every file that goes into the volume, and at their folders."""
    files = {*_below(_PACKAGE / "guest"), *_below(images_folder() / "runtime"), *_libraries(), *_search_path()}
    return Snapshot(_asked(), _CODE + [_stamp(path) for path in sorted(files)])


def _asked() -> bytes:
    """Return what tells one installation from others: the libraries that go into the volume are found by ``sys.path``."""
    return repr((str(_PACKAGE), _search_path())).encode()


def _search_path() -> list[str]:
    try:
        return [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - "" is the working directory
    except OSError:  # which was removed: nothing is found there
        return list(sys.path)


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return path, 0, 0, 0
    return path, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _below(top: Path) -> Iterator[str]:
    for folder, _, names in os.walk(top):
        if not folder.endswith("__pycache__"):
            yield folder
            yield from (f"{folder}/{name}" for name in names)


def _libraries() -> Iterator[str]:
    for name in BUNDLED_DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield from (str(each.locate()) for each in metadata.files(name) or [] if each.suffix == ".py")


# The code that reads the files and makes the name, as it was loaded: it may be replaced while this process lives.
_CODE = [_stamp(str(path)) for path in sorted(Path(__file__).parent.glob("*.py"))]
