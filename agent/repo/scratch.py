"""The folders that jobs work in. Each is removed with its job, and those of killed jobs when the next one starts."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.transfers import folders

# Process ids mean something in their own namespace only, and are used again: the start time tells one owner from the next.
_NAME = re.compile(r"gamebox-job-(\d+)-(\d+)-(\d+)-\w+")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a folder of this process alone, and remove it after the block. Raises OSError."""
    sweep(Path(tempfile.gettempdir()))
    owner = f"{_namespace()}-{os.getpid()}-{_started(os.getpid()) or 0}"
    with temporary_folder(f"gamebox-job-{owner}-") as folder:
        yield folder


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a folder, and remove it after the block, however deep the tree from a sandbox in it is. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        folders.remove(folder)


def sweep(base: Path) -> None:
    """Remove the folders in ``base`` that killed processes of this user, in this process namespace, left behind."""
    for folder in base.glob("gamebox-job-*"):
        match = _NAME.fullmatch(folder.name)
        if match is None or match[1] != _namespace() or match[3] == _started(int(match[2])):
            continue
        try:
            ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
        except FileNotFoundError:
            continue
        if ours:
            folders.remove(folder)


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _started(pid: int) -> str | None:
    """Return when a process started, in ticks since the boot; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return None
