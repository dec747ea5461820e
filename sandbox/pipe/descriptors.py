"""Want of file descriptors on the host: found in whatever it comes as, and said in words."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from sandbox.errors import ErrorCode, SandboxError

HINT = (
    "Raise the limit (`ulimit -n 65536` in the shell that starts it), or close sandboxes and forwarded ports that are not needed."
)


def shortage(error: BaseException | None) -> OSError | None:
    """The want of descriptors that led to ``error``, wherever libraries keep it; None where it was something else."""
    seen: set[int] = set()
    found = [error]
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in (errno.EMFILE, errno.ENFILE):
            return one
        found += [part for part in (getattr(one, "reason", None), *one.args) if isinstance(part, BaseException)]
        found += [one.__cause__, one.__context__]
    return None


def words(error: OSError) -> str:
    """What is used up, as a clause."""
    if error.errno == errno.ENFILE:
        return "this host has no file descriptor left, in all its processes together"
    return f"this process has no file descriptor left ({resource.getrlimit(resource.RLIMIT_NOFILE)[0]} is its limit)"


def refusal(error: OSError, what: str) -> SandboxError:
    """The error for ``what`` ("The sandbox could not be started"), which wanted one too many."""
    return SandboxError(ErrorCode.host_descriptor_limit, f"{what}: {words(error)}.", HINT, retryable=True)


@contextlib.contextmanager
def worded(what: str) -> Iterator[None]:
    """Have want of descriptors leave this block as SandboxError ``host_descriptor_limit``, and all else as it is."""
    try:
        yield
    except Exception as error:
        if (found := shortage(error)) is None:
            raise
        raise refusal(found, what) from error


def want(count: int = 1) -> OSError | None:
    """Why this process cannot open so many files now; None where it can. For libraries that do not say why they fail."""
    opened: list[int] = []
    try:
        opened += (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count))
    except OSError as error:
        return shortage(error)
    finally:
        for fd in opened:
            os.close(fd)
    return None
