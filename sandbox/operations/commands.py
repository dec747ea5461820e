"""Requests about commands."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from sandbox import results

from .base import Change, Request, User

UNLIMITED = "unlimited"


def _seconds(given: Any) -> Any:
    """Infinity for "unlimited"; it is no number of JSON, and not to be had as one. A model's schema has neither."""
    if given == math.inf:
        raise ValueError('write "unlimited" for no limit')
    return math.inf if given == UNLIMITED else given


TimeoutSeconds = Annotated[Annotated[float, Field(gt=0, allow_inf_nan=True)] | None, BeforeValidator(_seconds)]


class Run(Change):
    """Run a shell command and wait for it, or start it in the background.

    The working folder and exported variables carry over to the next run of the same session. A command that exits with an
    error is still a success of the tool: look at exit_code. After timeout_seconds everything the command started is killed
    and the output so far is returned. Long output is cut in the middle; spill_path then names the file with the rest. Give
    either command (shell text) or argv (a program and its arguments, no shell).

    For a program that asks or is driven by keys, give wait_seconds: after that long the command goes on, with what it waits for in
    waiting_for, and send answers it; with pty=true it has a terminal, and screen shows it. timeout_seconds holds all the same.
    """

    operation: ClassVar[str] = "run"
    result: ClassVar[type[results.Result]] = results.RunResult
    command: str | None = Field(None, description="Shell text.")
    argv: tuple[str, ...] | None = Field(None, min_length=1, description="Program and arguments, run without a shell.")
    cwd: str | None = Field(None, min_length=1, max_length=4096, description="Folder to run in, for this run.")
    env: dict[str, str] | None = Field(None, description="Further environment variables, for this run.")
    secrets: tuple[str, ...] | None = Field(None, description="Names of secrets to give to this run as variables.")
    stdin: str | bytes | None = Field(None, description="What the command reads on standard input.")
    timeout_seconds: TimeoutSeconds = Field(None, description="Kill the command after this many seconds.")
    cpu_seconds: float | None = Field(
        None, gt=0, description="Kill the command when it and all it started have used this much processor time."
    )
    background: bool = Field(False, description="Start the command and return its id at once.")
    session: str | None = Field(
        "default", max_length=64, description="Session whose state to use; null for a clean one."
    )
    keep_output_bytes: int | None = Field(None, ge=0, description="How much output to return at most.")
    wait_seconds: float | None = Field(
        None, ge=0, le=86400, description="Return after this many seconds, with the command still running."
    )
    pty: bool = Field(False, description="Give the command a terminal.")
    rows: int = Field(24, ge=1, le=100, description="Lines of the terminal.")
    cols: int = Field(80, ge=1, le=300, description="Columns of the terminal.")
    user: User = None
    needs_session: bool = Field(
        False, description="Fail if there is no such session yet, instead of making it.", json_schema_extra={"host_only": True}
    )

    def problem(self) -> str | None:
        """Why no process can be started from this; None where one can. Surrogate escapes stand for bytes."""
        if (self.command is None) == (self.argv is None):
            return "give either command or argv"
        env = self.env or {}
        for text in (self.command or "", *(self.argv or ()), self.cwd or "", self.user or "", *env, *env.values()):
            if "\0" in text:
                return "a NUL character in the command, its folder, its user or its environment"
            if not _is_bytes(text):
                return f"{_named(text)} is not valid Unicode"
        if isinstance(self.stdin, str) and not _is_bytes(self.stdin):
            return "stdin is not valid Unicode"
        wrong = next((name for name in env if not name or "=" in name), None)
        return None if wrong is None else f"{_named(wrong)} is no name for a variable"


def _named(text: str) -> str:
    """A text in an error: a long one is not cut, for the cut might leave a part of a secret."""
    return repr(text) if len(text) <= 80 else f"A text of {len(text)} characters"


def _is_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


class Logs(Request):
    """Show the output of a command by its id, from a byte offset on, or its last lines; shows whether it still runs.

    With follow it answers as soon as there is output past offset, or the command has ended.
    """

    operation: ClassVar[str] = "logs"
    result: ClassVar[type[results.Result]] = results.LogsResult
    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    offset: int = Field(
        0, description="Byte of the output to start at: next_offset of the last call; from the end if negative."
    )
    max_bytes: int = Field(65536, ge=1, description="How many bytes at most.")
    tail_lines: int | None = Field(None, ge=1, le=100_000, description="Show the last so many lines; without offset.")
    follow: bool = Field(False, description="Wait until there is output past offset, or the command ends.")
    wait_seconds: float = Field(30, ge=0, le=86400, description="How long follow waits at most.")

    def problem(self) -> str | None:
        """Why the arguments do not fit each other; None where they do."""
        return "offset and tail_lines exclude each other" if self.offset and self.tail_lines else None


SignalName = Literal[
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGWINCH"
]  # fmt: skip


class Kill(Request):
    """Kill a command by its id, with everything it started; the result says that nothing of it is left.

    With signal, that signal is sent to all processes of the command instead, and they may go on: SIGINT is what Ctrl-C sends.
    """

    operation: ClassVar[str] = "kill"
    result: ClassVar[type[results.Result]] = results.KillResult
    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    signal: SignalName | None = Field(None, description="Signal to send to all processes of the command instead.")
    user: User = None


class OpenSession(Request):
    """Make a session of run; one of that name must not be there yet."""

    operation: ClassVar[str] = "open_session"
    result: ClassVar[type[results.Result]] = results.OpenSessionResult
    session: str = Field(min_length=1, max_length=64, description="Name of the session.")
    user: User = None


class Sessions(Request):
    """List the sessions of run."""

    operation: ClassVar[str] = "sessions"
    result: ClassVar[type[results.Result]] = results.SessionsResult
    user: User = None


class EndSession(Request):
    """Forget a session of run: its folder, variables and functions. There may be only so many; commands in it go on."""

    operation: ClassVar[str] = "end_session"
    result: ClassVar[type[results.Result]] = results.EndSessionResult
    session: str = Field(min_length=1, max_length=64, description="Name of the session.")
    user: User = None
