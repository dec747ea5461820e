"""Commands of the sandbox, by id: making, finding and stopping them. Lives in the reactor's thread."""

from __future__ import annotations

import os

from .. import users
from ..builtin import partial
from ..loop.context import HelperResult, Place
from ..loop.reactor import Reactor
from ..protocol.faults import Fault
from ..state.changes import Tracker
from ..watch import cgroup
from ..watch.headroom import Headroom
from ..watch.memory_watch import MemoryWatch
from ..watch.procfs import find_descendants, read_stat, read_tracer
from . import sessions
from .command import Command, describe_command, parse_status
from .killer import Killer, kill_below, signal_tree
from .launch.packets import Spec
from .launch.spawner import Spawner
from .limit_hits import Counters
from .output import SETTLED_BYTES, Output
from .pending_notices import PendingNotices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..watch.disk_watch import DiskWatch
    from ..watch.lifetime import Lifetime
    from ..watch.new_servers import NewServers

    Reply = Callable[[dict[str, Any], bytes], None]
    # Calls back with what it found about a command, or with None.
    Examine = Callable[[Command, Callable[[dict[str, Any] | None], None]], None]

MOST_NAMED, MOST_RUNNING = 10, 64
# The output of all running commands may take 1/KEPT_SHARE of the sandbox's memory: it passes through the guest's memory up to three
# times, and a guest that runs out of memory takes the sandbox with it.
KEPT_SHARE = 16
# After the death of a runner the kernel hands its children to PID 1, which takes a while on a busy machine.
STRAY_SECONDS = (0.02, 0.5)
REHEARSAL_SECONDS = 10.0
# Signals that end no program by themselves.
ENDS_NOTHING = frozenset({"SIGSTOP", "SIGCONT", "SIGWINCH"})


