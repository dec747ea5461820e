"""The standard input of a command on its way from the host while it runs. Lives in the reactor's thread.

DATA frames on the command's own channel, then END. What the command took is credited to the host, which sends no more than a window
ahead: a command that reads slowly slows its source down.
"""

from __future__ import annotations

from collections import deque

from ..loop.link import Link
from ..protocol import wire
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .terminal import Input

# Handed to the pipe's writer at a time.
AHEAD_BYTES = 256 * 1024


class Feed:
    """The stream to one command."""

    def __init__(self, link: Link, channel: int) -> None:
        self._link = link
        self._channel = channel
        self._input: Input | None = None
        self._chunks: deque[bytes] = deque()
        self._incoming = wire.ReceiveWindow(wire.WINDOW)
        self._complete = self._lost = self._pushing = False

    def take(self, chunk: bytes) -> None:
        """A piece of the stream. Raises WireError where the host sends more than it was credited."""
        self._incoming.receive(len(chunk))
        if self._incoming.overrun:
            raise wire.WireError("standard input beyond its credit")
        if not self._lost:
            self._chunks.append(chunk)
            self._push()

    def finish(self, problem: str) -> None:
        """No more comes. Where ``problem`` says why it is not whole, the command sees no end: it is about to be stopped."""
        if not problem:
            self._complete = True
            self._push()

    def attach(self, source: Input) -> None:
        """The command was started with this input."""
        self._input = source
        source.on_taken = self._taken
        self._push()

    def _taken(self, size: int) -> None:
        """The pipe took ``size`` bytes."""
        self._incoming.consume(size)
        if self._incoming.credit_due:
            self._link.frame(wire.Kind.CREDIT, self._channel, self._incoming.credit())
        self._push()

    def _push(self) -> None:
        source = self._input
        if source is None or self._pushing:
            return
        self._pushing = True
        try:
            while self._chunks and source.pending < AHEAD_BYTES:
                source.write(self._chunks.popleft())
            if self._complete and not self._chunks and source.terminal is None:
                source.close()
        except Fault:  # the command has closed its end: nothing is credited any more, and the host stops
            self._lost = True
            self._chunks.clear()
        finally:
            self._pushing = False
