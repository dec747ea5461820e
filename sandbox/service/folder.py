"""The folder of a service's data: for its owner alone, and for one service at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError

# What tells a folder of a service.
OURS = frozenset({"service.db", "service.toml", "lock"})


def own_folder(folder: Path) -> int:
    """Make the folder of the data if it is missing and lock it. Returns the descriptor that holds the lock.

    Raises SandboxError for a folder that cannot be used, that others may read, or that another service uses.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise OSError(errno.ENOTDIR, "it is not a folder")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            _check_is_ours(folder)
            folder.chmod(0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The folder {folder} cannot be used: {error.strerror}.",
            "Give another one with --data.",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise SandboxError(
            ErrorCode.setup_failed,
            f"Another service uses the folder {folder}.",
            "Stop that one, or give another folder with --data.",
        ) from error
    return lock


def _check_is_ours(folder: Path) -> None:
    """Raise SandboxError for a folder with files of others, such as /tmp, which nobody else could use after the start."""
    names = {each.name for each in folder.iterdir()}
    if names and not names & OURS:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The folder {folder} has other files, and others may read it: it would be closed to them.",
            f"Give a folder of its own with --data, such as {folder / 'gamebox'}.",
        )
