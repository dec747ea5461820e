"""Who owns a kept sandbox: one orchestrator at a time holds the lock of its file; the kernel frees it when that dies.

Those who only look take a shared lock for a moment, so that one who claims the sandbox meanwhile can tell them from an owner.

The files are below XDG_STATE_HOME (or ~/.local/state), so they tell of orchestrators of this host, and of this user. Of all others
only the guest knows whether they are there (see ``guest/loop/host_lease.py``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandbox.docker.container.enforcement import boot_id
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

# Files of sandboxes that ended without being removed by us.
FORGOTTEN_SECONDS = 7 * 86400.0
# How long one who claims a sandbox waits until others have looked at its file.
_LOOK_SECONDS = 0.001
# A record is padded to this, so that each is written with one call: those who look may note the same thing at the same time.
_RECORD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Owner:
    """``since`` and ``detached`` are seconds since the epoch, for people; ``ownerless_at`` is on the clock of this boot."""

    pid: int
    host: str
    boot: str
    since: float
    alive: bool = True
    detached: float | None = None
    ownerless_at: float | None = None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} since {since}"


class Ownership:
    """Being the owner of the sandbox ``ident``: until ``release``, or until this process dies."""

    def __init__(self, ident: str, descriptor: int) -> None:
        self._ident = ident
        self._descriptor: int | None = descriptor
        self._record = Owner(os.getpid(), socket.gethostname(), boot_id(), time.time())
        _write(descriptor, self._record)

    @property
    def holds(self) -> bool:
        """Whether no other process has seized it."""
        return self._descriptor is not None and _is_at(_path(self._ident), self._descriptor)

    def release(self, *, gone: bool = False) -> None:
        """Give up the ownership; ``gone`` says that the sandbox no longer exists. May be called more than once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if not gone:
            fields = asdict(self._record) | {"detached": time.time(), "ownerless_at": _boot_seconds()}
            _write(descriptor, Owner(**fields))
        elif _is_at(_path(self._ident), descriptor):
            _path(self._ident).unlink(missing_ok=True)
        os.close(descriptor)


def seize(ident: str) -> Ownership:
    """Become the owner though another process is, which does not let go: it keeps a lock on a file that nobody looks at."""
    while (ownership := claim(ident)) is None:
        _path(ident).unlink(missing_ok=True)
    return ownership


def claim(ident: str) -> Ownership | None:
    """Become the owner; None where another process is. Raises SandboxError ``setup_failed`` where the file cannot be made."""
    path = _path(ident)
    while True:
        descriptor = _open(path)
        if _locks(descriptor, fcntl.LOCK_EX):
            if _is_at(path, descriptor):
                return Ownership(ident, descriptor)
            os.close(descriptor)  # removed by its last owner just now
            continue
        only_looked_at = _locks(descriptor, fcntl.LOCK_SH)
        os.close(descriptor)
        if not only_looked_at:
            return None
        time.sleep(random.uniform(0, _LOOK_SECONDS))  # noqa: S311  # others may claim it, and look, in step with us


def owner_of(ident: str) -> Owner | None:
    """Return the owner in the sandbox's file; None if no process of this host and user ever owned it."""
    try:
        descriptor = os.open(_path(ident), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
        return Owner(**fields | {"alive": not _locks(descriptor, fcntl.LOCK_SH)})
    except (ValueError, TypeError):  # it is being written
        return None
    finally:
        os.close(descriptor)


def ownerless_seconds(ident: str) -> float | None:
    """Return for how many seconds the sandbox has had no owner; None if it has one, or if no owner since this boot is known.

    An owner that died did not write down when: the first look at it does.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(_path(ident), os.O_RDWR | os.O_CLOEXEC)
        try:
            if not _locks(descriptor, fcntl.LOCK_SH):
                return None
            known = Owner(**json.loads(os.pread(descriptor, 4096, 0) or b"{}"))
            if known.boot != boot_id():
                return None
            if known.ownerless_at is None:
                _write(descriptor, Owner(**asdict(known) | {"ownerless_at": _boot_seconds()}))
                return 0.0
            return _boot_seconds() - known.ownerless_at
        except (ValueError, TypeError):
            return None
        finally:
            os.close(descriptor)
    return None


def forget(ident: str) -> None:
    """Delete the file of a sandbox that is gone, unless a process holds it."""
    owned = claim(ident) if _path(ident).exists() else None
    if owned is not None:
        owned.release(gone=True)


def forget_old() -> None:
    """Remove the files of sandboxes that nobody has owned for a week."""
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError):
            if (
                time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS
                and (owner := owner_of(path.stem))
                and not owner.alive
            ):
                forget(path.stem)


def where() -> bytes:
    """Eight bytes that stand for this host, its boot and the folder of these files: who shares them sees the same locks."""
    text = "\0".join((socket.gethostname(), boot_id(), os.path.realpath(_folder()), str(os.getuid())))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8]


def _folder() -> Path:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "gamebox", "owners")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def _path(ident: str) -> Path:
    return _folder() / f"{ident.replace('/', '-')}.json"


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> SandboxError:
    return SandboxError(
        ErrorCode.setup_failed,
        f"{path}, which tells who owns a sandbox, cannot be made: {error.strerror}.",
        "Set XDG_STATE_HOME to a folder you may write.",
    )


def _write(descriptor: int, record: Owner) -> None:
    fields: dict[str, Any] = asdict(record)
    del fields["alive"]
    os.pwrite(descriptor, json.dumps(fields).encode().ljust(_RECORD_BYTES), 0)


def _locks(descriptor: int, kind: int) -> bool:
    """Take a lock of that kind; return False if that of another one is in the way."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
