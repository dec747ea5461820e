"""Answer commands from a test's table, in the form in which the guest reports them."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from sandbox.errors import ErrorCode, OperationError
from sandbox.frozen import dataclass
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.protocol.output_offsets import find_start_offset

HOME, SPILL, WORKSPACE = "/home/agent", "/run/gamebox", "/workspace"
STDOUT, STDERR = 1, 2
# What ``wait_for`` waits for, and how much of the output the answer of a wait has.
KINDS = ("port", "log", "file", "exit")
LAST_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRun:
    """A command that the table is to answer; ``command`` is the shell text, or argv quoted for a shell."""

    command: str
    argv: tuple[str, ...] | None
    cwd: str
    env: Mapping[str, str]
    stdin: bytes
    session: str | None
    background: bool
    timeout_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command does. ``seconds`` is how long it would take: more than its timeout is a failure. No time really passes.

    In the background, a command that takes any time runs until it is killed. ``cwd`` and ``exports`` are what it leaves to its
    session, ``left_running`` is the number of processes it leaves behind. More ``cpu_seconds`` than the limit are a failure, too.
    """

    stdout: str | bytes = b""
    stderr: str | bytes = b""
    exit_code: int = 0
    signal: str | None = None
    oom_killed: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    left_running: int = 0
    cwd: str | None = None
    exports: Mapping[str, str] = field(default_factory=dict)


Reply = str | bytes | Ran | Mapping[str, Any]
Answer = Reply | Callable[[FakeRun], Reply]
Table = Mapping[str | re.Pattern[str], Answer] | Callable[[FakeRun], Reply | None]


@dataclass(slots=True)
class _Command:
    id: str
    run: FakeRun
    ran: Ran
    output: bytes
    truncated: bool = False
    running: bool = False
    killed: bool = False


