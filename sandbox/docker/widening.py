"""A longer pipe between the engine and its shim, where engine and orchestrator are of one machine and this is root.

The engine takes 32 KiB from its socket and writes them to a named pipe of 64 KiB, from which the shim feeds the container: the two
wake each other for every second piece. With a longer pipe that takes a third less of the processors (``docs/network.md``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

# Engines keep it there unless they were given another ``exec-root``.
FOLDER = "/run/docker/containerd"
# Requests wait behind what is in it.
PIPE_BYTES = 256 * 1024


def widen_input(container_id: str, folder: str = FOLDER) -> bool:
    """Make the pipe to a container's standard input longer; whether that was done. It works without, more slowly."""
    with contextlib.suppress(OSError):  # not root, another machine's engine, too many pipes
        fd = os.open(f"{folder}/{container_id}/init-stdin", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
                return True
        finally:
            os.close(fd)
    return False
