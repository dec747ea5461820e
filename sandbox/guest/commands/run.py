"""One ``run`` from its request to its reply. Lives in the reactor's thread."""

from __future__ import annotations

import os
import time

from .. import users
from ..builtin import partial
from ..loop.reactor import Timer
from ..protocol.faults import Fault, internal_fault
from . import limit_hits, sessions
from .command import Command, describe_command
from .cpu_limit import CpuLimit
from .launch.packets import Spec
from .plain_commands import is_plain
from .processes import MOST_NAMED, Processes
from .sessions import Session
from .terminal import TERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .processes import Reply
    from .streams import InputStream, OutputStream


TEXT_CHARS = 500  # of a command's text that is remembered
# Ended commands whose output can still be read; older ones are forgotten together with their spill files.
REMEMBERED = 64
# A run that waited for its session longer than this says so in a notice.
UNNOTICED_WAIT_SECONDS = 1.0
# How long before the end of a command's time it is found out what keeps it from ending. Not at the end: the command has to be gone
# 0.25 s later, and beside a hundred processes that compute the look can take half of that.
LOOK_AHEAD_SECONDS = 0.2


def run(processes: Processes, args: dict[str, Any], reply: Reply, event: Callable[[str], None]) -> Callable[[], None]:
    """Carry out ``run``. Returns a function that cancels it. Raises Fault.

    The reply is {"result", "segments", "notices"} or {"fault"}, and a blob. ``event`` gets "queued" and "started" if the run has to
    wait for its session.
    """
    name = args.get("session")
    plain = name is not None and args.get("argv") is None and is_plain(args["command"])
    table = processes.sessions
    user = table.find_user(args.get("user"))
    if args.get("needs_session") and not table.has(name, user):
        raise Fault("session_not_found", session=str(name))
    session = table.get(name, user) if name is not None else table.make(user)
    _check_count(processes, _goes_to_background(args))
    request = RunRequest(processes, session, args, reply, plain)
    if args.get("background") or name is None:
        request.start()
    elif session.busy:
        request.wait_for_session(event)
    else:
        request.start_foreground()
    return request.cancel


def _check_count(processes: Processes, in_background: bool) -> None:
    """Raise Fault if as many commands run as the limits allow."""
    running = [c for c in processes.alive if c.running and c.in_background == in_background]
    if in_background:
        most = processes.place.limits["background_commands"]
        if len(running) >= most:
            raise Fault("too_many_commands", limit=most, live=[describe_command(c) for c in running[-MOST_NAMED:]])
    else:
        most = processes.place.limits["concurrent_actions"]
        if len(running) >= most:
            raise Fault("too_many_commands", limit=most, what="actions")


def _forget_oldest(processes: Processes) -> None:
    """Forget the commands that ended first, if too many are remembered."""
    while len(processes.commands) - len(processes.alive) > REMEMBERED:
        old = next((c for c in processes.commands.values() if not c.running and c.tree_empty), None)
        if old is None:
            break
        old.close()
        del processes.commands[old.id]


def _goes_to_background(args: dict[str, Any]) -> bool:
    return bool(args.get("background")) or args.get("wait_seconds") is not None


