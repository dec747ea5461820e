"""A pipe for the guest's output that a host of the same machine may open itself; see ``sandbox/docker/container/shortcut``."""

from __future__ import annotations

import os

from ..protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .link import Link


class Shortcut:
    """Made before anything else opens descriptors: the host looks for its reading end by number, and for its inode."""

    def __init__(self) -> None:
        self._write: int | None = None
        read, write = os.pipe2(os.O_CLOEXEC)
        if read != wire.SHORTCUT_FD:
            os.dup2(read, wire.SHORTCUT_FD, inheritable=False)
            os.close(read)
        self._write = write
        self._inode = os.fstat(write).st_ino

    def offer(self) -> dict[str, list[int]]:
        """What the host is told of it: the inodes of the pipes that it would write to and read from."""
        return {"pipes": [os.fstat(wire.INPUT_FD).st_ino, self._inode]}

    def take(self, link: Link) -> None:
        """The host has opened it: the answer to that is the last that goes the long way."""
        write, self._write = self._write, None
        if write is not None:
            link.reroute(write)
            os.close(wire.SHORTCUT_FD)  # so that the host is the only one who reads
