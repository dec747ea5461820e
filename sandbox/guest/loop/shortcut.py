"""Pipes past the engine that a host on the same machine may open itself; see ``sandbox/docker/container/shortcut``."""

from __future__ import annotations

import os

from ..protocol import wire


class Shortcut:
    """A pipe for the guest's output and, with ``own_input``, one for its input; ``offer`` tells the host where to find them.

    An ordinary sandbox goes on to read its standard input, whose end is its own end. That of a kept sandbox never ends: it gets a
    pipe for each host, which ends with that host and carries no bytes of another one.
    """

    def __init__(self, own_input: bool) -> None:
        read, self.out_fd = os.pipe2(os.O_CLOEXEC)
        self.in_fd, self._held = wire.INPUT_FD, [read]
        if own_input:
            self.in_fd, write = os.pipe2(os.O_CLOEXEC)
            self._held.append(write)
        self.offer = {"pipes": [[fd, os.fstat(fd).st_ino] for fd in (self.in_fd, read)]}

    def release(self) -> None:
        """Close the host's ends, which kept the pipes alive until it has opened them: from now on they end with the host."""
        while self._held:
            os.close(self._held.pop())
