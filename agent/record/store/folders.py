"""The folder of files that belong to one run. Nothing outside of it is reached, whatever somebody has put there as a link."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import AgentErrorCode
from sandbox.errors import SandboxError
from sandbox.names import RULES, is_run_id

LOCK = "lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def checked_run(run: object, log: Path) -> str:
    """Return ``run`` if it can be the id of a run. Raises SandboxError ``log_unusable`` otherwise."""
    if is_run_id(run):
        return run
    raise SandboxError(
        AgentErrorCode.log_unusable,
        f"{run!r:.120} in the event log {log} cannot be the id of a run: an id consists of {RULES['run']}.",
        "Gamebox did not write this. Use the log only if you know where it comes from.",
    )


@contextmanager
def opened_folder(log: Path, run: str, *, make: bool = True) -> Iterator[int]:
    """Hold the folder of a run as a descriptor. It is made, for its owner alone, unless ``make`` is False.

    Raises SandboxError ``log_unusable`` if it, the folder that it lies in, or anything directly in it is a link: Gamebox makes
    none. Raises OSError as opening does.
    """
    parent = log.with_name(f"{log.name}.files")
    checked_run(run, log)
    if make:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    outer = _opened(parent, log)
    try:
        if make:
            _made(run, outer)
        inner = _opened(parent / run, log, outer)
        try:
            _refuse_links(inner, parent / run, log)
            yield inner
        finally:
            os.close(inner)
    finally:
        os.close(outer)


def empty(folder: int) -> None:
    """Remove everything in the folder that is open as ``folder``, but its lock. What cannot be removed stays.

    Every name is looked up in a folder that is held open, and no link is followed. Folders below are moved up first, so that
    depth costs neither memory nor descriptors.
    """
    waiting = [name for name in os.listdir(folder) if name != LOCK]
    while waiting:
        name = waiting.pop()
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            waiting += _flattened(folder, name)
        except OSError:
            continue


def _flattened(folder: int, name: str) -> list[str]:
    """Remove the folder ``name`` in ``folder``; the folders that were in it lie in ``folder`` then, under the names returned."""
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return []
    moved = []
    try:
        os.fchmod(inner, 0o700)
        for each in os.listdir(inner):  # noqa: PTH208 - of a descriptor
            try:
                os.unlink(each, dir_fd=inner)
            except IsADirectoryError:
                moved += _moved_up(inner, each, folder)
            except OSError:
                continue
        os.rmdir(name, dir_fd=folder)
    except OSError:
        pass
    finally:
        os.close(inner)
    return moved


def _moved_up(inner: int, name: str, folder: int) -> list[str]:
    with contextlib.suppress(OSError):
        below = os.open(name, _FOLDER, dir_fd=inner)
        try:
            os.fchmod(below, 0o700)  # a folder that may not be written cannot be moved
        finally:
            os.close(below)
        new = f".{secrets.token_hex(8)}"
        os.rename(name, new, src_dir_fd=inner, dst_dir_fd=folder)
        return [new]
    return []


def _made(run: str, outer: int) -> None:
    try:
        os.mkdir(run, 0o700, dir_fd=outer)
    except FileExistsError:
        pass


def _opened(path: Path, log: Path, outer: int | None = None) -> int:
    try:
        return os.open(path if outer is None else path.name, _FOLDER, dir_fd=outer)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):  # what a link answers
            raise _foreign(path, log) from None
        raise


def _refuse_links(folder: int, path: Path, log: Path) -> None:
    with os.scandir(folder) as entries:
        link = next((entry.name for entry in entries if entry.is_symlink()), None)
    if link is not None:
        raise _foreign(path / link, log)
    try:
        lock = os.stat(LOCK, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(lock.st_mode):
        raise _foreign(path / LOCK, log)


def _foreign(path: Path, log: Path) -> SandboxError:
    return SandboxError(
        AgentErrorCode.log_unusable,
        f"{path} of the event log {log} is a link, or a file or folder of the wrong kind.",
        "Gamebox did not make it. Remove it if you know where it comes from, or name another log with --log.",
    )
