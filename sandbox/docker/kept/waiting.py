"""Which sandboxes wait in a pool: one file each, of this user on this host, which goes when the sandbox is acquired.

Not a label: those of a container cannot change. A file that cannot be written or removed costs ``gamebox ls`` a word, and no more.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sandbox.docker.container.create import owner

from .orphans import is_dead


def note(ident: str) -> None:
    """Note that the sandbox waits in a pool of this process, and forget those of processes that were killed."""
    _forget_old()
    with contextlib.suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        (_folder() / ident).write_text(owner(os.getpid()), encoding="ascii")


def forget(ident: str) -> None:
    """Note that the sandbox does not wait any more."""
    with contextlib.suppress(OSError):
        (_folder() / ident).unlink(missing_ok=True)


def waits(ident: str) -> bool:
    """Return whether the sandbox waits in a pool of this user on this host."""
    return (_folder() / ident).is_file()


def _forget_old() -> None:
    with contextlib.suppress(OSError):
        for path in _folder().iterdir():
            with contextlib.suppress(OSError, UnicodeError):
                if is_dead(path.read_text(encoding="ascii")):
                    path.unlink(missing_ok=True)


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "gamebox", "waiting")
