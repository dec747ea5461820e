"""Commands of the sandbox: run, logs, kill, and the helper programs of other operations. Lives in the reactor's thread."""

from __future__ import annotations

import os
import re
from functools import partial

from .. import users
from ..loop.context import Finished, Place
from ..loop.reactor import Reactor
from ..protocol.faults import Fault
from ..state.changes import Tracker
from ..watch import cgroup
from ..watch.headroom import Headroom
from ..watch.memory_watch import MemoryWatch
from ..watch.process_tree import descendants, kill_below
from . import sessions
from .command import Command, named, outcome
from .end_notices import Endings, signal_tree
from .jobs import Job
from .killer import Killer
from .output import SETTLED_BYTES, Output
from .sessions import Session
from .spawner import Spawner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..users import User
    from ..watch.disk import DiskWatch
    from ..watch.lifetime import Lifetime
    from ..watch.servers import Servers
    from .jobs import Reply

    Look = Callable[[Command, Callable[[dict[str, Any] | None], None]], None]

# Ended commands whose output can still be asked for; older ones are forgotten with their spill files.
REMEMBERED = 64
SHOWN = 10
# The share of the sandbox's memory (one in so many) that the output of all running commands may take: it passes through the
# guest's memory up to three times, and a guest that runs out of it takes the sandbox along.
KEPT_SHARE = 16
# After the death of a runner the kernel hands its children to PID 1, and a busy machine does so late.
STRAY_SECONDS = (0.02, 0.5)


