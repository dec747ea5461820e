"""A command's standard input from the host and its output to the host, both while it runs. In the reactor's thread.

Both are DATA frames on the command's own channel with credits against them: neither side sends more than a window ahead. A command
that reads slowly slows its source down. A host that reads slowly makes the command wait, and nothing else.
"""

from __future__ import annotations

from ..builtin import deque
from ..loop.link import Link
from ..protocol import wire
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .terminal import Input

# How much of the input is handed to the pipe's writer ahead of time.
AHEAD_BYTES = 256 * 1024
# Below this the output pipes are not read: what they still hold at the end (two of 256 KiB, and a read of that size) must fit the
# window.
RESERVE_BYTES = 3 * 256 * 1024
PIECE = wire.MAX_PAYLOAD - 1


class InputStream:
    """The standard input of one command: DATA frames, then END. What the command has read is credited to the host."""

    def __init__(self, link: Link, channel: int) -> None:
        self._link = link
        self._channel = channel
        self._input: Input | None = None
        self._chunks: deque[bytes] = deque()
        self._incoming = wire.ReceiveWindow(wire.WINDOW)
        self._complete = self._lost = self._pushing = False

    def take(self, chunk: bytes) -> None:
        """Take a piece of the stream. Raises WireError if the host sends more than it has credit for."""
        self._incoming.receive(len(chunk))
        if self._incoming.overrun:
            raise wire.WireError("standard input beyond its credit")
        if not self._lost:
            self._chunks.append(chunk)
            self._push()

    def finish(self, problem: str) -> None:
        """Note that no more comes. If ``problem`` says why it is not whole, the command sees no end: it is about to be stopped."""
        if not problem:
            self._complete = True
            self._push()

    def attach(self, target: Input) -> None:
        """Write to ``target`` from now on: the command was started."""
        self._input = target
        target.on_taken = self._taken
        self._push()

    def _taken(self, size: int) -> None:
        self._incoming.consume(size)
        if self._incoming.credit_due:
            self._link.frame(wire.Kind.CREDIT, self._channel, self._incoming.credit())
        self._push()

    def _push(self) -> None:
        target = self._input
        if target is None or self._pushing:
            return
        self._pushing = True
        try:
            while self._chunks and target.pending < AHEAD_BYTES:
                target.write(self._chunks.popleft())
            if self._complete and not self._chunks and target.terminal is None:
                target.close()
        except Fault:  # the command has closed its end: nothing is credited from now on, and the host stops
            self._lost = True
            self._chunks.clear()
        finally:
            self._pushing = False


class OutputStream:
    """The output of one command: frames of a byte for the stream (1 or 2) and what was printed.

    ``on_room`` is called when the host has caught up.
    """

    def __init__(self, link: Link, channel: int) -> None:
        self.on_room: Callable[[], None] | None = None
        self._link = link
        self._channel = channel
        self._outgoing = wire.SendWindow(wire.WINDOW)
        self._unsent: deque[bytes] = deque()
        self._then: Callable[[], None] | None = None
        self._abandoned = False

    @property
    def full(self) -> bool:
        """Whether the command's pipes should not be read."""
        return self._outgoing.left < RESERVE_BYTES and not self._abandoned

    def send(self, stream: int, data: bytes) -> None:
        """Send what the command wrote to ``stream``."""
        if self._abandoned:
            return
        for at in range(0, len(data), PIECE):
            self._unsent.append(bytes((stream,)) + data[at : at + PIECE])
        self._flush()

    def credit(self, size: int) -> None:
        """Add ``size`` bytes to the window: the host has taken them."""
        self._outgoing.add_credit(size)
        self._flush()
        if not self.full and self.on_room is not None:
            self.on_room()

    def abandon(self) -> None:
        """Stop sending, because the host is gone. The command goes on, and its output is kept like that of any other."""
        self._abandoned = True
        self._unsent.clear()
        self._flush()
        if self.on_room is not None:
            self.on_room()

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` when everything was sent: the reply comes last."""
        if self._unsent:  # of a command that made its pipes larger than usual
            self._then = then
        else:
            then()

    def _flush(self) -> None:
        while self._unsent and len(self._unsent[0]) <= self._outgoing.left:
            piece = self._unsent.popleft()
            self._outgoing.use(len(piece))
            self._link.frame(wire.Kind.DATA, self._channel, piece)
        if not self._unsent and self._then is not None:
            then, self._then = self._then, None
            then()
