"""The folder where this user keeps what can be made again: locks, programs, formatted disks, packages, names of volumes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path


def user_cache(name: str) -> Path:
    """Return the path of gamebox/NAME below XDG_CACHE_HOME, or ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one would be a folder of whatever repository one is in
    return (base if base.is_absolute() else Path.home() / ".cache") / "gamebox" / name


def is_only_ours(found: os.stat_result) -> bool:
    """Return whether a folder or file can have been written only by this user."""
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def keep(name: str, asked: bytes, content: bytes, most: int) -> None:
    """Keep ``content`` in `user_cache` (NAME) as the answer to ``asked``, and the ``most`` answers there that were used last.

    Raises OSError; ValueError if others may write to the folder.
    """
    folder = _own_folder(name)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as fresh:
        made = Path(fresh, "made")
        made.write_bytes(hashlib.sha256(asked + content).digest() + content)
        made.chmod(0o600)
        made.replace(folder / _name(asked))
    kept = [path for path in folder.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name)]
    for old in sorted(kept, key=lambda each: each.lstat().st_mtime)[:-most]:
        old.unlink(missing_ok=True)


def read_kept(name: str, asked: bytes) -> bytes:
    """Return what `keep` kept. Raises OSError; ValueError if somebody else may have written it, or it is broken."""
    with open(_own_folder(name) / _name(asked), "rb", opener=_open_no_link) as file:
        if not is_only_ours(os.fstat(file.fileno())):
            raise ValueError("not ours")
        with contextlib.suppress(OSError):
            os.utime(file.fileno())  # it is in use
        digest, content = file.read(32), file.read()
    if hashlib.sha256(asked + content).digest() != digest:
        raise ValueError("not what was written")
    return content


def _own_folder(name: str) -> Path:
    """Return the folder. Raises OSError; ValueError if others may write to it: a disk from there is read by the kernel as root."""
    folder = user_cache(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_only_ours(folder.lstat()):
        raise ValueError("not ours")
    return folder


def _name(asked: bytes) -> str:
    return hashlib.sha256(asked).hexdigest()[:32]


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