class Processes:
    """Every command by id, and what all of them share.

    ``find_wait`` and ``find_stall`` examine a running command; ``interaction`` sets them, because they need workers.
    """

    def __init__(self, reactor: Reactor, spawner: Spawner, place: Place) -> None:
        self.reactor = reactor
        self.spawner = spawner
        self.place = place
        self._killer = Killer(reactor, self._prepare_kill_of_everything, spawner.resume)
        self.isolated = os.getpid() == 1
        self.cgroup = cgroup.open_own_cgroup()
        self.headroom = Headroom(place, self.cgroup, self.isolated)
        self.memory_watch = MemoryWatch(reactor, self.cgroup, place.limits["memory_bytes"], self._any_alive)
        # No more processors than this can work at the same time.
        self.cpus = max(1.0, float(place.limits["cpus"] if self.isolated else os.cpu_count() or 1))
        self.starts = 0
        self.shell = sessions.find_shell(place.environ.get("PATH", ""))
        self.sessions = sessions.SessionTable(place, self.isolated)
        self.find_wait: Examine = _find_nothing
        self.find_stall: Examine = _find_nothing
        self.page_readers: Any = None  # ``pages.readers.PageReaders``, once a page was asked for
        self.browser: Any = None  # a ``pages.browser.Browser``, once a page was opened in it
        self.browser_command: Command | None = None  # its driver while it runs
        self.disk: DiskWatch | None = None
        self.lifetime: Lifetime | None = None
        self.commands: dict[str, Command] = {}
        # All of which anything may be left, without the many that ended.
        self.alive: list[Command] = []
        self.pending_notices = PendingNotices()
        self.changes = Tracker(place, bool(place.limits.get("tell_changes")))
        self._count = 0
        self._new_servers: NewServers | None = None
        spawner.on_lost = self._runner_lost

    def new_command(self, keep_bytes: int, on_end: Callable[[Command], None]) -> Command:
        """Make a command with the next id."""
        self._count += 1
        self.starts += 1
        alive = self.alive = [c for c in self.alive if c.running or not c.tree_empty]
        held = sum(c.output.keep_bytes for c in alive if c.running)
        keep_bytes = min(keep_bytes, max(SETTLED_BYTES, self.place.limits["memory_bytes"] // KEPT_SHARE - held))
        ident = f"c{self._count}"
        path = b"%s/%s.log" % (self.place.spill, ident.encode())
        output = Output(path, keep_bytes, self.place.limits["spill_bytes"], self._make_room)
        command = self.commands[ident] = Command(ident, output, self.reactor, on_end)
        alive.append(command)
        return command

    def find(self, ident: str) -> Command:
        """Return the command with that id, or of the run with that request id. Raises Fault ``unknown_command``."""
        asked = (each for each in self.commands.values() if each.details.get("request_id") == ident)
        command = self.commands.get(ident) or next(asked, None)
        if command is None:
            live = [describe_command(c) for c in self.commands.values() if not c.tree_empty]
            owner = self._owner_of(int(ident)) if ident.isascii() and ident.isdecimal() and len(ident) < 10 else None
            known = list(self.commands)[-MOST_NAMED:]
            raise Fault("unknown_command", id=ident, known=known, live=live[-MOST_NAMED:], owner=owner)
        return command

    def check_user(self, command: Command, text: str | None) -> None:
        """Raise Fault if ``command`` runs as another user than the sandbox's own, and ``text`` does not name that user."""
        user = command.user
        if user is not None and text not in (user.name, str(user.uid)):
            raise Fault("user_not_allowed", id=command.id, user=user.name)

    def _owner_of(self, pid: int) -> str | None:
        """Return the id of the command to which a process belongs."""
        for command in self.commands.values():
            if command.runner is not None and not command.tree_empty and pid in find_descendants(command.runner.pid):
                return command.id
        return None

    def is_alone(self) -> bool:
        """Return whether at most one command has processes."""
        return sum(not c.tree_empty for c in self.alive) <= 1

    def _any_alive(self) -> bool:
        return any(not c.tree_empty for c in self.alive)

    def _make_room(self) -> bool:
        """Remove the spill file of the command that ended first. Returns whether there was one."""
        ended = [c for c in self.commands.values() if not c.running and c.output.has_spill]
        if not ended:
            return False
        min(ended, key=lambda c: c.ended).output.discard()
        return True

    def logs(self, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the output of a command from an offset on."""
        command = self.find(args["id"])
        start, data = command.output.read(args["offset"], min(args["max_bytes"], self.place.limits["read_bytes"]))
        exit_code, signal = command.outcome
        fields = {
            "id": command.id,
            "offset": start,
            "next_offset": start + len(data),
            "total_bytes": command.output.total,
            "kept_bytes": command.output.spilled or min(command.output.total, start + len(data)),
            "streams": command.output.streams(start, len(data)),
            "running": command.running,
            "exit_code": exit_code,
            "signal": signal,
            "left_running": command.count_left_running(),
            "stop_reason": command.stop_reason,
            "cpu_seconds": round(command.cpu_used(), 6),
            "max_rss_bytes": command.resources.max_rss_bytes,
        }
        return fields, data

    def kill(self, args: dict[str, Any], reply: Reply) -> None:
        """Kill a command and everything below its runner, or send its processes a signal."""
        command = self.find(args["id"])
        self.check_user(command, args.get("user"))
        if command.tree_empty:
            reply({"result": {"id": command.id, "already_ended": True}}, b"")
            return
        # One that waits for a process must not begin after a signal that would have ended it.
        if args.get("signal") and (command.runner is not None or args["signal"] in ENDS_NOTHING):
            reached = 0
            if command.runner is not None:
                command.runner.unwanted = True
                reached = signal_tree(command.runner.pid, args["signal"])
            reply({"result": {"id": command.id, "signal": args["signal"], "signalled": reached}}, b"")
            return

        def report(killed: int) -> None:
            fields = {
                "id": command.id,
                "killed": killed,
                "survivors": command.survivors,
                "collateral": command.collateral,
            }
            if command.survivors:
                reason = self._survivor(command)
                fault = Fault("kill_failed", **reason, id=command.id, survivors=command.survivors, result=fields)
                reply({"fault": fault}, b"")
            else:
                reply({"result": fields}, b"")

        self.stop(command, "killed", report)

    def _survivor(self, command: Command) -> dict[str, Any]:
        """Return what keeps a killed process of a command from ending: its state, or the process that traces it."""
        pid = next(iter(find_descendants(command.runner.pid) if command.runner is not None else ()), None)
        stat = None if pid is None else read_stat(pid)
        if pid is None or stat is None:  # it has ended after all
            return {}
        found: dict[str, Any] = {"pid": pid, "program": stat.name, "state": stat.state}
        tracer = read_tracer(pid)
        return {**found, "tracer": tracer, "tracer_id": self._owner_of(tracer)} if tracer else found

    def stop(self, command: Command, reason: str, report: Callable[[int], None]) -> None:
        """Kill everything of ``command``, end it with ``reason``, then call ``report(killed)``."""
        if command.running:
            command.stop_reason = reason
        command.stopping = True
        if command.runner is None:  # no process could be created for it
            command.withdraw()
            if self.spawner.starved and reason not in ("cancelled", "killed"):
                live = [
                    describe_command(c) for c in self.commands.values() if c.runner is not None and not c.tree_empty
                ]
                command.fault = Fault("too_many_processes", limit=self.place.limits["pids"], live=live[-MOST_NAMED:])
            command.tree_empty = True
            command.end()
            report(0)
            return

        command.cpu_used()  # now: the runner's own report may come too late for the answer
        runner = command.runner
        runner.unwanted = True
        self.spawner.hold(runner)

        def killed(count: int, survivors: int, hit: tuple[str, ...]) -> None:
            command.survivors = survivors
            command.tree_empty = command.tree_empty or not survivors  # the runner reports it a moment later
            command.collateral = tuple(ident for ident in hit if ident != command.id)
            command.when_reaped(partial(_end, command, partial(report, count)))
            self.spawner.release(runner)

        self._killer.kill(command.runner.pid, killed)

    def _prepare_kill_of_everything(self) -> tuple[str, ...]:
        """Return the ids of the commands that a kill of everything will hit. Called in the killer's thread."""
        self.spawner.pause()
        return tuple(c.id for c in list(self.commands.values()) if not c.tree_empty)

    def _runner_lost(self) -> None:
        """Kill what was below a runner that a command with the guest's uid killed: it must not outlive the command's report."""
        for seconds in STRAY_SECONDS:
            self.reactor.after(seconds, lambda: self._killer.kill(os.getpid(), _ignore, self.spawner.pids))

    def stop_all(self) -> None:
        """Kill every command without waiting for reports, at the end of a guest that is not PID 1."""
        for command in self.commands.values():
            if command.runner is not None and not command.tree_empty:
                kill_below(command.runner.pid)

    def watch_disk(self, disk: dict[str, Any]) -> None:
        """Measure the disk, and stop all commands when it is full; for ``disk`` see ``DiskWatch``."""
        from ..watch.disk_watch import DiskWatch

        watch = DiskWatch(self.reactor, disk, self.place.interpreter, self.spawner.pids.add, self._stop_for_disk)
        self.disk = self.headroom.disk = watch

    def _stop_for_disk(self) -> None:
        for command in list(self.commands.values()):
            if not command.tree_empty and not command.stopping:
                self.stop(command, "disk", lambda _: None)

    def news(self, answered: Any) -> list[dict[str, Any]]:
        """Return notices for the next answer; the end of the command with the id ``answered`` is in the answer itself."""
        of_time = self.lifetime.notices() if self.lifetime is not None else []
        lost = self.place.write_out.notices()
        return [*self.pending_notices.take(answered), *self._server_notices(), *lost, *of_time]

    def _server_notices(self) -> list[dict[str, Any]]:
        """Return notices of ports on which commands in the background, or what commands left behind, began to listen."""
        alive = [c for c in self.alive if not c.tree_empty]
        if not any(c.in_background or not c.running for c in alive):
            return []
        if self._new_servers is None:
            from ..watch.new_servers import NewServers

            self._new_servers = NewServers(self.spawner.acting_as_user, self.isolated)
        return self._new_servers.notices(alive)

    def usage(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``usage``."""
        left = self.lifetime.left() if self.lifetime is not None else {}
        running = [c.id for c in self.commands.values() if c.running][:MOST_RUNNING]
        return {**self.headroom.usage(), "running": running, **left}

    def rehearse(self) -> None:
        """Open ahead what the first command needs, by a ``true`` of our own, which is not listed and leaves nothing."""
        self.changes.get_ready(self.spawner.acting_as_user)
        Counters(self.cgroup)
        if self.shell is not None:
            path, state_fd = self.shell
            env = {**self.place.environ, "SHELL": users.find_login_shell(self.place.uid)}
            spec = Spec(sessions.build_shell_argv(path, state_fd, "true"), env, "/", state_fd=state_fd)
            self.run_helper(spec, b"", None, REHEARSAL_SECONDS, SETTLED_BYTES, lambda _: None)

    def run_helper(
        self,
        spec: Spec,
        stdin: bytes | int,
        cwd_fd: int | None,
        seconds: float,
        size: int,
        done: Callable[[HelperResult | Fault], None],
    ) -> Callable[[], None]:
        """Run a program for another operation, with at most ``size`` bytes of output. It is not listed and leaves nothing.

        Returns a function that ends it at once.
        """
        self.starts += 1
        output = Output(b"", size, 0, lambda: False)
        output.spill_truncated = True  # no spill file

        def ended(command: Command) -> None:
            def finish(_: int = 0) -> None:
                done(command.fault or _finished(command))
                command.close()

            if command.tree_empty or command.stopping:
                finish()
            else:
                self.stop(command, "killed", finish)

        command = Command("helper", output, self.reactor, ended)
        command.timer = self.reactor.after(seconds, lambda: self.stop(command, "timeout", lambda _: None))
        command.start(self.spawner, spec, stdin, cwd_fd)
        return lambda: None if command.stopping else self.stop(command, "cancelled", lambda _: None)


def _end(command: Command, report: Callable[[], None]) -> None:
    command.end()
    report()


def _ignore(killed: int, survivors: int, hit: tuple[str, ...]) -> None:
    """Ignore the killer's report: nothing waits for it."""


def _find_nothing(_: Command, report: Callable[[dict[str, Any] | None], None]) -> None:
    report(None)


def _finished(command: Command) -> HelperResult:
    segments, blob = command.output.segments()
    out, err, at, cut = bytearray(), bytearray(), 0, False
    for stream, length, tail in segments:
        if tail and stream == 1 and not cut:  # the rests of two lines must not read as one
            out += b"\n" * command.output.truncated
            cut = True
        (out if stream == 1 else err).extend(blob[at : at + length])
        at += length
    exit_code, _ = parse_status(command.exit_status)
    timed_out = command.stop_reason == "timeout"
    return HelperResult(None if timed_out else exit_code, bytes(out), bytes(err), command.output.truncated, timed_out)
