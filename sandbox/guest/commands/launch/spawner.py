"""The guest's side of the launcher: hand a spec to a waiting leader and pass on what its runner reports."""

from __future__ import annotations

import errno
import os
import select
import time

from ... import kernel
from ...builtin import deque, signal, socket
from ...loop.reactor import Reactor
from . import packets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...loop.context import Place
    from ...users import User
    from .packets import Spec

    OnPacket = Callable[[bytes], None]

RETRY_SECONDS = 0.02
STARVED_SECONDS = 1.0
MOST_SPARES = 4
# oom_score_adj of commands, and of spares: the memory of a killed command (files in memory) may take some milliseconds to be freed.
# If there was no spare left to kill meanwhile, the kernel killed the guest.
VICTIM = b"1000"
LAUNCHER_FD = 3  # where the launcher finds its end of the socket


class Runner:
    """One runner process; ``pid`` is the root of its command's tree. ``on_packet(b"")`` means that it is gone.

    ``holds`` counts readers of that tree: until it is 0 the runner gets no other command. ``past_seconds`` is the processor time
    of the commands it had before. ``unwanted`` means that the command is being stopped: if it has not begun, it must not begin.
    """

    __slots__ = ("done", "holds", "leader", "on_packet", "past_seconds", "pid", "socket", "unwanted")

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.leader = 0
        self.holds = 0
        self.done = False
        self.unwanted = False
        self.past_seconds = 0.0
        self.socket = sock
        self.on_packet: OnPacket | None = None


