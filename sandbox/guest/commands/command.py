"""One command under way: its descriptors, its output, its end.

A command lives in the reactor's thread. ``on_end`` is called once: when its leader ended, when it could not be started, or when it
was stopped and nothing of it is left.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import termios
import time

from ..loop.reactor import Reactor, Timer
from ..protocol.faults import Fault, fault_of
from ..watch.spending import Spending
from . import zygote
from .output import STDERR, STDOUT, Output
from .sessions import STATE_LIMIT
from .spawner import Runner, Spawner
from .starting import input_of, start_fault, state_file, widen
from .streaming import OutputStream
from .terminal import Input, open_pipe, open_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..users import User

CHUNK = 256 * 1024
USUAL_PIPE_BYTES = 64 * 1024
NAMED_CHARS = 60
# How long the word of a runner is waited for after its tree was killed: it says what all of it used.
REAP_SECONDS = 0.02


class Command:
    """``stop_reason`` is None, "timeout", "cpu", "killed", "cancelled" or "disk"; ``exit_status`` None while it runs."""

    def __init__(self, ident: str, output: Output, reactor: Reactor, on_end: Callable[[Command], None]) -> None:
        self.id = ident
        self.output = output
        self.runner: Runner | None = None
        self.started = 0.0
        self.ended = 0.0
        self.exit_status: int | None = None
        self.fault: Fault | None = None
        self.stop_reason: str | None = None
        self.stall: dict[str, Any] = {}  # why it did not end within its time; see ``stalling``
        self.stopping = False
        self.tree_empty = False
        self.survivors = 0
        self.collateral: tuple[str, ...] = ()
        self.timer: Timer | None = None
        self.state_fd: int | None = None
        self.give_up: Callable[[], None] = lambda: None
        self.on_begin: Callable[[], None] | None = None
        # What `send` needs: a terminal of that many rows and columns, or a standard input that stays open.
        self.window: tuple[int, int] | None = None
        self.stays_open = False
        self.stays = False  # counts as one in the background
        self.user: User | None = None
        self.input: Input | None = None
        self.told_bytes = 0
        self.answered = False  # whether its caller has been told of it
        self.refusals: dict[tuple[str, ...], dict[str, Any]] = {}  # see ``refusals``
        self.spent = Spending()
        self.when_reaped: Callable[[], None] | None = None
        self.stream: OutputStream | None = None
        # What was asked for, for those who list commands: "text", "session", "background", "timeout_seconds".
        self.about: dict[str, Any] = {}
        self._listeners: list[Callable[[], None]] = []
        self._on_end: Callable[[Command], None] | None = on_end
        self._reactor = reactor
        self._pipes: dict[int, int] = {}

    @property
    def running(self) -> bool:
        """Whether the leader has not ended yet."""
        return self._on_end is not None

    @property
    def over(self) -> bool:
        """Whether nothing more can come of it: it has ended, and so has all that it started."""
        return not self.running and self.tree_empty and not self._pipes

    @property
    def outcome(self) -> tuple[int | None, str | None]:
        """(exit code, signal name); both None while it runs."""
        killed = self.stopping and not self.running and self.runner is not None
        if self.exit_status is None and killed:  # but the runner has not said so yet
            return None, "SIGKILL"
        return outcome(self.exit_status)

    def start(self, spawner: Spawner, spec: dict[str, Any], stdin: bytes | int, extra_fd: int | None) -> None:
        """Start it. ``stdin`` is bytes or a descriptor (taken over); ``extra_fd`` a folder to start in (taken over)."""
        self.started = time.monotonic()
        given = [fd for fd in (stdin, extra_fd) if isinstance(fd, int)]
        try:
            with spawner.acting_as(spec.get("user")):  # so that the command may open /dev/stderr and the like anew
                descriptors = self._descriptors(stdin, extra_fd, given)
        except OSError as error:
            self.close()
            for fd in given:
                os.close(fd)
            self.fault = fault_of(error, "")
            self.tree_empty = True
            self.end()
            return
        self.give_up = spawner.spawn(spec, descriptors, self._packet, self._handed)

    def _descriptors(self, stdin: bytes | int, extra_fd: int | None, given: list[int]) -> list[int]:
        """What the command gets; all that is made for it is noted in ``given`` as well. Raises OSError."""
        ends: list[int] = []
        if self.window is not None:
            self.input, master, (stdin, *ends) = open_terminal(self._reactor, *self.window)
            given += [stdin, *ends]
            self._collect(master, STDOUT)
        for stream in () if ends else (STDOUT, STDERR):
            read, write = os.pipe2(os.O_CLOEXEC)
            given.append(write)
            ends.append(write)
            os.set_blocking(read, False)
            self._collect(read, stream)
        if self.stays_open and self.input is None:
            self.input, stdin = open_pipe(self._reactor)
            given.append(stdin)
        if extra_fd is None:
            self.state_fd = state_file()
            extra_fd = os.dup(self.state_fd)
            given.append(extra_fd)
        return [stdin if isinstance(stdin, int) else input_of(stdin), *ends, extra_fd]

    def _collect(self, fd: int, stream: int) -> None:
        self._pipes[fd] = stream
        self._watch(fd)

    def _handed(self, runner: Runner) -> None:
        self.runner = runner

    # --- what the runner says ------------------------------------------------------------------
    def _packet(self, packet: bytes) -> None:
        kind = packet[:1]
        if kind == b"G" and self.on_begin is not None:
            self.on_begin()
        elif kind == b"E":
            self.fault = start_fault(packet[1:])
        elif kind == b"K":
            self.spent.note(packet)
        elif kind == b"X":
            _, status, alone, *_ = zygote.STATUS.unpack(packet)
            self.spent.note(packet)
            self.tree_empty = bool(alone)
            self._leader_ended(status)
        elif kind == b"Z" or not packet:
            if packet:
                self.spent.note(packet)
            self.tree_empty = True
            if self.exit_status is None:
                self._leader_ended(signal.SIGKILL)  # the runner itself was killed: a kill of everything
            self._tell()

    def _leader_ended(self, status: int) -> None:
        self.exit_status = status
        if not self.stopping:
            self.end()
        elif self.when_reaped is not None:
            self.when_reaped()

    def cpu_used(self) -> float:
        """Processor time in seconds of the whole tree until now, dead or alive, as far as the kernel still tells it."""
        if self.runner is not None and not self.tree_empty:
            return self.spent.with_living(self.runner.pid, self.runner.past_seconds)
        return self.spent.cpu_seconds or 0.0

    def once_reaped(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the runner has said how the leader ended, or after REAP_SECONDS."""
        if self.exit_status is not None or not self.running:
            then()
            return

        def once() -> None:
            if self.when_reaped is not None:
                self.when_reaped = None
                timer.cancel()
                then()

        self.when_reaped = once
        timer = self._reactor.after(REAP_SECONDS, once)

    def end(self) -> None:
        """Take what is still in the pipes and report the end; the second call does nothing."""
        if self._on_end is None:
            return
        self.ended = time.monotonic()
        if self.timer is not None:
            self.timer.cancel()
        for fd in list(self._pipes):
            if self.window is not None:
                self._drain_terminal(fd)
            else:
                self._drain(fd)
        if self.input is not None:
            self.input.release()
        self.end_stream()
        report, self._on_end = self._on_end, None
        report(self)
        self._tell()

    # --- who follows it ------------------------------------------------------------------
    def listen(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have ``call`` called when there is more output, when it ends, and when nothing of it is left; answers what ends that."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call) if call in self._listeners else None

    def _tell(self) -> None:
        for call in tuple(self._listeners):
            call()

    def end_stream(self) -> None:
        """Send the output to nobody any more: from now on the command does not wait for a reader."""
        if self.stream is not None:
            self._resume()
            self.stream = None

    # --- output ------------------------------------------------------------------
    def _readable(self, fd: int) -> None:
        self._read(fd, CHUNK)
        if self.stream is not None and self.stream.full:
            self.stream.on_room = self._resume
            for pipe in self._pipes:
                self._reactor.unwatch(pipe)

    def _resume(self) -> None:
        if self.stream is not None:
            self.stream.on_room = None
        for pipe in self._pipes:
            self._watch(pipe)

    def _watch(self, fd: int) -> None:
        self._reactor.watch(fd, select.EPOLLIN, lambda _: self._readable(fd))

    def _read(self, fd: int, size: int) -> int:
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self.output.append(self._pipes[fd], data)
            if self.stream is not None:
                self.stream.take(self._pipes[fd], data)
            self._tell()
            if len(data) == USUAL_PIPE_BYTES:
                widen(fd)
        else:
            self._reactor.unwatch(fd)
            os.close(fd)
            del self._pipes[fd]
            self._tell()
        return len(data)

    def _drain(self, fd: int) -> None:
        """Read what was in the pipe when the leader ended: no more, for what it left behind may write for ever."""
        waiting = array.array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0 and (got := self._read(fd, min(left, CHUNK))):
            left -= got
        if not left and self.tree_empty and fd in self._pipes:
            self._read(fd, CHUNK)  # end of file: nobody is left to write

    def _drain_terminal(self, fd: int) -> None:
        """Read what is left in a terminal, which holds less than a chunk; it was hung up with its leader, so close it."""
        left = CHUNK
        while left > 0 and fd in self._pipes and (got := self._read(fd, left)):
            left -= got
        if fd in self._pipes:
            self._reactor.unwatch(fd)
            os.close(fd)
            del self._pipes[fd]

    def close(self) -> None:
        """Release descriptors and the spill file; for a command that is to be forgotten."""
        for fd in list(self._pipes):
            self._reactor.unwatch(fd)
            os.close(fd)
        self._pipes.clear()
        if self.input is not None:
            self.input.release()
        self.take_state()
        self.output.discard()

    def take_state(self) -> bytes:
        """What the shell left as its state; b"" the second time."""
        if self.state_fd is None:
            return b""
        fd, self.state_fd = self.state_fd, None
        try:
            return os.pread(fd, min(os.lseek(fd, 0, os.SEEK_CUR), STATE_LIMIT), 0)
        finally:
            os.close(fd)


def named(command: Command) -> str:
    """The id of a command with the beginning of its text: "c3 (make test)"."""
    text = str(command.about.get("text", ""))
    begun = text if len(text) <= NAMED_CHARS else text[:NAMED_CHARS] + "..."
    return f"{command.id} ({begun})" if begun else command.id


def outcome(status: int | None) -> tuple[int | None, str | None]:
    """(exit code, signal name) of a wait status; exactly one of them is None for a status."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, f"SIG{number}"
    return os.WEXITSTATUS(status), None