class Processes:
    """Every command by id. Replies are {"result": …, "segments": …, "notices": …} or {"fault": …} and a blob."""

    def __init__(self, reactor: Reactor, spawner: Spawner, place: Place) -> None:
        self.reactor = reactor
        self.spawner = spawner
        self.place = place
        self._killer = Killer(reactor, self._before_everything, spawner.resume)
        self.isolated = os.getpid() == 1
        self.cgroup = cgroup.own()
        self.headroom = Headroom(self)
        self.memory_watch = MemoryWatch(reactor, self.cgroup, place.limits["memory_bytes"], self._at_work)
        # More than so many processors cannot be at work at once.
        self.cpus = max(1.0, float(place.limits["cpus"] if self.isolated else os.cpu_count() or 1))
        self.starts = 0
        self.shell = sessions.find_shell()
        self.look: Look = _no_look
        self.stall: Look = _no_look
        self.disk: DiskWatch | None = None
        self.lifetime: Lifetime | None = None
        spawner.on_lost = self._runner_lost
        self.sessions: dict[str, Session] = {}
        self._others: dict[tuple[str, int], Session] = {}  # of other users than the sandbox's own, by name and uid
        self.commands: dict[str, Command] = {}
        self._count = 0
        self.endings = Endings()
        self._servers: Servers | None = None
        self.changes = Tracker(place, bool(place.limits.get("tell_changes")))

    # --- run ------------------------------------------------------------------
    def run(self, args: dict[str, Any], reply: Reply, event: Callable[[str], None]) -> Callable[[], None]:
        """Carry out ``run``; ``event`` gets "queued" and "started" where it had to wait. Answers a call that cancels it."""
        name = args.get("session")
        user = self._user(args.get("user"))
        if args.get("needs_session") and not self._has_session(name, user):
            raise Fault("session_not_found", session=str(name))
        session = self._session(name, user) if name is not None else self._fresh(user)
        background = bool(args.get("background"))
        stays = background or args.get("wait_seconds") is not None
        most = self.place.limits["background_commands"]
        if stays and sum(c.stays for c in self.commands.values() if c.running) >= most:
            stay = [c for c in self.commands.values() if c.running and c.stays]
            raise Fault("too_many_commands", limit=most, live=[named(c) for c in stay[-SHOWN:]])
        at_once = self.place.limits["concurrent_actions"]
        if not stays and sum(not c.stays for c in self.commands.values() if c.running) >= at_once:
            raise Fault("too_many_commands", limit=at_once, what="actions")
        job = Job(self, session, args, reply)
        if background or name is None:
            job.start()
        elif session.busy:
            job.wait_for_session(event)
        else:
            job.start_foreground()
        return job.cancel

    def _user(self, text: str | None) -> User | None:
        """The user of that name or number; None for the sandbox's own. Raises Fault."""
        place = self.place
        if text is None or text in (place.user, str(place.uid)):
            return None
        found = users.find(text) if self.isolated else None
        if found is not None and found.uid == place.uid:
            return None
        if not place.any_user:
            raise Fault("user_not_allowed", user=text, own=place.user or str(place.uid), isolated=self.isolated)
        if found is None:
            raise Fault("user_not_found", user=text)
        return found

    def check_user(self, command: Command, text: str | None) -> None:
        """Raises Fault where ``command`` runs as another user than the sandbox's own, and ``text`` does not name that user."""
        user = command.user
        if user is not None and text not in (user.name, str(user.uid)):
            raise Fault("user_not_allowed", id=command.id, user=user.name)

    def _fresh(self, user: User | None) -> Session:
        environ = dict(self.place.environ)
        if user is not None:
            environ = users.environment(environ, user)
        return Session(os.fsdecode(self.place.workspace), environ, user)

    def _session(self, name: str, user: User | None) -> Session:
        held: dict[Any, Session] = self.sessions if user is None else self._others
        key = name if user is None else (name, user.uid)
        if key not in held:
            if len(self.sessions) + len(self._others) >= self.place.limits["sessions"]:
                most, names = self.place.limits["sessions"], list(self.sessions)[-SHOWN:]
                raise Fault("too_many_commands", limit=most, what="sessions", names=names)
            held[key] = self._fresh(user)
        return held[key]

    def _has_session(self, name: str | None, user: User | None) -> bool:
        return name in self.sessions if user is None else (name, user.uid) in self._others

    def open_session(self, args: dict[str, Any]) -> dict[str, Any]:
        """Make a session. Raises Fault where it is there already."""
        name, user = args["session"], self._user(args.get("user"))
        if self._has_session(name, user):
            raise Fault("session_exists", session=name)
        return {"session": name, "cwd": self._session(name, user).cwd}

    def list_sessions(self, args: dict[str, Any]) -> dict[str, Any]:
        """The result of ``sessions``: those of one user."""
        user = self._user(args.get("user"))
        if user is None:
            known = list(self.sessions.items())
        else:
            known = [(name, session) for (name, uid), session in self._others.items() if uid == user.uid]
        return {"sessions": [{"name": name, "cwd": s.cwd, "busy": s.busy} for name, s in known]}

    def end_session(self, args: dict[str, Any]) -> dict[str, Any]:
        """Forget a session; what runs or waits in it goes on, with a state of its own."""
        user = self._user(args.get("user"))
        name = args["session"]
        ended = self.sessions.pop(name, None) if user is None else self._others.pop((name, user.uid), None)
        return {"session": name, "existed": ended is not None}

    # --- logs, kill ------------------------------------------------------------------
    def logs(self, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Output of a command from an offset on."""
        command = self.find(args["id"])
        start, data = command.output.read(args["offset"], min(args["max_bytes"], self.place.limits["read_bytes"]))
        exit_code, signal = command.outcome
        fields = {
            "id": command.id, "offset": start, "next_offset": start + len(data), "total_bytes": command.output.total,
            "kept_bytes": command.output.spilled or min(command.output.total, start + len(data)), "running": command.running,
            "exit_code": exit_code, "signal": signal, "left_running": self.left_below(command),
            "stop_reason": command.stop_reason, "cpu_seconds": round(command.cpu_used(), 6),
            "max_rss_bytes": command.spent.max_rss_bytes,
        }  # fmt: skip
        return fields, data

    def kill(self, args: dict[str, Any], reply: Reply) -> None:
        """Kill a command and all below its runner, verified."""
        command = self.find(args["id"])
        self.check_user(command, args.get("user"))
        if command.tree_empty or command.runner is None:
            reply({"result": {"id": command.id, "already_ended": True}}, b"")
            return
        if args.get("signal"):
            sent = signal_tree(command, args["signal"])
            reply({"result": {"id": command.id, "signal": args["signal"], "signalled": sent}}, b"")
            return

        def report(killed: int) -> None:
            fields = {
                "id": command.id,
                "killed": killed,
                "survivors": command.survivors,
                "collateral": command.collateral,
            }
            if command.survivors:
                stuck = self._survivor(command)
                reply({"fault": Fault("kill_failed", **stuck, id=command.id, survivors=command.survivors, result=fields)}, b"")
            else:
                reply({"result": fields}, b"")

        self.stop(command, "killed", report)

    def _survivor(self, command: Command) -> dict[str, Any]:
        """What keeps a process of a command that was killed from ending: its state, or the process that traces it."""
        from ..watch.process_stat import Stat

        left = descendants(command.runner.pid) if command.runner is not None else []
        if not left:
            return {}
        try:
            with open(f"/proc/{left[0]}/stat", "rb") as file:
                stat = Stat(file.read(4096))
            with open(f"/proc/{left[0]}/status", "rb") as file:
                tracer = next((line.split()[1].decode() for line in file if line.startswith(b"TracerPid:")), "0")
        except (OSError, ValueError, IndexError):  # it has ended after all
            return {}
        found: dict[str, Any] = {"pid": left[0], "program": stat.name, "state": stat.state}
        return found if tracer == "0" else {**found, "tracer": int(tracer), "tracer_id": self._owner_of(tracer)}

    def stop(self, command: Command, reason: str, report: Callable[[int], None]) -> None:
        """Leave nothing of ``command`` running, end it with ``reason``, then call ``report(killed)``."""
        if command.running:
            command.stop_reason = reason
        command.stopping = True
        if command.runner is None:  # no process was to be had for it
            command.give_up()
            if self.spawner.starved and reason != "cancelled":
                live = [named(c) for c in self.commands.values() if c.runner is not None and not c.tree_empty]
                command.fault = Fault("too_many_processes", limit=self.place.limits["pids"], live=live[-SHOWN:])
            command.tree_empty = True
            command.end()
            report(0)
            return

        runner = command.runner
        runner.unwanted = True
        self.spawner.hold(runner)

        def killed(count: int, survivors: int, hit: tuple[str, ...]) -> None:
            command.survivors = survivors
            command.tree_empty = command.tree_empty or not survivors  # the runner itself says so a moment later
            command.collateral = tuple(ident for ident in hit if ident != command.id)
            command.once_reaped(partial(_end, command, partial(report, count)))
            self.spawner.release(runner)

        self._killer.kill(command.runner.pid, killed)

    def _before_everything(self) -> tuple[str, ...]:
        """Get ready for a kill of everything, in the killer's thread; ids of the commands that it will hit."""
        self.spawner.pause()
        return tuple(c.id for c in list(self.commands.values()) if not c.tree_empty)

    def _runner_lost(self) -> None:
        """A command that shares the guest's uid killed a runner: what was below it must not outlive the command's report."""
        for seconds in STRAY_SECONDS:
            self.reactor.after(seconds, lambda: self._killer.kill(os.getpid(), _nobody_asks, self.spawner.pids))

    def news(self, known: Any) -> list[dict[str, Any]]:
        """Notices for whatever is answered next, but of the command ``known``, of which the answer itself tells."""
        of_time = self.lifetime.notices() if self.lifetime is not None else []
        return [*self.endings.take(known), *self._new_servers(), *of_time]

    def _new_servers(self) -> list[dict[str, Any]]:
        """Notices of ports that what runs by itself has begun to listen on."""
        live = [c for c in tuple(self.commands.values()) if not c.tree_empty]
        if not any(c.stays or not c.running for c in live):
            return []
        if self._servers is None:
            from ..watch.servers import Servers

            self._servers = Servers(self)
        return self._servers.notices(live)

    def touch(self, operation: str) -> None:
        """An operation is asked for: the sandbox is not idle."""
        if self.lifetime is not None:
            self.lifetime.touch(operation)

    def usage(self, _: dict[str, Any]) -> dict[str, Any]:
        """The result of ``usage``."""
        left = self.lifetime.left() if self.lifetime is not None else {}
        return {**self.headroom.usage(), **left}

    def stop_all(self) -> None:
        """Kill every command without waiting for reports; for the end of a guest that is not PID 1."""
        for command in self.commands.values():
            if command.runner is not None and not command.tree_empty:
                kill_below(command.runner.pid)

    def find(self, ident: str) -> Command:
        """The command of that id. Raises Fault ``unknown_command``."""
        command = self.commands.get(ident)
        if command is None:
            live = [c for c in self.commands.values() if not c.tree_empty]
            owner = self._owner_of(ident) if re.fullmatch("[0-9]{1,9}", ident) else None
            shown = [named(c) for c in live[-SHOWN:]]
            raise Fault("unknown_command", id=ident, known=list(self.commands)[-SHOWN:], live=shown, owner=owner)
        return command

    def _owner_of(self, pid: str) -> str | None:
        """The id of the command to which a process belongs."""
        live = [c for c in self.commands.values() if c.runner is not None and not c.tree_empty]
        return next((c.id for c in live if c.runner is not None and int(pid) in descendants(c.runner.pid)), None)

    def left_below(self, command: Command) -> int:
        """How many processes an ended command left running."""
        if command.tree_empty or command.runner is None or command.running:
            return 0
        return len(descendants(command.runner.pid))

    # --- helper programs ------------------------------------------------------------------
    def helper(
        self, spec: dict[str, Any], stdin: bytes | int, cwd_fd: int | None, seconds: float, size: int,
        done: Callable[[Finished | Fault], None],
    ) -> Callable[[], None]:  # fmt: skip
        """Run a program for another operation; it is not listed, keeps no more than ``size`` bytes and leaves nothing.

        Returns a call that ends it at once.
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

    # --- for jobs ------------------------------------------------------------------
    def new_command(self, keep_bytes: int, on_end: Callable[[Command], None]) -> Command:
        """A command with the next id; the oldest ended ones are forgotten."""
        self._count += 1
        self.starts += 1
        held = sum(c.output.keep_bytes for c in self.commands.values() if c.running)
        keep_bytes = min(keep_bytes, max(SETTLED_BYTES, self.place.limits["memory_bytes"] // KEPT_SHARE - held))
        ident = f"c{self._count}"
        path = os.path.join(self.place.spill, ident.encode() + b".log")
        output = Output(path, keep_bytes, self.place.limits["spill_bytes"], self._make_room)
        command = self.commands[ident] = Command(ident, output, self.reactor, on_end)
        self.memory_watch.wake()
        for old in [c for c in self.commands.values() if not c.running and c.tree_empty][:-REMEMBERED]:
            old.close()
            del self.commands[old.id]
        return command

    def _at_work(self) -> bool:
        return any(not c.tree_empty for c in self.commands.values())

    def lone_start(self) -> int | None:
        """A mark for the command that starts now: it is the only one at work while ``starts`` is that; None where it is not."""
        others = sum(not c.tree_empty for c in self.commands.values())
        return self.starts if others <= 1 else None

    def _make_room(self) -> bool:
        """Drop the spill file of the command that ended first; whether there was one."""
        ended = [c for c in self.commands.values() if not c.running and c.output.has_spill]
        if not ended:
            return False
        min(ended, key=lambda c: c.ended).output.discard()
        return True


def _end(command: Command, report: Callable[[], None]) -> None:
    command.end()
    report()


def _nobody_asks(killed: int, survivors: int, hit: tuple[str, ...]) -> None:
    """The report on strays goes nowhere."""


def _no_look(_: Command, report: Callable[[dict[str, Any] | None], None]) -> None:
    report(None)


def _finished(command: Command) -> Finished:
    segments, blob = command.output.shown()
    out, err, at, cut = bytearray(), bytearray(), 0, False
    for stream, length, tail in segments:
        if tail and stream == 1 and not cut:  # what is left of two lines must not read as one
            out += b"\n" * command.output.truncated
            cut = True
        (out if stream == 1 else err).extend(blob[at : at + length])
        at += length
    exit_code, _ = outcome(command.exit_status)
    timed_out = command.stop_reason == "timeout"
    return Finished(None if timed_out else exit_code, bytes(out), bytes(err), command.output.truncated, timed_out)
