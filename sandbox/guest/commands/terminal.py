"""Input of a running command: its terminal, or the pipe that is its standard input; keys and signals typed into it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios

from ..builtin import signal
from ..loop.reactor import Reactor
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Input that the command has not read yet.
MOST_PENDING_BYTES = 1 << 20
TERM = "xterm-256color"
_WINDOW = struct.Struct("HHHH")

# As xterm sends them in its normal mode.
_ESCAPES = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "insert": "\x1b[2~",
    "delete": "\x1b[3~",
    "page-up": "\x1b[5~",
    "page-down": "\x1b[6~",
    "shift-tab": "\x1b[Z",
    "f1": "\x1bOP",
    "f2": "\x1bOQ",
    "f3": "\x1bOR",
    "f4": "\x1bOS",
    "f5": "\x1b[15~",
    "f6": "\x1b[17~",
    "f7": "\x1b[18~",
    "f8": "\x1b[19~",
    "f9": "\x1b[20~",
    "f10": "\x1b[21~",
    "f11": "\x1b[23~",
    "f12": "\x1b[24~",
}
_CURSOR = ("up", "down", "right", "left", "home", "end")
_PLAIN = {"enter": "\r", "tab": "\t", "escape": "\x1b", "backspace": "\x7f", "space": " "}
_CONTROL = {f"ctrl-{chr(code + 96)}": chr(code) for code in range(1, 27)} | {"ctrl-\\": "\x1c", "ctrl-space": "\0"}
KEYS = {**_PLAIN, **_ESCAPES, **_CONTROL}
_ON_A_PIPE = {"enter": b"\n", "tab": b"\t", "space": b" "}
_SIGNALS = {"ctrl-c": signal.SIGINT, "ctrl-\\": signal.SIGQUIT}


class Input:
    """The writing end of a command's standard input. Lives in the reactor's thread.

    ``name`` is the name of its reading end in /proc. ``terminal`` is the descriptor of the terminal's other side, None for a pipe.
    ``on_taken`` is called with the number of bytes that the pipe took.
    """

    def __init__(self, reactor: Reactor, fd: int, name: str, terminal: int | None = None) -> None:
        self.name = name
        self.terminal = terminal
        self._reactor = reactor
        self._fd = fd
        self._pending = bytearray()
        self._closing = False
        self.on_taken: Callable[[int], None] | None = None
        os.set_blocking(fd, False)

    @property
    def open(self) -> bool:
        """Whether more can be written."""
        return self._fd >= 0 and not self._closing

    @property
    def pending(self) -> int:
        """Number of bytes that did not fit into the pipe yet."""
        return len(self._pending)

    @property
    def unread(self) -> bool:
        """Whether there is input that the command could read: it is about to wake, although it seems to wait."""
        fd = self._fd if self.terminal is None else self.terminal
        if fd < 0:
            return False
        try:
            waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        except OSError:
            return False
        return bool(self._pending or waiting[0])

    def write(self, data: bytes) -> None:
        """Write what fits now, and the rest when there is room. Raises Fault."""
        if not self.open:
            raise Fault("stdin_closed")
        if len(self._pending) + len(data) > MOST_PENDING_BYTES:
            raise Fault("invalid_arguments", problem=f"{len(self._pending)} bytes sent before were not read yet")
        self._pending += data
        self._flush()

    def close(self) -> None:
        """Write what is pending, then let the reader see the end."""
        self._closing = True
        if not self._pending:
            self.release()

    def release(self) -> None:
        """Close at once. May be called more than once."""
        if self._fd >= 0:
            self._reactor.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None
        self._pending.clear()

    def _flush(self) -> None:
        before = len(self._pending)
        try:
            while self._pending:
                del self._pending[: os.write(self._fd, self._pending[:65536])]
        except BlockingIOError:
            self._reactor.watch(self._fd, select.EPOLLOUT, lambda _: self._flush())
        except OSError:  # no reader is left
            self.release()
            return
        else:
            self._reactor.unwatch(self._fd)
            if self._closing:
                self.release()
        if self.on_taken is not None and before > len(self._pending):
            self.on_taken(before - len(self._pending))


def input_through(reactor: Reactor, read: int, write: int) -> Input:
    """Return the standard input whose command reads the pipe ``read``, and which is written to ``write``."""
    return Input(reactor, write, f"pipe:[{os.fstat(read).st_ino}]")


def open_terminal(reactor: Reactor, rows: int, cols: int) -> tuple[Input, int, tuple[int, int, int]]:
    """Open a terminal. Returns its input, the descriptor to read its output from, and the command's three. Raises OSError.

    It belongs to the user as whom the calling thread acts. One descriptor of the command's side stays open here, so that a command
    that closes its own and opens /dev/tty again finds it unchanged.
    """
    master, slave = os.openpty()
    opened = [master, slave]
    try:
        set_window_size(slave, rows, cols)
        ends = []
        for fd in (slave, slave, slave, master):
            ends.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
            opened.append(ends[-1])
        name = os.ttyname(slave)
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    os.set_blocking(master, False)
    return Input(reactor, ends[3], name, slave), master, (ends[0], ends[1], ends[2])


def set_window_size(fd: int, rows: int, cols: int) -> None:
    """Set the size of a terminal. Its foreground processes get SIGWINCH. Raises OSError."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, _WINDOW.pack(rows, cols, 0, 0))


def read_window_size(fd: int) -> tuple[int, int]:
    """Return the rows and columns of a terminal. Raises OSError."""
    rows, cols, _, _ = _WINDOW.unpack(fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(_WINDOW.size)))
    return rows, cols


def hides_input(fd: int) -> bool:
    """Return whether a terminal reads a line without echo, as for a password."""
    try:
        flags = termios.tcgetattr(fd)[3]
    except (OSError, termios.error):
        return False
    return bool(flags & termios.ICANON) and not flags & termios.ECHO


def encode_input(
    text: str, keys: list[str], terminal: bool, application: bool = False
) -> list[bytes | int | None]:
    """Translate ``text`` and ``keys`` into bytes to write, signals to send, and None for the end of input. Raises Fault.

    On a terminal each line end becomes what the Enter key sends, as when a person pastes. ``application`` means that the program
    has switched the cursor keys to application mode.
    """
    if terminal:
        steps: list[bytes | int | None] = [os.fsencode(text.replace("\r\n", "\r").replace("\n", "\r"))]
        steps += [_key(name, application).encode() for name in keys]
        return [step for step in steps if step]
    steps = [os.fsencode(text)] if text else []
    for name in keys:
        _key(name)
        if name in _SIGNALS:
            steps.append(_SIGNALS[name])
        elif name == "ctrl-d":
            steps.append(None)
        elif name in _ON_A_PIPE:
            steps.append(_ON_A_PIPE[name])
        else:
            raise Fault(
                "invalid_arguments", problem=f"the key {name!r} needs a terminal: run the command with pty=true"
            )
    return steps


def _key(name: str, application: bool = False) -> str:
    if name not in KEYS:
        known = ", ".join(
            [*_PLAIN, "up, down, left, right, home, end, page-up, page-down, insert, delete, f1-f12, ctrl-a-z"]
        )
        raise Fault("invalid_arguments", problem=f"there is no key {name[:40]!r}; known keys: {known}")
    return KEYS[name].replace("[", "O") if application and name in _CURSOR else KEYS[name]


def require_terminal(source: Input | None, ident: str) -> int:
    """Return the descriptor of a command's terminal. Raises Fault ``not_a_terminal`` if it has none."""
    if source is None or source.terminal is None:
        raise Fault("not_a_terminal", id=ident)
    return source.terminal
