"""The folder where this user keeps what can be made again: locks, programs, formatted disks, packages."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def user_cache(name: str) -> Path:
    """Return the path of gamebox/NAME below XDG_CACHE_HOME, or ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one would be a folder of whatever repository one is in
    return (base if base.is_absolute() else Path.home() / ".cache") / "gamebox" / name


def is_only_ours(found: os.stat_result) -> bool:
    """Return whether a folder or file can have been written only by this user."""
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022
