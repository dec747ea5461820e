"""The name of the runtime volume that an earlier process of this user found, as long as no file that goes into it has changed.

The name is a digest of some 160 files. Reading them takes each new process 8 ms before its first sandbox, asking for their times
and sizes less than one. A file that changed and kept both is not noticed, as Python itself does not notice it of a module.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sandbox.user_cache import keep, read_kept

from .recipes import BUNDLED_DISTRIBUTIONS, images_folder

_FOLDER = "runtime"
_MOST_KEPT = 16
_PACKAGE = Path(__file__).parents[2]
# Path, time of the last change in ns, size; 0 and 0 for one that is missing. A folder's time tells of files that came or went.
Stamps = list[tuple[str, int, int]]


@dataclass(frozen=True)
class KnownVolume:
    """The volume ``name``, right for an engine whose image ``parent`` has the ``content``."""

    name: str
    parent: str
    content: str


def recall() -> KnownVolume | None:
    """Return what `remember` kept; None if nothing, or if a file has changed since."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        known, stamps = json.loads(read_kept(_FOLDER, _asked()))
        if all(_stamp(path) == (path, changed, size) for path, changed, size in stamps):
            return KnownVolume(*known)
    return None


def remember(known: KnownVolume, stamps: Stamps) -> None:
    """Keep ``known`` for `recall`; ``stamps`` are from before the files were read."""
    content = json.dumps([[known.name, known.parent, known.content], stamps]).encode()
    with contextlib.suppress(OSError, ValueError):  # then the next process reads the files, too
        keep(_FOLDER, _asked(), content, most=_MOST_KEPT)


def read_stamps() -> Stamps:
    """Return the stamps of every file that goes into the volume, and of their folders."""
    return [_stamp(path) for path in sorted({*_below(_PACKAGE / "guest"), *_below(images_folder() / "runtime"), *_others()})]


def _asked() -> bytes:
    """Return what tells one installation from others: the libraries that go into the volume are found by ``sys.path``."""
    return repr((str(_PACKAGE), sys.path)).encode()


def _stamp(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return path, 0, 0
    return path, found.st_mtime_ns, found.st_size


def _below(top: Path) -> Iterator[str]:
    for folder, _, names in os.walk(top):
        if not folder.endswith("__pycache__"):
            yield folder
            yield from (f"{folder}/{name}" for name in names)


def _others() -> Iterator[str]:
    yield from map(str, Path(__file__).parent.glob("*.py"))
    for name in BUNDLED_DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield from (str(each.locate()) for each in metadata.files(name) or [] if each.suffix == ".py")
