"""One ``run`` from its request to its reply. Lives in the reactor's thread."""

from __future__ import annotations

import os
import time
from functools import partial

from ..loop.reactor import Timer
from ..protocol.faults import Fault, internal_fault
from ..watch import limit_hits as hits
from ..watch.cpu_limit import CpuWatch
from . import sessions, shell_state
from .command import Command
from .sessions import Session
from .terminal import TERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..users import User
    from .feeding import Feed
    from .processes import Processes
    from .streaming import OutputStream

    Reply = Callable[[dict[str, Any], bytes], None]


TEXT_CHARS = 500  # of a command's text
# Who waited for longer in the queue of a session is told for what.
QUIET_SECONDS = 1.0


class Job:
    """One ``run`` from its request to its reply."""

    def __init__(self, processes: Processes, session: Session, args: dict[str, Any], reply: Reply) -> None:
        self._processes = processes
        self._session = session
        self._args = args
        self._reply: Reply | None = reply
        self._foreground = False
        self._command: Command | None = None
        self._patience: Timer | None = None
        self._turn: Callable[[], None] | None = None
        self._waited: list[dict[str, Any]] = []

    def wait_for_session(self, event: Callable[[str], None]) -> None:
        """Wait for the session's foreground command to end, for ``timeout_seconds`` at most; ``event`` gets "queued", "started"."""
        session, began, holder = self._session, time.monotonic(), self._session.holder

        def turn() -> None:
            seconds = time.monotonic() - began
            if seconds > QUIET_SECONDS:
                words = {"id": holder, "session": self._args["session"], "seconds": round(seconds, 1)}
                self._waited = [{"code": "waited_for_session", **words}]
            self._forget_queue()
            event("started")
            self.start_foreground()

        event("queued")
        self._turn = turn
        session.waiting.append(turn)
        if self._args["timeout_seconds"] is not None:
            self._patience = self._processes.reactor.after(self._args["timeout_seconds"], self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        self._forget_queue()
        held = {"id": self._session.holder, "session": self._args["session"]}
        self._answer({"fault": Fault("timeout", seconds=self._args["timeout_seconds"], queued=True, **held)})

    def _forget_queue(self) -> None:
        """It waits no longer: what is given up must not pile up behind a command that goes on for long."""
        if self._patience is not None:
            self._patience.cancel()
        if self._turn is not None and self._turn in self._session.waiting:
            self._session.waiting.remove(self._turn)
        self._patience = self._turn = None

    def start_foreground(self) -> None:
        """Start as the session's one foreground command."""
        self._foreground = self._session.busy = True
        self.start()

    def start(self) -> None:
        """Start; faults are answered."""
        try:
            self._start()
        except Fault as fault:
            self._answer({"fault": fault})
            self._release()
        except Exception as error:  # the session goes on
            self._answer({"fault": internal_fault(error, "run")})
            self._release()

    def _start(self) -> None:
        p, args = self._processes, self._args
        spec = self._spec()
        keep = args["keep_output_bytes"]
        command = self._command = p.new_command(keep, self._ended)
        if self._foreground:
            self._session.holder = command.id
        command.about = _about(args)
        command.user = self._session.user
        self._before = hits.Before(p.cgroup)
        command.stream = args.get("stream")
        stdin = (
            args["stdin"].encode("utf-8", "surrogateescape")
            if isinstance(args.get("stdin"), str)
            else args.get("stdin") or b""
        )
        if self._args.get("background"):
            command.on_begin = self._began
        if args.get("pty"):
            command.window = (args["rows"], args["cols"])
        command.stays_open = bool(args.get("stays_open")) or args.get("feed") is not None
        command.stays = bool(args.get("background")) or args.get("wait_seconds") is not None
        if args.get("wait_seconds") is not None:
            self._patience = p.reactor.after(args["wait_seconds"], self._still_running)
        seconds = args.get("timeout_seconds")
        if args.get("cpu_seconds") is not None:
            CpuWatch(p, command, args["cpu_seconds"])
        if seconds is not None:
            command.timer = p.reactor.after(seconds, lambda: p.stall(command, partial(self._late, command)))
        with p.spawner.acting_as_user:
            p.changes.begin()
        command.start(p.spawner, spec, stdin, None)
        feed: Feed | None = args.get("feed")
        if feed is not None and command.input is not None:
            feed.attach(command.input)
        if args.get("pty") and stdin and command.input is not None:
            command.input.write(stdin)

    def _spec(self) -> dict[str, Any]:
        args, session = self._args, self._session
        env = {**session.env, **self._given_env()}
        cwd = session.cwd
        if args.get("cwd"):
            cwd = os.path.join(os.fsdecode(self._processes.place.workspace), args["cwd"])
        if args.get("argv"):
            argv, state_fd = list(args["argv"]), None
        else:
            shell = self._processes.shell
            if shell is None:
                raise Fault("shell_not_found")
            carried = shell_state.restoring(session.functions, session.variables, env)
            argv, state_fd = sessions.shell_argv(shell[0], shell[1], args["command"], carried), shell[1]
        if any("\0" in text for text in (*argv, cwd, *env, *env.values())):
            raise Fault("invalid_arguments", problem="a NUL character in the command, its folder or its environment")
        return {
            "argv": argv, "env": env, "cwd": cwd, "state_fd": state_fd,
            "announce": bool(args.get("background")) and args.get("wait_seconds") is None,
            "terminal": bool(args.get("pty")),
            "user": None if session.user is None else _identity(session.user),
        }  # fmt: skip

    def _given_env(self) -> dict[str, str]:
        """Variables of this run alone."""
        return {**({"TERM": TERM} if self._args.get("pty") else {}), **(self._args.get("env") or {})}

    def _began(self) -> None:
        """A background command is on its way: answer with its id."""
        if self._command is not None:
            self._answer({"result": {"id": self._command.id, "running": True, "cwd": self._session.cwd}})

    def _still_running(self) -> None:
        """The caller's patience is over before the command is: say so, and what it waits for."""
        command = self._command
        if command is not None and command.running and not command.stopping and self._reply is not None:
            self._processes.look(command, self._answer_running)

    def _answer_running(self, wait: dict[str, Any] | None) -> None:
        command = self._command
        if command is None or not command.running or command.stopping or self._reply is None:
            return
        seconds = self._args["wait_seconds"]
        segments, blob = command.output.shown()
        result = {**so_far(command), "running": True, "waiting_for": wait, "cwd": self._session.cwd}
        notice = {"code": "still_running", "id": command.id, "seconds": seconds, "wait": wait}
        if self._foreground:
            notice["session"] = self._args["session"]
        command.told_bytes = command.output.total
        self._answer({"result": result, "segments": segments, "notices": [notice]}, blob)
        command.end_stream()  # nobody reads it from now on

    def _late(self, command: Command, stall: dict[str, Any] | None) -> None:
        """The command's time is over: remember what kept it from ending, and leave nothing of it running."""
        if command.running and not command.stopping:
            command.stall = stall or {}
            self._processes.stop(command, "timeout", lambda _: None)

    def _ended(self, command: Command) -> None:
        if self._patience is not None:
            self._patience.cancel()
        processes = self._processes
        if self._reply is None and command.fault is None:
            processes.endings.note(command, 0 if command.stopping else processes.left_below(command))
        state = command.take_state()
        notices: list[dict[str, Any]] = []
        if (
            self._foreground
            and command.stop_reason is None
            and command.fault is None
            and self._args.get("argv") is None
        ):
            notices = self._keep_state(state)
        if command.fault is not None:
            processes.changes.skip(command.id)
            self._place_fault(command.fault)
            self._answer({"fault": command.fault})
        else:
            result, noticed = self._report(command)
            segments, blob = command.output.shown()
            answer: dict[str, Any] = {"result": result, "segments": segments, "notices": notices + noticed}
            if (fault := self._fault_of(command)) is not None:
                answer["fault"] = fault
            self._answer(answer, blob)
            command.output.settle()
        self._release()
        if not command.running and command.fault is not None:
            processes.commands.pop(command.id, None)
            command.close()

    def _fault_of(self, command: Command) -> Fault | None:
        """The fault of a command that was stopped before it ended by itself."""
        if command.stop_reason == "cancelled":
            return Fault("cancelled", effects="unknown")
        if command.stop_reason == "timeout":
            seconds = self._args["timeout_seconds"]
            cpu = command.spent.cpu_seconds
            return Fault("timeout", seconds=seconds, survivors=command.survivors, used=cpu, effects="unknown", **command.stall)
        if command.stop_reason == "cpu":
            limit, used = self._args["cpu_seconds"], command.spent.cpu_seconds
            return Fault("cpu_limit", seconds=limit, used=used, survivors=command.survivors, effects="unknown")
        return None

    def _place_fault(self, fault: Fault) -> None:
        """Say which program or folder it was; a session whose folder is gone goes back to the workspace."""
        if fault.code == "working_directory_invalid":
            fault.fields["cwd"] = self._args.get("cwd") or self._session.cwd
            fault.fields |= self._why_not_there(fault.fields["cwd"], fault.fields["number"])
            if not self._args.get("cwd"):
                fault.fields["reset"] = True
                self._session.cwd = os.fsdecode(self._processes.place.workspace)
        elif self._args.get("argv"):
            fault.fields["program"] = self._args["argv"][0]

    def _why_not_there(self, folder: str, number: int) -> dict[str, Any]:
        """What explains that a command cannot start in a folder, which may be anywhere in the sandbox."""
        from ..files.path_problems import explain
        from ..files.roots import Roots

        user = self._session.user
        with self._processes.spawner.acting_as(None if user is None else _identity(user)):
            return explain(Roots(self._processes.place.workspace, (b"/",)), number, folder)

    def _keep_state(self, data: bytes) -> list[dict[str, Any]]:
        """Take over what the shell left; notices of what could not be kept."""
        state = sessions.parse_state(data)
        if state is None:
            if len(data) == sessions.STATE_LIMIT:
                return [{"code": "session_not_kept", "names": []}]
            lost = sessions.changes_state(self._args["command"])
            return [{"code": "session_not_kept", "cwd": self._session.cwd}] if lost else []
        given = {"cwd": self._args.get("cwd"), "env": self._given_env()}
        dropped = sessions.next_state(self._session, given, state)
        return [{"code": "session_not_kept", "names": dropped}] if dropped else []

    def _report(self, command: Command) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        processes, output = self._processes, command.output
        exit_code, signal = command.outcome
        left = 0 if command.stopping else processes.left_below(command)
        if left:
            command.cpu_used()
        killed, of_memory = hits.memory(processes, command, self._before)
        result = {
            **so_far(command), "exit_code": exit_code, "signal": signal, "left_running": left, "cwd": self._session.cwd, **killed,
        }  # fmt: skip
        notices: list[dict[str, Any]] = []
        if left:
            notices.append({"code": "left_running", "id": command.id, "count": left})
        if output.truncated:
            notices.append({"code": "output_cut", "bytes": output.total, "path": result["spill_path"]})
        notices += of_memory
        changed = self._changes(command, left)
        if changed is not None:
            notices.append(changed)
        if command.collateral:
            notices.append({"code": "others_killed", "ids": list(command.collateral)})
        notices += hits.others(processes, command, self._before)
        notices += self._clues(command)
        told = any(notice["code"] == "too_many_processes" for notice in notices)
        return result, notices + processes.headroom.notices(command.stop_reason == "disk", told)

    def _clues(self, command: Command) -> list[dict[str, Any]]:
        """Notices of why the command failed; of one that nobody waits for they come with the next answer."""
        if command.outcome[0] in (None, 0):
            return []
        from .clues import clues

        given = {**self._args, "cwd": self._args.get("cwd") or self._session.cwd, "user": self._session.user}
        found = clues(self._processes, command, given)
        if self._reply is None:
            for notice in found:
                self._processes.endings.tell({"id": command.id, **notice, "of": command.id})
            return []
        return found

    def _changes(self, command: Command, left: int) -> dict[str, Any] | None:
        """The notice of the files that changed; where nobody is waiting for this answer, it is told with another."""
        processes = self._processes
        if self._reply is None:
            processes.changes.skip(command.id)
            return None
        with processes.spawner.acting_as_user:
            return processes.changes.look(command.id, command.ended - command.started, left > 0)

    def _answer(self, fields: dict[str, Any], blob: bytes = b"") -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if self._command is not None:
            self._command.answered = True
            fields["notices"] = [*fields.get("notices", ()), *self._command.refusals.values()]
        if self._waited:
            fields["notices"] = [*self._waited, *fields.get("notices", ())]
        stream: OutputStream | None = self._args.get("stream")
        if stream is None:
            reply(fields, blob)
        else:
            stream.finish(lambda: reply(fields, blob))

    def _release(self) -> None:
        if self._foreground:
            self._foreground = False
            self._next()

    def _next(self) -> None:
        if self._session.waiting:
            self._session.waiting.popleft()()
        else:
            self._session.busy = False

    def cancel(self) -> None:
        """Stop the command, or take it out of the queue."""
        if self._command is None:
            self._forget_queue()
            self._answer({"fault": Fault("cancelled", effects="none")})
        elif self._command.running:
            self._processes.stop(self._command, "cancelled", lambda _: None)


def _identity(user: User) -> dict[str, Any]:
    return {"uid": user.uid, "gid": user.gid, "groups": list(user.groups)}


def _about(args: dict[str, Any]) -> dict[str, Any]:
    """What is remembered of a request: a command is listed as long as its output is kept."""
    text = args["command"] if args.get("argv") is None else " ".join(args["argv"])
    return {
        "text": text[:TEXT_CHARS], "session": args.get("session"), "background": bool(args.get("background")),
        "timeout_seconds": args["timeout_seconds"],
    }  # fmt: skip


def so_far(command: Command) -> dict[str, Any]:
    """What is known of a command whether it has ended or not."""
    output = command.output
    until = time.monotonic() if command.running else command.ended
    return {
        "id": command.id, "output_bytes": output.total, "truncated": output.truncated,
        "spill_path": os.fsdecode(output.path) if output.has_spill else None,
        "spill_truncated": output.truncated and output.spill_truncated,
        "duration_ms": round((until - command.started) * 1000, 3),
        "cpu_seconds": command.spent.cpu_seconds if command.spent.cpu_seconds is None else round(command.spent.cpu_seconds, 6),
        "max_rss_bytes": command.spent.max_rss_bytes,
    }  # fmt: skip