class RunRequest:
    """One ``run`` from its request to its reply. A ``plain`` command changes nothing of its session but the folder."""

    def __init__(self, processes: Processes, session: Session, args: dict[str, Any], reply: Reply, plain: bool) -> None:
        self._processes = processes
        self._session = session
        self._args = args
        self._reply: Reply | None = reply
        self._foreground = False
        self._command: Command | None = None
        self._wait_timer: Timer | None = None
        self._turn: Callable[[], None] | None = None
        self._wait_notices: list[dict[str, Any]] = []
        self._plain = plain
        self._stall: dict[str, Any] = {}

    def wait_for_session(self, event: Callable[[str], None]) -> None:
        """Wait for the session's foreground command to end, for at most ``timeout_seconds``, then start."""
        session, began, holder = self._session, time.monotonic(), self._session.holder

        def turn() -> None:
            seconds = time.monotonic() - began
            if seconds > UNNOTICED_WAIT_SECONDS:
                fields = {"id": holder, "session": self._args["session"], "seconds": round(seconds, 1)}
                self._wait_notices = [{"code": "waited_for_session", **fields}]
            self._leave_queue()
            event("started")
            self.start_foreground()

        event("queued")
        self._turn = turn
        session.waiting.append(turn)
        if self._args["timeout_seconds"] is not None:
            self._wait_timer = self._processes.reactor.after(self._args["timeout_seconds"], self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        self._leave_queue()
        holder = {"id": self._session.holder, "session": self._args["session"]}
        self._answer({"fault": Fault("timeout", seconds=self._args["timeout_seconds"], queued=True, **holder)})

    def _leave_queue(self) -> None:
        """Stop waiting: requests that were given up must not pile up behind a command that goes on for long."""
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        if self._turn is not None and self._turn in self._session.waiting:
            self._session.waiting.remove(self._turn)
        self._wait_timer = self._turn = None

    def start_foreground(self) -> None:
        """Start as the session's one foreground command."""
        self._foreground = self._session.busy = True
        self.start()

    def start(self) -> None:
        """Start the command. Faults go into the reply."""
        try:
            self._start()
        except Fault as fault:
            self._answer({"fault": fault})
            self._give_up()
        except Exception as error:  # the session goes on
            self._answer({"fault": internal_fault(error, "run")})
            self._give_up()

    def _give_up(self) -> None:
        """Release the session, after stopping the command if it was started: it must not run on without its deadline."""
        if self._command is not None and self._command.running:
            self._processes.stop(self._command, "cancelled", lambda _: None)  # ``_ended`` releases the session
        else:
            self._release_session()

    def _start(self) -> None:
        processes, args = self._processes, self._args
        spec, stdin = self._spec(), _stdin(args)
        self._counters_before = limit_hits.Counters(processes.cgroup)
        processes.changes.begin(processes.spawner.acting_as_user)
        command = self._command = processes.new_command(args["keep_output_bytes"], self._ended)
        if self._foreground:
            self._session.holder = command.id
        command.details = _details(args)
        command.user = self._session.user
        command.stream = args.get("stream")
        if args.get("background"):
            command.on_exec = self._began
        if args.get("pty"):
            command.window_size = (args["rows"], args["cols"])
        command.keeps_stdin_open = bool(args.get("stays_open")) or args.get("feed") is not None
        command.in_background = _goes_to_background(args)
        if args.get("wait_seconds") is not None:
            self._wait_timer = processes.reactor.after(args["wait_seconds"], self._still_running)
        if args.get("cpu_seconds") is not None:
            CpuLimit(processes, command, args["cpu_seconds"])
        command.start(processes.spawner, spec, stdin, None)
        _forget_oldest(processes)
        if args.get("timeout_seconds") is not None and command.running:
            seconds = args["timeout_seconds"]
            ahead = min(LOOK_AHEAD_SECONDS, seconds / 2)
            command.timer = processes.reactor.after(seconds - ahead, partial(self._look_for_stall, command, ahead))
        processes.memory_watch.wake()
        source: InputStream | None = args.get("feed")
        if source is not None and command.input is not None:
            source.attach(command.input)
        if args.get("pty") and stdin and command.input is not None:
            command.input.write(stdin)

    def _spec(self) -> Spec:
        """Return what the leader is to start. Raises Fault."""
        args, session = self._args, self._session
        own, added = self._own_env(), {}
        env = {**session.env, **own} if own else session.env
        cwd = session.cwd
        if args.get("cwd"):
            cwd = os.path.join(os.fsdecode(self._processes.place.workspace), args["cwd"])
        if args.get("argv"):
            argv, state_fd = list(args["argv"]), None
        else:
            shell = self._processes.shell
            if shell is None:
                raise Fault("shell_not_found")
            state_fd = shell[1] if self._foreground else None
            self._plain = self._plain and state_fd == sessions.STATE_FD_OF_BASH and not sessions.may_start_customized(session, env)
            carried = sessions.build_carried_arguments(session.functions, session.variables, env)
            adds_shell = self._processes.isolated and "SHELL" not in env and sessions.is_bash(shell[0])
            if adds_shell:
                uid = self._processes.place.uid if session.user is None else session.user.uid
                added["SHELL"] = users.find_login_shell(uid)
            argv = sessions.build_shell_argv(
                shell[0], state_fd, args["command"], carried, plain=self._plain, unexport_shell=adds_shell
            )
        return Spec(
            argv,
            env,
            cwd,
            added=added,
            state_fd=state_fd,
            user=session.user,
            announce=bool(args.get("background")) and args.get("wait_seconds") is None,
            terminal=bool(args.get("pty")),
        )

    def _own_env(self) -> dict[str, str]:
        """Return the variables that are set for this run alone."""
        return {**({"TERM": TERM} if self._args.get("pty") else {}), **(self._args.get("env") or {})}

    def _began(self) -> None:
        """Answer with the id of a background command that is about to exec."""
        if self._command is not None:
            self._answer({"result": {"id": self._command.id, "running": True, "cwd": self._session.cwd}})

    def _still_running(self) -> None:
        """Answer after ``wait_seconds``, while the command goes on, with what it waits for."""
        command = self._command
        if command is not None and command.running and not command.stopping and self._reply is not None:
            self._processes.find_wait(command, self._answer_running)

    def _answer_running(self, wait: dict[str, Any] | None) -> None:
        command = self._command
        if command is None or not command.running or command.stopping or self._reply is None:
            return
        seconds = self._args["wait_seconds"]
        segments, blob = command.output.segments()
        result = {
            **_result_so_far(command, command.output.fields()),
            "running": True,
            "waiting_for": wait,
            "cwd": self._session.cwd,
        }
        notice = {"code": "still_running", "id": command.id, "seconds": seconds, "wait": wait}
        if self._foreground:
            notice["session"] = self._args["session"]
        command.reported_bytes = command.output.total
        self._answer({"result": result, "segments": segments, "notices": [notice]}, blob)
        command.end_stream()  # it has no reader from now on

    def _look_for_stall(self, command: Command, left: float) -> None:
        """Find what keeps a command from ending, ``left`` seconds before its time is over; it is stopped then in any case."""
        late = time.monotonic() - command.timer.due if command.timer is not None else 0.0
        command.timer = self._processes.reactor.after(left - late, partial(self._timed_out, command))
        self._processes.find_stall(command, self._keep_stall)

    def _keep_stall(self, stall: dict[str, Any] | None) -> None:
        self._stall = stall or {}

    def _timed_out(self, command: Command) -> None:
        if command.running and not command.stopping:
            command.stall = self._stall
            self._processes.stop(command, "timeout", lambda _: None)

    def _ended(self, command: Command) -> None:
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        processes = self._processes
        if self._reply is None and command.fault is None:
            left = 0 if command.stopping else command.count_left_running()
            processes.pending_notices.add_end(command, left)
        state = command.take_state()
        if command.fault is not None:
            processes.changes.skip(command.id)
            self._add_place(command.fault)
            self._answer({"fault": command.fault})
        else:
            notices = self._keep_state(command, state)
            answer, blob = self._report(command, notices)
            if (fault := self._fault_of(command)) is not None:
                answer["fault"] = fault
            self._answer(answer, blob)
        for notice in processes.headroom.look_late():
            processes.pending_notices.add(notice)
        self._release_session()
        if not command.running and command.fault is not None:
            processes.commands.pop(command.id, None)
            command.close()

    def _fault_of(self, command: Command) -> Fault | None:
        """Return the fault of a command that was stopped before it ended by itself."""
        if command.stop_reason == "cancelled":
            return Fault("cancelled", effects="unknown")
        used = command.resources.cpu_seconds
        fields: dict[str, Any] = {"survivors": command.survivors, "used": used, "effects": "unknown"}
        if command.stop_reason == "timeout":
            return Fault("timeout", seconds=self._args["timeout_seconds"], **fields, **command.stall)
        if command.stop_reason == "cpu":
            return Fault("cpu_limit", seconds=self._args["cpu_seconds"], **fields)
        return None

    def _add_place(self, fault: Fault) -> None:
        """Add to ``fault`` which program or folder it is about. A session whose folder is gone returns to the workspace."""
        if fault.code == "working_directory_invalid":
            fault.fields["cwd"] = self._args.get("cwd") or self._session.cwd
            fault.fields |= self._explain_missing(fault.fields["cwd"], fault.fields["number"])
            if not self._args.get("cwd"):
                fault.fields["reset"] = True
                self._session.cwd = os.fsdecode(self._processes.place.workspace)
        elif fault.fields.get("stage") == "exec":
            self._explain_program(fault)

    def _explain_program(self, fault: Fault) -> None:
        """Add which program could not be started, and why. A shell that cannot be started is as good as none."""
        from .launch.start_problems import explain_start

        argv, shell = self._args.get("argv"), self._processes.shell
        program = argv[0] if argv else shell[0] if shell is not None else ""
        fault.fields["program"] = program
        if fault.code in ("program_not_found", "program_not_executable"):
            path = {**self._session.env, **self._own_env()}.get("PATH", "/bin:/usr/bin")
            cwd = os.path.join(self._session.cwd, self._args.get("cwd") or "")
            with self._processes.spawner.acting_as(self._session.user):
                fault.fields |= explain_start(program, path, cwd)
            if not argv:
                fault.code = "shell_not_found"

    def _explain_missing(self, folder: str, number: int) -> dict[str, Any]:
        """Explain why a command cannot start in a folder, which may be anywhere in the sandbox."""
        from ..files.path_problems import explain
        from ..files.roots import Roots

        with self._processes.spawner.acting_as(self._session.user):
            return explain(Roots(self._processes.place.workspace, (b"/",)), number, folder)

    def _keep_state(self, command: Command, data: bytes) -> list[dict[str, Any]]:
        """Take over the state that the shell left. Returns notices of what does not carry over."""
        if not self._foreground or command.stop_reason is not None or self._args.get("argv") is not None:
            return []
        if self._plain and (folder := sessions.parse_folder(data)) is not None:
            return self._go_on_in(folder)
        state = None if self._plain else sessions.parse_state(data)
        if state is None:
            if len(data) == sessions.STATE_LIMIT:
                return [{"code": "session_not_kept", "names": []}]
            lost = sessions.may_change_state(self._args["command"])
            return [{"code": "session_not_kept", "cwd": self._session.cwd}] if lost else []
        dropped = sessions.update_session(self._session, self._own_env(), state)
        notices = [{"code": "session_not_kept", "names": dropped}] if dropped else []
        return [*notices, *self._go_on_in(state[0])]

    def _go_on_in(self, folder: str) -> list[dict[str, Any]]:
        """Have the session go on in the folder where its command ended. Returns a notice if no command could start there."""
        if self._args.get("cwd") is not None:  # it was for this command alone
            return []
        if len(os.fsencode(folder)) > sessions.LONGEST_FOLDER:
            return [{"code": "session_not_kept", "cwd": self._session.cwd, "longest": sessions.LONGEST_FOLDER}]
        self._session.cwd = folder
        return []

    def _report(self, command: Command, notices: list[dict[str, Any]]) -> tuple[dict[str, Any], bytes]:
        """Return the answer for a command that has ended, with ``notices`` and more of them, and its output."""
        exit_code, signal = command.outcome
        left = 0 if command.stopping else command.count_left_running()
        if left:
            command.cpu_used()
        hits = self._counters_before.find_hits(self._processes, command)
        changed, clues = self._changes(command, left), self._clues(command)
        output, segments, blob = command.output.finish()  # from now on its tail may be gone
        if left:
            notices.append({"code": "left_running", "id": command.id, "count": left})
        if output["truncated"]:
            notices.append({"code": "output_cut", "bytes": output["output_bytes"], "path": output["spill_path"]})
        notices += hits.memory_notices
        if changed is not None:
            notices.append(changed)
        if command.collateral:
            notices.append({"code": "others_killed", "ids": list(command.collateral)})
        notices += hits.other_notices
        notices += clues
        out_of_processes = any(notice["code"] == "too_many_processes" for notice in notices)
        if self._reply is not None:  # else another answer has to tell
            seconds = command.ended - command.started
            notices += self._processes.headroom.notices(command.stop_reason == "disk", out_of_processes, seconds)
        result = {
            **_result_so_far(command, output),
            "exit_code": exit_code,
            "signal": signal,
            "left_running": left,
            "cwd": self._session.cwd,
            **hits.fields,
        }
        return {"result": result, "segments": segments, "notices": notices}, blob

    def _clues(self, command: Command) -> list[dict[str, Any]]:
        """Return notices of why the command failed. If its caller has an answer already, the next answer has them."""
        if command.outcome[0] in (None, 0):
            return []
        from .clues import find_clues

        args = {**self._args, "cwd": self._args.get("cwd") or self._session.cwd, "user": self._session.user}
        found = find_clues(self._processes, command, args)
        if self._reply is None:
            for notice in found:
                self._processes.pending_notices.add({"id": command.id, **notice, "of": command.id})
            return []
        return found

    def _changes(self, command: Command, left: int) -> dict[str, Any] | None:
        """Return the notice of the files that changed. If the caller has an answer already, a later command reports them."""
        processes = self._processes
        if self._reply is None:
            processes.changes.skip(command.id)
            return None
        others = any(other is not command and not other.tree_empty for other in processes.alive)
        acting, goes_on = processes.spawner.acting_as_user, left > 0 or command.survivors > 0
        return processes.changes.look(command.id, command.ended - command.started, goes_on, others, acting)

    def _answer(self, fields: dict[str, Any], blob: bytes = b"") -> None:
        """Reply with ``fields``, once, after the stream of the output."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if self._command is not None:
            self._command.answered = True
            fields["notices"] = [*fields.get("notices", ()), *self._command.refusals.values()]
        if self._wait_notices:
            fields["notices"] = [*self._wait_notices, *fields.get("notices", ())]
        stream: OutputStream | None = self._args.get("stream")
        if stream is None:
            reply(fields, blob)
        else:
            stream.finish(lambda: reply(fields, blob))

    def _release_session(self) -> None:
        """Let the next run of the session start."""
        if not self._foreground:
            return
        self._foreground = False
        if self._session.waiting:
            self._session.waiting.popleft()()
        else:
            self._session.busy = False

    def cancel(self) -> None:
        """Stop the command, or take the request out of the queue."""
        if self._command is None:
            self._leave_queue()
            self._answer({"fault": Fault("cancelled", effects="none")})
        elif self._command.running:
            self._processes.stop(self._command, "cancelled", lambda _: None)


def _stdin(args: dict[str, Any]) -> bytes:
    stdin = args.get("stdin")
    return stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin or b""


def _details(args: dict[str, Any]) -> dict[str, Any]:
    """Return what is remembered of a request as long as its command is listed."""
    text = args["command"] if args.get("argv") is None else " ".join(args["argv"])
    return {
        "text": text[:TEXT_CHARS],
        "session": args.get("session"),
        "background": bool(args.get("background")),
        "timeout_seconds": args["timeout_seconds"],
        "request_id": args.get("request_id"),
    }


def _result_so_far(command: Command, output: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the result that is known whether the command has ended or not; ``output`` is that of its output."""
    resources = command.resources
    until = time.monotonic() if command.running else command.ended
    return {
        "id": command.id,
        **output,
        "duration_ms": round((until - command.started) * 1000, 3),
        "cpu_seconds": None if resources.cpu_seconds is None else round(resources.cpu_seconds, 6),
        "max_rss_bytes": resources.max_rss_bytes,
    }