class Commands:
    """The commands of one fake sandbox. A key of the table is the exact command, or a pattern that must match all of it.

    ``ask`` sends an operation on files to the guest and returns its result and the bytes that it streams back, or raises Fault.
    """

    def __init__(
        self, table: Table, ask: Callable[..., tuple[dict[str, Any], bytes]], limits: Mapping[str, Any]
    ) -> None:
        self._table, self._ask, self._limits = table, ask, limits
        self._known: dict[str, _Command] = {}
        self._state: dict[str, tuple[str, dict[str, str]]] = {}

    def run(self, args: dict[str, Any], stdin: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the reply to ``run``. Raises OperationError for a command that is not in the table."""
        session: Any = args.get("session")
        background = bool(args.get("background"))
        if args.get("user") not in (None, "agent", "1000"):
            raise Fault("user_not_allowed", user=args["user"], own="agent")
        if args.get("needs_session") and session not in self._state:
            raise Fault("session_not_found", session=session)
        cwd, exports = self._state.get(session, (WORKSPACE, {}))
        requested_cwd = args.get("cwd")
        run = FakeRun(
            command=args["command"] if args.get("argv") is None else shlex.join(args["argv"]),
            argv=None if args.get("argv") is None else tuple(args["argv"]),
            cwd=cwd if requested_cwd is None else posixpath.normpath(posixpath.join(WORKSPACE, requested_cwd)),
            env={**exports, **(args.get("env") or {})},
            stdin=stdin,
            session=session,
            background=background,
            timeout_seconds=args["timeout_seconds"],
        )
        ran = self._answer(run)
        wait = args.get("wait_seconds")
        if args.get("pty") or (wait is not None and ran.seconds > wait):
            raise _unable("cannot talk with a command that runs")
        keep = args["keep_output_bytes"]
        command = self._started(run, ran, keep)
        if background:
            command.running = ran.seconds > 0
            return {"result": {"id": command.id, "running": True, "cwd": cwd}}, b""
        timed_out = run.timeout_seconds is not None and ran.seconds > run.timeout_seconds
        if not timed_out and session is not None and run.argv is None:
            cwd = ran.cwd if ran.cwd and requested_cwd is None else cwd
            self._state[session] = (cwd, {**exports, **ran.exports})
        cpu = args.get("cpu_seconds")
        if cpu is not None and ran.cpu_seconds > cpu:
            over = Fault("cpu_limit", seconds=cpu, used=cpu, survivors=0, effects="unknown")
            return self._report(command, cwd, keep, over)
        late = Fault("timeout", seconds=run.timeout_seconds, survivors=0, effects="unknown") if timed_out else None
        return self._report(command, cwd, keep, late)

    def _answer(self, run: FakeRun) -> Ran:
        answer: Any = None
        if callable(self._table):
            answer = self._table(run)
        else:
            for key, value in self._table.items():
                if run.command == key or (isinstance(key, re.Pattern) and key.fullmatch(run.command)):
                    answer = value
                    break
        if callable(answer):
            answer = answer(run)
        if answer is None:
            raise OperationError(
                ErrorCode.operation_not_supported,
                f"This fake sandbox has no answer for the command {run.command!r}.",
                "Add it to FakeEnvironment(commands=...), or use LocalEnvironment to run commands for real.",
            )
        return _ran_from(answer)

    def _started(self, run: FakeRun, ran: Ran, keep: int) -> _Command:
        ident = f"c{len(self._known) + 1}"
        output = _bytes(ran.stdout) + _bytes(ran.stderr)
        command = self._known[ident] = _Command(ident, run, ran, output, len(output) > keep)
        if command.truncated:
            spilled = output[: self._limits["spill_bytes"]]
            self._ask("upload", {"path": f"{SPILL}/{ident}.log", "kind": "file", "mode": 0o644}, body=[spilled])
        return command

    def _report(self, command: _Command, cwd: str, keep: int, fault: Fault | None) -> tuple[dict[str, Any], bytes]:
        ran, total = command.ran, len(command.output)
        stopped = fault is not None
        seconds = fault.fields["seconds"] if fault is not None and fault.code == "timeout" else ran.seconds
        command.killed = stopped
        signal = "SIGKILL" if stopped else ran.signal
        spill = f"{SPILL}/{command.id}.log" if command.truncated else None
        left = 0 if stopped else ran.left_running
        result = {
            "id": command.id,
            "exit_code": None if signal else ran.exit_code,
            "signal": signal,
            "oom_killed": ran.oom_killed and not stopped,
            "output_bytes": total,
            "truncated": command.truncated,
            "spill_path": spill,
            "spill_truncated": command.truncated and total > self._limits["spill_bytes"],
            "left_running": left,
            "cwd": cwd,
            "duration_ms": seconds * 1000,
            "cpu_seconds": ran.cpu_seconds,
        }
        notices: list[dict[str, Any]] = []
        if left:
            notices.append({"code": "left_running", "id": command.id, "count": left})
        if spill:
            notices.append({"code": "output_cut", "bytes": total, "path": spill})
        if result["oom_killed"]:
            limit = self._limits["memory_bytes"]
            notices.append({"code": "out_of_memory", "kills": 1, "limit": limit, "certain": True})
        segments, blob = _both_ends(((STDOUT, _bytes(ran.stdout)), (STDERR, _bytes(ran.stderr))), keep)
        reply: dict[str, Any] = {"result": result, "segments": segments, "notices": notices}
        if fault is not None:
            reply["fault"] = fault
        return reply, blob

    def logs(self, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the result of ``logs``."""
        command = self._find(args["id"])
        size = min(args["max_bytes"], self._limits["read_bytes"])
        total = len(command.output)
        start = min(find_start_offset(_Written(command.output), args, size), total)
        if args["follow"] and command.running and start == total:
            raise _unable("cannot wait for more output of a command that runs")
        data = command.output[start : start + size]
        return {
            "id": command.id,
            "offset": start,
            "next_offset": start + len(data),
            "total_bytes": total,
            "kept_bytes": total,
            **_state_of(command),
            "left_running": 0 if command.running or command.killed else command.ran.left_running,
        }, data

    def kill(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``kill``."""
        command = self._find(args["id"])
        if args["signal"] and command.running:
            return {"id": command.id, "signal": args["signal"], "signalled": 1}
        left = 1 if command.running else 0 if command.killed else command.ran.left_running
        command.killed = command.killed or command.running or left > 0
        command.running = False
        return {"id": command.id, "killed": left} if left else {"id": command.id, "already_ended": True}

    def wait_for(self, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the reply to ``wait_for`` for the present state: no time passes here, and no port is ever open."""
        command = None if args["id"] is None else self._find(args["id"])
        kind = next(name for name in KINDS if args[name] not in (None, False))
        state: dict[str, Any] = {"condition": kind}
        if command is not None:
            state |= {"id": command.id, **_state_of(command)}
        seen = self._seen(args, command)
        last = b"" if command is None else command.output[-LAST_BYTES:]
        if seen is not None:
            return {"result": {**state, **seen}}, last if kind == "exit" else b""
        named: dict[str, Any] = {} if command is None else {"id": command.id}
        names = ("port", "host", "log", "literal", "file", "contains")
        what: dict[str, Any] = named | {name: args[name] for name in names if args[name]}
        if command is not None and not command.running and not command.ran.left_running:
            fault = Fault("command_ended", **what, **_state_of(command))
        else:
            running = command is not None and command.running
            fault = Fault("not_ready", **what, waited=args["timeout_seconds"], running=running)
        return {"result": state, "fault": fault}, last

    def _seen(self, args: dict[str, Any], command: _Command | None) -> dict[str, Any] | None:
        if args["log"] is not None and command is not None:
            pattern = re.compile(re.escape(args["log"]) if args["literal"] else args["log"])
            start = find_start_offset(_Written(command.output), args, self._limits["read_bytes"])
            at = min(start, len(command.output))
            for line in command.output[at:].splitlines(keepends=True):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if found := pattern.search(text):
                    return {"line": text, "groups": found.groups(), "offset": at, "next_offset": at + len(line)}
                at += len(line)
        if args["file"] is not None:
            return {"path": args["file"]} if self._holds(args["file"], args["contains"]) else None
        return {} if args["exit"] and command is not None and not command.running else None

    def _holds(self, path: str, text: str | None) -> bool:
        """Return whether something is at the path, and contains the text, if one is given. Raises Fault."""
        try:
            if text is None:
                return bool(self._ask("stat", {"path": path}))
            found, data = self._ask("download", {"path": path})
        except Fault as fault:
            if fault.code not in ("path_not_found", "not_a_directory"):
                raise
            return False
        return found["kind"] == "file" and text.encode("utf-8", "surrogateescape") in data

    def processes(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``processes``: the commands, without processes; of those that ended, the latest first."""
        listed = list(self._known.values()) if args["id"] is None else [self._find(args["id"])]
        ended = [c for c in reversed(listed) if not c.running]
        return {
            "commands": [
                {
                    "id": c.id,
                    "command": c.run.command[:1000],
                    "session": c.run.session,
                    "background": c.run.background,
                    "output_bytes": len(c.output),
                    "seconds": 0.0 if c.running else c.ran.seconds,
                    **_state_of(c),
                }
                for c in [*(c for c in listed if c.running), *ended]
            ]
        }

    def unable(self, operation: str, ident: str) -> OperationError:
        """Return the failure of an operation that needs a live command. Raises Fault for an unknown id."""
        command = self._find(ident)
        if not command.running:
            raise Fault("command_ended", id=ident, **_state_of(command))
        return _unable(f"cannot {operation}")

    def open_session(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``open_session``."""
        if args["session"] in self._state:
            raise Fault("session_exists", session=args["session"])
        self._state[args["session"]] = (WORKSPACE, {})
        return {"session": args["session"], "cwd": WORKSPACE}

    def sessions(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``sessions``."""
        return {"sessions": [{"name": name, "cwd": cwd} for name, (cwd, _) in self._state.items()]}

    def end_session(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``end_session``."""
        return {"session": args["session"], "existed": self._state.pop(args["session"], None) is not None}

    def running(self) -> list[str]:
        """Return the ids of the running commands."""
        return [command.id for command in self._known.values() if command.running]

    def _find(self, ident: str) -> _Command:
        if ident not in self._known:
            running = [f"{c.id} ({str(c.run.command)[:60]})" for c in self._known.values() if c.running]
            raise Fault("unknown_command", id=ident, known=list(self._known)[-10:], live=running[-10:])
        return self._known[ident]


def _state_of(command: _Command) -> dict[str, Any]:
    signal = None if command.running else "SIGKILL" if command.killed else command.ran.signal
    ended = not command.running and signal is None
    return {
        "running": command.running,
        "signal": signal,
        "exit_code": command.ran.exit_code if ended else None,
        "stop_reason": "killed" if command.killed else None,
    }


class _Written:
    """All output of a command, which can be read as that of a real one."""

    def __init__(self, data: bytes) -> None:
        self.total = len(data)
        self._data = data

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """Return the offset, and at most ``size`` bytes from there."""
        return offset, self._data[offset : offset + size]


def _both_ends(written: Sequence[tuple[int, bytes]], keep: int) -> tuple[list[list[int]], bytes]:
    """Return what a result has of the output, half of ``keep`` bytes from each end, as the guest sends it.

    That is segments ``[stream, length, 0 for head or 1 for tail]``, and their bytes joined.
    """
    total = sum(len(data) for _, data in written)
    head_end = keep - keep // 2
    segments: list[list[int]] = []
    kept = b""
    for part, begin, end in ((0, 0, head_end), (1, max(head_end, total - keep // 2), total)):
        at = 0
        for stream, data in written:
            piece = data[max(0, begin - at) : max(0, end - at)]
            at += len(data)
            if piece:
                segments.append([stream, len(piece), part])
                kept += piece
    return segments, kept


def _unable(what: str) -> OperationError:
    return OperationError(
        ErrorCode.operation_not_supported,
        f"This fake sandbox {what}: its commands are a table.",
        "Use LocalEnvironment to run commands for real.",
    )


def _ran_from(answer: Reply) -> Ran:
    if isinstance(answer, Ran):
        return answer
    if isinstance(answer, Mapping):
        unknown = set(answer) - {f.name for f in fields(Ran)}
        if unknown:
            raise TypeError(f"no field of Ran: {', '.join(sorted(unknown))}")
        return Ran(**answer)
    return Ran(stdout=answer)


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
