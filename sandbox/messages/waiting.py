"""Sentences and hints about waiting: what a running command waits for, and why a ``wait_for`` did not end well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sandbox.errors import ErrorCode
from sandbox.readers import Hint
from sandbox.text.wording import Wording, count_of, duration, one_line

if TYPE_CHECKING:
    from .waiting_for import WaitingFor  # pydantic takes 60 ms to load

Fields = Mapping[str, Any]


def parse_waiting_for(value: Any) -> WaitingFor | None:
    """Return the value that the guest sent; None for None and for an invalid one."""
    from pydantic import ValidationError

    from .waiting_for import WaitingFor

    try:
        return None if value is None else WaitingFor.model_validate(value)
    except ValidationError:
        return None


def _wait_of(f: Fields) -> WaitingFor | None:
    from .waiting_for import WaitingFor

    wait = f.get("wait")
    return wait if isinstance(wait, WaitingFor) else None


def state_of(
    running: bool, exit_code: int | None, signal: str | None, wait: WaitingFor | None, reason: str | None = None
) -> str:
    """Return a clause about a command: "running; waits for input on stdin (…)", "killed by SIGKILL: timeout"."""
    if running:
        return "running" if wait is None else f"running; {wait.to_text()}"
    why = f": {one_line(reason)}" if reason else ""
    return (f"killed by {signal}" if signal else f"exit code {exit_code}") + why


def how_it_ended(f: Fields) -> str:
    """Return a clause about a command that has ended, from the fields that the guest sent: "ended with exit code 3"."""
    reason, seconds = f.get("reason"), f.get("seconds")
    if reason == "timeout" and isinstance(seconds, int | float):
        cause, _ = _cause(f, _wait_of(f), f.get("ports") or [], "")
        return f"was killed: it did not end within {seconds:g} seconds{cause.replace(': ', '; ', 1)}"
    known = {"cpu": "its processor time was used up", "disk": "the disk is full"}
    why = f" ({known.get(str(reason), reason)})" if reason else ""
    if f.get("signal"):
        return f"was killed by {f['signal']}{why}"
    return f"ended with exit code {f.get('exit_code', 'unknown')}{why}"


def timed_out(f: Fields) -> Wording:
    """Word a command that did not end in time: what kept it from ending, and a next step that fits."""
    seconds, wait, ports = f.get("seconds"), _wait_of(f), f.get("ports") or []
    allowed = f"{seconds:g} second{'' if seconds == 1 else 's'}" if isinstance(seconds, int | float) else "its time"
    longer = f"timeout_seconds above {seconds:g}" if isinstance(seconds, int | float) else "a longer timeout_seconds"
    left = f.get("survivors")
    after = f"{left} of its processes could not be killed." if left else "Nothing it started is left running."
    cause, hint = _cause(f, wait, ports, longer)
    if isinstance(seconds, int | float):
        asks = bool(f.get("reads_end")) or (wait is not None and wait.kind == "stdin")
        cli = "Run it so that it asks nothing, as with -y." if asks else f"Give a --timeout above {seconds:g}."
        hint = Hint(hint, cli=cli)
    return Wording(f"The command did not end within {allowed} and was killed{cause}. {after}", hint, "run")


def _cause(f: Fields, wait: WaitingFor | None, ports: list[Any], longer: str) -> tuple[str, str]:
    """Return a clause that says what kept a command from ending, and the hint."""
    process = "" if wait is None else f" ({one_line(wait.program) or 'a program'}, process {wait.pid})"
    if f.get("reads_end"):
        return (
            f": it kept reading an input that has ended{process}",
            "Give the answers with printf 'y\\n' | ... or an option like -y, or use pty=true, wait_seconds and send.",
        )
    if ports:
        first = str(ports[0])
        return (
            f": it was serving port {', '.join(map(str, ports))}{process}",
            f"Start a server with background=true, then use wait_for(port={first}).",
        )
    if wait is None:
        return "", f"Give {longer}, or run it with background=true and look at logs."
    if wait.kind == "stdin":
        hints = {
            "pager": "Add | cat to the command, or turn the pager off (as with git --no-pager).",
            "editor": "Change the file with edit or write; give git its message with -m.",
            "interpreter": "Give it the code as an argument or a file (as python3 -c CODE), or use wait_seconds and send it lines.",
        }
        usual = "Run it so that it asks nothing (as with -y), or with pty=true and wait_seconds, and answer with send."
        return f": it waited for input{process}", hints.get(_kind_of(wait.program), usual)
    if wait.kind == "cpu":
        used = f.get("used")
        cpu = f", {used:.3g} s of processor time used" if isinstance(used, int | float) else ""
        return (
            f": it was computing{process}{cpu}",
            f"If it has a loop that does not end, correct it. Else give {longer}, or run it with background=true.",
        )
    detail = f", {one_line(wait.detail)}" if wait.detail else ""
    if wait.kind == "socket":
        return (
            f": it waited on a socket{process[:-1]}{detail})",
            "Find out why nothing answers there; put a bound on the wait, as with curl --max-time 10.",
        )
    if wait.kind == "lock":
        return (
            f": it waited for a lock{process[:-1]}{detail})",
            "End what holds the lock (see processes), then run it again.",
        )
    if wait.kind == "sleep":
        return (
            f": it was sleeping{process}",
            f"Give {longer}, or run it with background=true; if it waits for an event, use wait_for.",
        )
    return f": {wait.to_text()}", f"Give {longer}, or run it with background=true and look at logs."


def command_ended(f: Fields) -> tuple[str, str]:
    """Return message and hint of the notice that a background command has ended."""
    left = f.get("left")
    more = f" It left {count_of(left, 'process')} running." if left else ""
    longer = ", and give it a longer timeout_seconds" if f.get("reason") == "timeout" else ""
    return (
        f"The command {one_line(str(f.get('name') or f.get('id')))} {how_it_ended(f)}.{more}",
        f"See its output with logs(id={f.get('id')!r}){longer}.",
    )


_PAGERS = frozenset({"less", "more", "most", "man", "pager"})
_EDITORS = frozenset({"vi", "vim", "nvim", "vim.basic", "vim.tiny", "nano", "emacs", "ed", "editor"})
_READS_LINES = ("python", "ipython", "node", "irb", "psql", "sqlite3", "mysql", "gdb", "pdb", "ghci", "R", "lua", "bc")


def _kind_of(program: str) -> str:
    """Return "pager", "editor", "interpreter" or "" for a program that reads its input."""
    if program in _PAGERS:
        return "pager"
    if program in _EDITORS:
        return "editor"
    return "interpreter" if program.rstrip("0123456789.") in _READS_LINES else ""


def _next_step(wait: WaitingFor | None, ident: str) -> str:
    kind = wait.kind if wait is not None else None
    if wait is not None and kind == "stdin":
        hints = {
            "pager": f"Leave the pager with send(id={ident!r}, text='q'); next time add | cat to the command.",
            "editor": f"End the editor with kill(id={ident!r}), and change the file with edit or write.",
            "interpreter": f"It reads lines: send(id={ident!r}, text='...\\n'); end it with send(id={ident!r}, eof=true).",
        }
        if (what := _kind_of(wait.program)) in hints:
            return hints[what]
        return f"Answer with send(id={ident!r}, text='...\\n'), or kill it and run it again so that it asks nothing."
    if kind == "lock":
        return f"End what holds the lock, or wait with send(id={ident!r}, wait_seconds=...); kill ends this one."
    if kind == "socket":
        return (
            f"A server waits like this for its clients: use it from another session, or end it with kill(id={ident!r})."
        )
    return f"Wait on with send(id={ident!r}, wait_seconds=...), look at logs(id={ident!r}), or end it with kill."


def still_running(f: Fields) -> tuple[str, str]:
    """Return message and hint of the notice that a command still runs after ``wait_seconds``."""
    wait, ident, seconds = _wait_of(f), str(f.get("id")), f.get("seconds")
    after = f"after {seconds:g} seconds" if isinstance(seconds, int | float) else "after its wait"
    clause = "" if wait is None else f" and {wait.to_text()}"
    message = f"The command is still running {after} under the id {ident}{clause}."
    return message, _next_step(wait, ident)


def cannot_send(f: Fields) -> Wording:
    """Word the fault of sending something to a command that has ended."""
    return Wording(
        f"The command {f.get('id', '')!r} {how_it_ended(f)}: nothing can be sent to it any more.",
        "Look at its output with logs, or run it again.",
        "logs",
    )


def unmet(f: Fields, still: str = "") -> str:
    """Return which condition does not hold, from the fields of a fault: "port 8000 is not open". ``still`` is "still " or ""."""
    if f.get("port") is not None:
        at = f" at {f['host']}" if f.get("host") else ""
        return f"port {f['port']} is {still}not open{at}"
    if f.get("log") is not None:
        return f"{still}no line of its output {'contains' if f.get('literal') else 'matches'} {f['log']!r}"
    if f.get("file") is not None:
        return f"{f['file']} {still}does not " + (f"contain {f['contains']!r}" if f.get("contains") else "exist")
    return f"{f['id']} is still running" if f.get("id") else f"it is {still}not ready"


def not_ready(f: Fields) -> Wording:
    """Word a wait that ran out of time."""
    waited = f.get("waited")
    after = f"After {duration(round(waited, 1))}" if isinstance(waited, int | float) else "After the wait"
    ident = f.get("id")
    if ident is None:
        hint = "See with processes what runs. Give wait_for the id of the command that should do it, and its output is shown here."
    elif f.get("running"):
        hint = f"{ident} is still running. Call wait_for again, or end it with kill(id={ident!r})."
    else:
        hint = "The command has ended. What it left running may still do it: wait again, or look with processes."
    return Wording(f"{after} {unmet(f, 'still ')}.", hint, "processes" if ident is None else None, True)


def ended_first(f: Fields) -> Wording:
    """Word a wait that ended because its command ended."""
    return Wording(
        f"{f.get('id', 'The command')} {how_it_ended(f)}, and {unmet(f)}.",
        "Its last output says why it ended. Correct that, then run it again.",
        "run",
    )


FAULTS: dict[ErrorCode, Callable[[Fields], Wording]] = {
    ErrorCode.stdin_closed: lambda f: Wording(
        f"The standard input of the command {f.get('id', '')!r} is not open.",
        Hint(
            "It is still running. End it with kill, then run it again with pty=true or wait_seconds: send can then type into it.",
            host="Run it with wait_seconds (and no stdin) or with pty=True: then send can type into it.",
        ),
        "run",
    ),
    ErrorCode.not_a_terminal: lambda f: Wording(
        f"The command {f.get('id', '')!r} has no terminal.",
        "Look at its output with logs; a screen needs a command that was started with pty=true.",
        "logs",
    ),
    ErrorCode.not_ready: not_ready,
    ErrorCode.command_ended: lambda f: ended_first(f) if f.get("operation") == "wait_for" else cannot_send(f),
}
