"""Locks between the processes of one user on this host. The kernel frees them when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.user_cache import user_cache


def locks_folder() -> Path:
    """Return the folder of the lock files, in this user's cache. Raises SandboxError (setup_failed)."""
    folder = user_cache("locks")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The folder {folder} cannot be made: {error.strerror}.",
            "Set XDG_CACHE_HOME to a folder you may write.",
        ) from error
    return folder


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the lock of that name in the block; waits for it. Threads of one process exclude each other, too."""
    descriptor = _open(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_exclusive(name: str) -> Iterator[bool]:
    """Yield whether this thread has the lock of that name, without waiting. Its file goes with the block, so any name will do."""
    descriptor = _open(name)
    path = _path(name)
    held = False
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = _is_at(path, descriptor)  # else its last holder has just removed it
        yield held
    finally:
        if held:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def hold_shared(name: str) -> int:
    """Mark what has that name as in use until the returned descriptor is closed or this process ends."""
    descriptor = _open(name)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextmanager
def if_unused(name: str) -> Iterator[bool]:
    """Yield whether nobody holds the lock of that name. If so, nobody can take it until the block ends."""
    descriptor = _open(name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _path(name: str) -> Path:
    return locks_folder() / f"{name.replace('/', '-')}.lock"


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _open(name: str) -> int:
    path = _path(name)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The lock file {path} cannot be opened: {error.strerror}.",
            "Make it yours, or set XDG_CACHE_HOME to a folder you may write.",
        ) from error