class Spawner:
    """Starts processes. Lives in the reactor's thread.

    ``pids`` are the guest's own processes, ``empty`` is a descriptor of /dev/null for reading. ``on_lost`` is called when a command
    has killed its runner.
    """

    def __init__(self, reactor: Reactor, place: Place, isolated: bool) -> None:
        self._reactor = reactor
        self._place = place
        self._isolated = isolated
        self.acting_as_user = kernel.ActingOnFiles(place.uid, place.gid, isolated)
        self.pids: set[int] = set()
        self.empty = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.on_lost: Callable[[], None] | None = None
        self._launcher = 0
        self._fork_failed = 0.0  # when no process could be created, monotonic
        self._paused = False
        self._spares: deque[Runner] = deque()
        self._waiting: deque[Callable[[Runner], None]] = deque()
        self._control = self._launch()
        self._watch_control()

    def acting_as(self, user: User | None) -> kernel.ActingOnFiles:
        """Return ``acting_as_user`` for another user; None stands for the sandbox's own user."""
        return self.acting_as_user if user is None else kernel.ActingOnFiles(user.uid, user.gid, True)

    def open_pipes(self, count: int, user: User | None) -> list[tuple[int, int]]:
        """Return pipes, each as (read, write), that belong to ``user``; None stands for the sandbox's own. Raises OSError."""
        own = self._place.uid if self._isolated else None
        return kernel.open_pipes(count, own if user is None else user.uid)

    def spawn(
        self, spec: Spec, descriptors: list[int], on_packet: OnPacket, started: Callable[[Runner], None]
    ) -> Callable[[], None]:
        """Start ``spec``. ``started(runner)`` is called when a runner has it, ``on_packet`` for each packet after that.

        ``descriptors`` are those of the command, and taken over. Returns a function that withdraws the spec if it has not started
        yet. Raises OSError, and has not taken them over then.
        """
        packet = spec.pack(self._place.uid, self._place.gid)
        if len(packet) > packets.SPEC_IN_PACKET:
            descriptors = [*descriptors, open_memory_file(packet)]
            packet = packets.SPEC_IN_FILE

        def hand_over(runner: Runner) -> None:
            runner.on_packet, runner.unwanted = on_packet, False
            try:
                packets.send(runner.socket, packet, descriptors)
            except OSError:  # killed while it waited
                self._forget(runner)
                self._need(hand_over)
                return
            release()
            started(runner)

        def release() -> None:
            for fd in descriptors:
                os.close(fd)

        def withdraw() -> None:
            if hand_over in self._waiting:
                self._waiting.remove(hand_over)
                release()

        self._need(hand_over)
        return withdraw

    def _need(self, use: Callable[[Runner], None]) -> None:
        """Call ``use`` with a runner as soon as one is ready."""
        if self._spares:
            use(self._spares.popleft())
        else:
            self._waiting.append(use)
        if not self._spares:
            self._refill()

    def _refill(self) -> None:
        try:
            self._control.send(packets.REFILL)
        except OSError:  # the reactor notices its end and starts another
            pass

    def _launch(self) -> socket.socket:
        """Start a launcher, which offers a runner. Returns the socket to it. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            path = self._place.launcher
            move = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), LAUNCHER_FD)]
            pid = os.posix_spawn(path, [path], {}, file_actions=move)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pids.discard(self._launcher)
        self.pids.add(pid)
        self._launcher = pid
        setting = packets.SETTING.pack(self._isolated, self._place.any_user)
        try:
            ours.send(setting + (kernel.filter_program(kernel.MACHINE) or b""))
        except OSError:  # killed already; the reactor notices its end
            pass
        return ours

    def _watch_control(self) -> None:
        self._reactor.watch(self._control.fileno(), select.EPOLLIN, self._on_control)

    def _on_control(self, _: int) -> None:
        try:
            data, descriptors = packets.receive(self._control)
        except OSError:
            data, descriptors = b"", ()
        if data[:1] == b"S" and descriptors:
            pid = packets.READY.unpack(data)[1]
            self._adopt(Runner(pid, socket.socket(fileno=descriptors[0])))
        elif data[:1] == b"N":
            self._fork_failed = time.monotonic()
            self._reactor.after(RETRY_SECONDS, self._refill)
        else:
            self._restart()

    @property
    def starved(self) -> bool:
        """Whether commands wait because no process can be created, not because the machine is slow."""
        return time.monotonic() - self._fork_failed < STARVED_SECONDS

    def pause(self) -> None:
        """Start no new launcher while everything is being killed. May be called from any thread."""
        self._paused = True

    def resume(self) -> None:
        """Undo ``pause``."""
        self._paused = False
        if self._control.fileno() < 0:
            self._restart()

    def _restart(self) -> None:
        if self._control.fileno() >= 0:
            self._reactor.unwatch(self._control.fileno())
            self._control.close()
        if self._paused:
            return
        try:
            self._control = self._launch()
        except OSError:  # no process can be created just now
            self._fork_failed = time.monotonic()
            self._reactor.after(RETRY_SECONDS, self._restart)
            return
        self._watch_control()
        for _ in range(len(self._waiting) - 1):
            self._refill()

    def _adopt(self, runner: Runner) -> None:
        runner.socket.setblocking(False)
        self.pids.add(runner.pid)
        self._reactor.watch(runner.socket.fileno(), select.EPOLLIN, lambda _: self._on_runner(runner))

    def _on_runner(self, runner: Runner) -> None:
        try:
            packet = runner.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        kind = packet[:1]
        if kind == b"L":
            self._ready(runner, packets.READY.unpack(packet)[1])
        elif kind == b"D":
            self._unused(runner, packets.UNUSED.unpack(packet)[1])
        else:
            self._report(runner, kind, packet)

    def _unused(self, runner: Runner, status: int) -> None:
        """Ask for another leader, which takes the command, because the last one was killed before it took one."""
        if runner in self._spares:
            self._spares.remove(runner)
        if runner.unwanted and runner.on_packet is not None:
            self._never_began(runner, status)
            return
        try:
            runner.socket.send(packets.NEXT)
        except OSError:  # the reactor notices its end
            pass

    def _never_began(self, runner: Runner, status: int) -> None:
        """End a command that was stopped before it began, together with its runner."""
        on_packet, runner.on_packet = runner.on_packet, None
        self._forget(runner)
        if on_packet is not None:
            on_packet(packets.STATUS.pack(b"X", status, 1, 0.0, 0))

    def _report(self, runner: Runner, kind: bytes, packet: bytes) -> None:
        runner.done = kind == b"Z" or (kind == b"X" and bool(packets.STATUS.unpack(packet)[2]))
        on_packet = runner.on_packet
        if runner.done:
            runner.on_packet = None
        if on_packet is not None:
            on_packet(packet)
        elif runner in self._spares:  # killed while it waited for a command
            self._spares.remove(runner)
        if not packet:
            self._forget(runner)
            if self._isolated and self._place.any_user and not self._paused and self.on_lost is not None:
                self.on_lost()
        elif runner.done:
            runner.past_seconds += packets.parse_resources(packet)[0]
            self._recycle(runner)

    def _ready(self, runner: Runner, leader: int) -> None:
        runner.leader = leader
        if self._isolated and not self._make_victim(leader):
            self._never_began(runner, signal.SIGKILL)
            return
        if runner.on_packet is not None:  # its last leader was killed before it took the command
            self._let_begin(runner)
            return
        if self._waiting:
            self._waiting.popleft()(runner)
        elif len(self._spares) < MOST_SPARES:
            self._spares.append(runner)
        else:  # many commands ended at once
            self._forget(runner)

    def _make_victim(self, leader: int) -> bool:
        """Make the kernel kill this process, and all that it starts, before the guest when memory runs out.

        The leader cannot do it itself: nothing that the launcher starts may write below /proc. Returns False if a living leader
        would start its command without that.
        """
        try:
            file = os.open(f"/proc/{leader}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, VICTIM)
            finally:
                os.close(file)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ESRCH)  # it was killed
        return True

    def _let_begin(self, runner: Runner) -> None:
        """Let a new leader begin the command that the last one left, unless it was stopped meanwhile."""
        if runner.unwanted:
            self._never_began(runner, signal.SIGKILL)
            return
        try:
            runner.socket.send(packets.GO)
        except OSError:  # the reactor notices its end
            pass

    def hold(self, runner: Runner) -> None:
        """Keep ``runner`` from taking another command until ``release``."""
        runner.holds += 1

    def release(self, runner: Runner) -> None:
        """Undo one ``hold``."""
        runner.holds -= 1
        self._recycle(runner)

    def _recycle(self, runner: Runner) -> None:
        """Give a runner with nothing left below it its next leader, or let it end."""
        if runner.holds or not runner.done or runner.socket.fileno() < 0:
            return
        runner.done = False
        if len(self._spares) >= MOST_SPARES:
            self._forget(runner)
            return
        try:
            runner.socket.send(packets.NEXT)
        except OSError:
            self._forget(runner)

    def _forget(self, runner: Runner) -> None:
        self.pids.discard(runner.pid)
        if runner in self._spares:
            self._spares.remove(runner)
        if runner.socket.fileno() >= 0:
            self._reactor.unwatch(runner.socket.fileno())
            runner.socket.close()
        if not self._spares:
            self._refill()


def open_memory_file(data: bytes) -> int:
    """Return a descriptor of a file in memory that contains ``data``, positioned at its start."""
    memory = os.memfd_create("data", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(memory, view) :]
    os.lseek(memory, 0, os.SEEK_SET)
    return memory


def become_reaper() -> None:
    """Make this process the parent of orphans whose runner was killed."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
