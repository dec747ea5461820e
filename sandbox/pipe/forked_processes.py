"""Keep processes that were forked from the one that made a sandbox from using it, or from holding its descriptors open."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol

from sandbox.errors import ErrorCode, SandboxError


class Inherited(Protocol):
    """What a forked process must release."""

    def release_in_child(self) -> None:
        """Release it in this process, which was just forked; the parent's stays as it is. Raises OSError."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def release_in_children(each: Inherited) -> None:
    """Call ``each.release_in_child()`` in every process that is forked from now on."""
    _inherited.add(each)


def point_at_devnull(fd: int) -> None:
    """Point ``fd`` at /dev/null in this process, which neither ends nor holds open what another process has open there."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


def forked_since(pid: int) -> bool:
    """Return whether this process was forked from the process ``pid``."""
    return os.getpid() != pid


def check(pid: int) -> None:
    """Raise SandboxError ``sandbox_owned`` in a process that was forked from ``pid``, the one that made the environment."""
    if forked_since(pid):
        raise SandboxError(
            ErrorCode.sandbox_owned,
            f"This process ({os.getpid()}) was forked from the one that made the environment ({pid}), and only that can use it.",
            f"Use it in process {pid}, or make another environment in this one.",
        )


def _release_all() -> None:
    for each in list(_inherited):
        with contextlib.suppress(OSError):
            each.release_in_child()


os.register_at_fork(after_in_child=_release_all)
