"""One command: what it starts with, its output while it runs, how it ends and what it used.

A command lives in the reactor's thread.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time

from ..builtin import signal
from ..loop.reactor import Reactor, Timer
from ..protocol.faults import Fault, fault_of
from ..watch.procfs import find_descendants, sum_tree_seconds
from .launch import packets
from .launch.spawner import Runner, Spawner, open_memory_file
from .output import STDERR, STDOUT, Output
from .sessions import STATE_LIMIT
from .streams import OutputStream
from .terminal import Input, input_through, open_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..users import User
    from .launch.packets import Spec

READ_BYTES = 256 * 1024
USUAL_PIPE_BYTES = 64 * 1024
WIDE_PIPE_BYTES = 256 * 1024
# A command that has printed this much and goes on in pieces is read once in a while, from a pipe that holds what it prints until
# then: else each of its pieces wakes the guest, which takes more time than all the rest (20 of 40 ms for 10 MiB).
MUCH_OUTPUT_BYTES = 256 * 1024
GATHER_SECONDS = 0.001
GATHER_PIPE_BYTES = 1024 * 1024
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
STDIN_IN_PIPE_BYTES = 4096  # fits any pipe, so it is written at once; longer input is read from memory
NAMED_CHARS = 60
MOST_KILLED = 16
# How long to wait for the runner's report after its tree was killed: it contains what the whole tree used.
REAP_SECONDS = 0.02
_START_FAULTS = {
    ("exec", 2): "program_not_found",
    ("exec", 20): "program_not_found",
    ("exec", 13): "program_not_executable",
    ("exec", 8): "program_not_executable",
    ("exec", 7): "arguments_too_long",
    ("cwd", 2): "working_directory_invalid",
    ("cwd", 20): "working_directory_invalid",
    ("cwd", 13): "working_directory_invalid",
    ("cwd", 36): "working_directory_invalid",
    ("cwd", 40): "working_directory_invalid",
}


class ResourceUse:
    """What a command used: processor time of its whole tree, and the resident memory of its largest process.

    ``cpu_seconds`` and ``max_rss_bytes`` are None until something has ended. The dead part comes from the runner, which is the
    sub-reaper of the tree; the living part is read from /proc. ``killed`` lists children of the runner that ended by SIGKILL:
    (pid, name, largest resident size in bytes).
    """

    __slots__ = ("cpu_seconds", "killed", "max_rss_bytes")

    def __init__(self) -> None:
        self.cpu_seconds: float | None = None
        self.max_rss_bytes: int | None = None
        self.killed: list[tuple[int, str, int]] = []

    def add_report(self, packet: bytes) -> None:
        """Add what a runner reports in a packet of kind X, Z or K."""
        if packet[:1] == b"K":
            _, pid, kib, name = packets.KILLED.unpack(packet)
            if len(self.killed) < MOST_KILLED:
                self.killed.append((pid, name.rstrip(b"\0").decode("utf-8", "replace"), kib * 1024))
        else:
            seconds, kib = packets.parse_resources(packet)
            self.cpu_seconds = max(seconds, self.cpu_seconds or 0.0)
            self.max_rss_bytes = max(kib * 1024, self.max_rss_bytes or 0)

    def add_living(self, runner: Runner) -> float:
        """Add the processor time of the tree as it is now. Returns the sum in seconds."""
        self.cpu_seconds = max(self.cpu_seconds or 0.0, sum_tree_seconds(runner.pid, runner.past_seconds))
        return self.cpu_seconds


class Command:
    """A command from its start until it is forgotten.

    ``on_end`` is called once: when its leader ended, when it could not be started, or when it was stopped and nothing of it is
    left. ``stop_reason`` is None, "timeout", "cpu", "killed", "cancelled" or "disk". ``exit_status`` is None while it runs.
    """

    def __init__(self, ident: str, output: Output, reactor: Reactor, on_end: Callable[[Command], None]) -> None:
        self.id = ident
        self.output = output
        self.runner: Runner | None = None
        self.started = 0.0
        self.ended = 0.0
        self.exit_status: int | None = None
        self.fault: Fault | None = None
        self.stop_reason: str | None = None
        self.stall: dict[str, Any] = {}  # what kept it from ending in time, see ``waiting.explain_stall``
        self.stopping = False
        self.tree_empty = False
        self.survivors = 0
        self.collateral: tuple[str, ...] = ()
        self.timer: Timer | None = None
        self.state_fd: int | None = None
        self.withdraw: Callable[[], None] = lambda: None  # takes it back from the spawner if it was not started yet
        self.on_exec: Callable[[], None] | None = None
        # What `send` needs: a terminal with this many rows and columns, or a standard input that stays open.
        self.window_size: tuple[int, int] | None = None
        self.keeps_stdin_open = False
        self.in_background = False
        self.user: User | None = None
        self.input: Input | None = None
        self.reported_bytes = 0
        self.answered = False  # whether its caller has an answer about it
        self.refusals: dict[tuple[str, ...], dict[str, Any]] = {}  # see ``network.refusals``
        self.resources = ResourceUse()
        self.stream: OutputStream | None = None
        # From the request, for lists of commands: "text", "session", "background", "timeout_seconds".
        self.details: dict[str, Any] = {}
        self._on_reaped: Callable[[], None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.running = True  # until the leader has ended
        self._on_end = on_end
        self._reactor = reactor
        self._pipes: dict[int, int] = {}
        self._gathering: set[int] = set()  # pipes that are not watched for a moment

    @property
    def finished(self) -> bool:
        """Whether nothing more can come from it: it has ended, and so has everything it started."""
        return not self.running and self.tree_empty and not self._pipes

    @property
    def outcome(self) -> tuple[int | None, str | None]:
        """(exit code, signal name); both are None while it runs."""
        killed = self.stopping and not self.running and (self.runner is not None or self.stop_reason == "killed")
        if self.exit_status is None and killed:  # and the runner has not reported it yet, or there was none
            return None, "SIGKILL"
        return parse_status(self.exit_status)

    def start(self, spawner: Spawner, spec: Spec, stdin: bytes | int, cwd_fd: int | None) -> None:
        """Start it. ``stdin`` is bytes or a descriptor, ``cwd_fd`` the folder to start in. Takes over both descriptors.

        Sends the spec first, and prepares to read the output while the leader starts.
        """
        self.started = time.monotonic()
        opened = [fd for fd in (stdin, cwd_fd) if isinstance(fd, int)]
        try:
            descriptors = self._open_descriptors(spawner, spec, stdin, cwd_fd, opened)
            self.withdraw = spawner.spawn(spec, descriptors, self._on_packet, self._on_spawned)
        except OSError as error:
            self.close()
            for fd in opened:
                os.close(fd)
            self.fault = fault_of(error, "")
            self.tree_empty = True
            self.end()
        for fd in self._pipes:
            if self.window_size is None:
                os.set_blocking(fd, False)
            self._watch(fd)

    def _open_descriptors(
        self, spawner: Spawner, spec: Spec, stdin: bytes | int, cwd_fd: int | None, opened: list[int]
    ) -> list[int]:
        """Return the command's descriptors; each one that is opened is also added to ``opened``. Raises OSError.

        Pipes and terminals belong to the command's user, who may open /dev/stderr and the like again; files in memory may be
        opened by everybody.
        """
        ends: list[int] = []
        if self.window_size is not None:
            with spawner.acting_as(spec.user):
                self.input, master, (stdin, *ends) = open_terminal(self._reactor, *self.window_size)
            opened += [stdin, *ends]
            self._pipes[master] = STDOUT
        else:
            for stream, (read, write) in zip((STDOUT, STDERR), spawner.open_pipes(2, spec.user), strict=True):
                opened.append(write)
                ends.append(write)
                self._pipes[read] = stream
        if not isinstance(stdin, int):
            stdin = self._open_input(spawner, spec.user, stdin)
            opened.append(stdin)
        if cwd_fd is not None:
            ends.append(cwd_fd)
        elif spec.state_fd is not None:
            self.state_fd = _open_state_file()
            ends.append(os.dup(self.state_fd))
            opened.append(ends[-1])
        return [stdin, *ends]

    def _open_input(self, spawner: Spawner, user: User | None, data: bytes) -> int:
        """Open the standard input: a pipe that stays open if it has to, else what ``data`` can be read from."""
        if not data and not self.keeps_stdin_open:
            return os.dup(spawner.empty)
        if len(data) > STDIN_IN_PIPE_BYTES:
            return open_memory_file(data)
        ((read, write),) = spawner.open_pipes(1, user)
        if self.keeps_stdin_open:
            self.input = input_through(self._reactor, read, write)
        else:
            os.write(write, data)
            os.close(write)
        return read

    def _on_spawned(self, runner: Runner) -> None:
        self.runner = runner

    def _on_packet(self, packet: bytes) -> None:
        """Take a packet of the runner, see ``launcher.c``."""
        kind = packet[:1]
        if kind == b"G" and self.on_exec is not None:
            self.on_exec()
        elif kind == b"E":
            self.fault = _start_fault(packet)
        elif kind == b"K":
            self.resources.add_report(packet)
        elif kind == b"X":
            _, status, alone, *_ = packets.STATUS.unpack(packet)
            self.resources.add_report(packet)
            self.tree_empty = bool(alone)
            self._leader_ended(status)
        elif kind == b"Z" or not packet:
            if packet:
                self.resources.add_report(packet)
            self.tree_empty = True
            if self.exit_status is None:
                self._leader_ended(signal.SIGKILL)  # the runner itself was killed: a kill of everything
            self._notify()

    def _leader_ended(self, status: int) -> None:
        self.exit_status = status
        if not self.stopping:
            self.end()
        elif self._on_reaped is not None:
            self._on_reaped()

    def cpu_used(self) -> float:
        """Return the processor time in seconds of the whole tree until now, dead or alive, as far as the kernel shows it."""
        if self.runner is not None and not self.tree_empty:
            return self.resources.add_living(self.runner)
        return self.resources.cpu_seconds or 0.0

    def count_left_running(self) -> int:
        """Return how many processes it left running; 0 while its leader runs."""
        if self.tree_empty or self.runner is None or self.running:
            return 0
        return len(find_descendants(self.runner.pid))

    def when_reaped(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the runner has reported how the leader ended, at the latest after REAP_SECONDS."""
        if self.exit_status is not None or not self.running:
            then()
            return

        def once() -> None:
            if self._on_reaped is not None:
                self._on_reaped = None
                timer.cancel()
                then()

        self._on_reaped = once
        timer = self._reactor.after(REAP_SECONDS, once)

    def end(self) -> None:
        """Read what is still in the pipes and report the end. The second call does nothing."""
        if not self.running:
            return
        self.ended = time.monotonic()
        if self.timer is not None:
            self.timer.cancel()
        for fd in list(self._pipes):
            if self.window_size is not None:
                self._drain_terminal(fd)
            else:
                self._drain(fd)
        if self.input is not None:
            self.input.release()
        self.end_stream()
        self.running = False
        self._on_end(self)
        self._notify()

    def listen(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` when there is more output, when the command ends, and when nothing of it is left.

        Returns a function that stops this.
        """
        self._listeners.append(call)
        return lambda: self._listeners.remove(call) if call in self._listeners else None

    def _notify(self) -> None:
        for call in tuple(self._listeners):
            call()

    def end_stream(self) -> None:
        """Stop sending the output to the host: from now on the command does not wait for a reader."""
        if self.stream is not None:
            self._resume()
            self.stream = None

    def _readable(self, fd: int) -> None:
        for earlier in tuple(self._gathering):  # both streams stay in the order of arrival
            self._read(earlier, GATHER_PIPE_BYTES)
        size = self._read(fd, READ_BYTES) if fd in self._pipes else 0
        if self.stream is None:
            if size < READ_BYTES and self.output.total > MUCH_OUTPUT_BYTES and fd in self._pipes:
                self._gather(fd)
        elif self.stream.full:
            self.stream.on_room = self._resume
            for pipe in self._pipes:
                self._reactor.unwatch(pipe)

    def _gather(self, fd: int) -> None:
        """Let the pipe fill for a moment before it is read again, if it can be made large enough for that."""
        if _widen(fd, GATHER_PIPE_BYTES):
            self._gathering.add(fd)
            self._reactor.unwatch(fd)
            self._reactor.after(GATHER_SECONDS, lambda: self._watch_again(fd))

    def _watch_again(self, fd: int) -> None:
        if fd in self._gathering:
            self._gathering.discard(fd)
            self._watch(fd)

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
                self.stream.send(self._pipes[fd], data)
            self._notify()
            if len(data) == USUAL_PIPE_BYTES:
                _widen(fd, WIDE_PIPE_BYTES)
        else:
            self._forget_pipe(fd)
            self._notify()
        return len(data)

    def _drain(self, fd: int) -> None:
        """Read what was in the pipe when the leader ended, and no more: what it left behind may write forever."""
        if self.tree_empty and not self._read(fd, READ_BYTES):  # mostly nothing is left, and no writer
            return
        waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        left = waiting[0]
        while left > 0 and (size := self._read(fd, min(left, READ_BYTES))):
            left -= size
        if not left and self.tree_empty and fd in self._pipes:
            self._read(fd, READ_BYTES)  # end of file

    def _drain_terminal(self, fd: int) -> None:
        """Read what is left in a terminal, less than READ_BYTES, and close it: it was hung up with its leader."""
        left = READ_BYTES
        while left > 0 and fd in self._pipes and (size := self._read(fd, left)):
            left -= size
        if fd in self._pipes:
            self._forget_pipe(fd)

    def _forget_pipe(self, fd: int) -> None:
        self._reactor.forget(fd)
        os.close(fd)
        del self._pipes[fd]
        self._gathering.discard(fd)

    def close(self) -> None:
        """Release descriptors and the spill file, before the command is forgotten."""
        for fd in list(self._pipes):
            self._forget_pipe(fd)
        if self.input is not None:
            self.input.release()
        self.take_state()
        self.output.discard()

    def take_state(self) -> bytes:
        """Return what the shell wrote as its state, once; b"" from the second call on."""
        if self.state_fd is None:
            return b""
        fd, self.state_fd = self.state_fd, None
        try:
            return os.pread(fd, min(os.lseek(fd, 0, os.SEEK_CUR), STATE_LIMIT), 0)
        finally:
            os.close(fd)


def describe_end(command: Command) -> dict[str, Any]:
    """Return how ``command`` ended: its exit code or signal, and the reason if it was stopped."""
    exit_code, signal_name = command.outcome
    return {
        "id": command.id,
        "exit_code": exit_code,
        "signal": signal_name,
        "reason": command.stop_reason,
        "seconds": command.details.get("timeout_seconds"),
        **command.stall,
    }


def describe_command(command: Command) -> str:
    """Return the id of a command with the beginning of its text, like "c3 (make test)"."""
    text = str(command.details.get("text", ""))
    beginning = text if len(text) <= NAMED_CHARS else text[:NAMED_CHARS] + "..."
    return f"{command.id} ({beginning})" if beginning else command.id


def parse_status(status: int | None) -> tuple[int | None, str | None]:
    """Return (exit code, signal name) of a wait status, of which exactly one is None; both are None without a status."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        from signal import Signals

        number = os.WTERMSIG(status)
        try:
            return None, Signals(number).name
        except ValueError:
            return None, f"SIG{number}"
    return os.WEXITSTATUS(status), None


def _start_fault(report: bytes) -> Fault:
    """Return the fault for a runner's report that a command could not be started."""
    _, at, number = packets.FAILURE.unpack(report)
    stage = packets.STAGES[at]
    code = _START_FAULTS.get((stage, number), "io_error")
    return Fault(code, errno=os.strerror(number), stage=stage, number=number)


def _open_state_file() -> int:
    """Open a file in memory that cannot grow: what a command wrote there would stay after the kernel has killed it for memory."""
    fd = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, STATE_LIMIT)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _widen(fd: int, size: int) -> bool:
    """Enlarge the pipe of a command that prints a lot. Returns whether it now has ``size`` bytes or more."""
    try:
        return fcntl.fcntl(fd, F_GETPIPE_SZ) >= size or fcntl.fcntl(fd, F_SETPIPE_SZ, size) >= size
    except OSError:  # a terminal; or the user's share of pipe memory is used up
        return False
