"""A pipe for the guest's output that a host on the same machine may open itself; see ``sandbox/docker/container/shortcut``."""

from __future__ import annotations

import os

from ..protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .link import Link


class Shortcut:
    """The pipe. Make it before anything else opens descriptors: the host finds its reading end by number, and checks its inode."""

    def __init__(self) -> None:
        self._write: int | None = None
        read, write = os.pipe2(os.O_CLOEXEC)
        if read != wire.SHORTCUT_FD:
            os.dup2(read, wire.SHORTCUT_FD, inheritable=False)
            os.close(read)
        self._write = write
        self._inode = os.fstat(write).st_ino

    def offer(self) -> dict[str, list[int]]:
        """Return the field of the HELLO that offers it: the inodes of the pipes that the host would write to and read from."""
        return {"pipes": [os.fstat(wire.INPUT_FD).st_ino, self._inode]}

    def take(self, link: Link) -> None:
        """Write to it from now on: the host has opened it. The frame that says so is the last one on the old pipe."""
        write, self._write = self._write, None
        if write is not None:
            link.reroute(write)
            os.close(wire.SHORTCUT_FD)  # so that only the host reads from it
