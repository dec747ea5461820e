"""Recognise a lack of file descriptors on the host, in whatever exception it arrives, and word it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from sandbox.errors import ErrorCode, SandboxError

HINT = (
    "Raise the limit (`ulimit -n 65536` in the shell that starts it), "
    "or close sandboxes and forwarded ports that are not needed."
)


def shortage(error: BaseException | None) -> OSError | None:
    """Return the lack of descriptors that caused ``error``, wherever libraries keep it; None if the cause is another."""
    seen: set[int] = set()
    unseen = [error]
    while unseen:
        cause = unseen.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return cause
        unseen += [part for part in (getattr(cause, "reason", None), *cause.args) if isinstance(part, BaseException)]
        unseen += [cause.__cause__, cause.__context__]
    return None


def words(error: OSError) -> str:
    """Return what is used up, as a clause."""
    if error.errno == errno.ENFILE:
        return "this host has no file descriptor left, in all its processes together"
    return f"this process has no file descriptor left ({resource.getrlimit(resource.RLIMIT_NOFILE)[0]} is its limit)"


def refusal(error: OSError, what: str) -> SandboxError:
    """Return the error for ``what`` ("The sandbox could not be started"), which needed one descriptor too many."""
    return SandboxError(ErrorCode.host_descriptor_limit, f"{what}: {words(error)}.", HINT, retryable=True)


@contextlib.contextmanager
def worded(what: str) -> Iterator[None]:
    """Turn a lack of descriptors in this block into SandboxError ``host_descriptor_limit``; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        # The loader of libraries says it in words alone.
        if (found := shortage(error) or (want() if isinstance(error, ImportError) else None)) is None:
            raise
        raise refusal(found, what) from error


def want(count: int = 1) -> OSError | None:
    """Return why this process cannot open ``count`` more files, or None if it can. For libraries that do not say why they fail."""
    opened: list[int] = []
    try:
        opened += (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count))
    except OSError as error:
        return shortage(error)
    finally:
        for fd in opened:
            os.close(fd)
    return None
