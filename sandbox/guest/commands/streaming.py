"""The output of a command on its way to the host while it runs. Lives in the reactor's thread.

DATA frames on the command's own channel: a byte for the stream (1 or 2), then what was printed. The host credits what it took.
Where it falls behind, the command's pipes are not read until it catches up: the command waits, nothing is lost, and nothing else
waits with it.
"""

from __future__ import annotations

from collections import deque

from ..loop.link import Link
from ..protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Below this the pipes rest: what they still hold at the end (two of 256 KiB, and a read of that size) fits the window.
HEADROOM = 3 * 256 * 1024
PIECE = wire.MAX_PAYLOAD - 1


class OutputStream:
    """The stream of one command. ``on_room`` is called when the host has caught up."""

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
        """Whether the command's pipes are to rest."""
        return self._outgoing.left < HEADROOM and not self._abandoned

    def take(self, stream: int, data: bytes) -> None:
        """Send what the command wrote to ``stream``."""
        if self._abandoned:
            return
        for at in range(0, len(data), PIECE):
            self._unsent.append(bytes((stream,)) + data[at : at + PIECE])
        self._send()

    def credit(self, size: int) -> None:
        """The host took ``size`` bytes."""
        self._outgoing.add_credit(size)
        self._send()
        if not self.full and self.on_room is not None:
            self.on_room()

    def abandon(self) -> None:
        """Nobody takes it any more; the command goes on, and its output is kept as that of any other."""
        self._abandoned = True
        self._unsent.clear()
        self._send()
        if self.on_room is not None:
            self.on_room()

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` when all was sent: the reply comes last."""
        if self._unsent:  # a command that made its pipes larger than usual
            self._then = then
        else:
            then()

    def _send(self) -> None:
        while self._unsent and len(self._unsent[0]) <= self._outgoing.left:
            piece = self._unsent.popleft()
            self._outgoing.use(len(piece))
            self._link.frame(wire.Kind.DATA, self._channel, piece)
        if not self._unsent and self._then is not None:
            then, self._then = self._then, None
            then()
