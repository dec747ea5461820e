"""The operations on commands and sessions."""

from __future__ import annotations

import math
import re
import signal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sandbox.envelope import Result
from sandbox.messages.waiting import WaitingFor, state_of
from sandbox.text.excerpt import SHOWN_CHARS, both_ends, joined, size_in_bytes
from sandbox.text.plain_text import plain
from sandbox.text.wording import count_of

from .base import Change, Request, User

UNLIMITED = "unlimited"


def _seconds(given: Any) -> Any:
    """Infinity for "unlimited"; it is no number of JSON, and not to be had as one. A model's schema has neither."""
    if given == math.inf:
        raise ValueError('write "unlimited" for no limit')
    return math.inf if given == UNLIMITED else given


TimeoutSeconds = Annotated[Annotated[float, Field(gt=0, allow_inf_nan=True)] | None, BeforeValidator(_seconds)]


# What ``join_segments`` puts where the guest has cut.
_CUT = re.compile(r"\n\[\.\.\. \d+ bytes cut[^\n]*\.\.\.\]\n")


class OomVictim(BaseModel):
    """Which process was killed for memory; what is not known is None or "". ``rss_bytes`` is what it had at least."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    pid: int | None = Field(None, ge=0)
    program: str = Field("", max_length=64)
    rss_bytes: int | None = Field(None, ge=0)


def shell_status(exit_code: int | None, signal_name: str | None) -> int | None:
    """Return the status that a shell has for a command that ended so: 128 plus the number of the signal, if there was one."""
    if not signal_name:
        return exit_code
    known = signal.Signals.__members__.get(signal_name)
    number = signal_name.removeprefix("SIG")
    return 128 + (int(known) if known is not None else int(number) if number.isdecimal() else 0)


class RunResult(Result):
    """What a command did.

    ``exit_code`` is None while it runs and when a signal ended it; ``signal`` then names it ("SIGKILL"). ``output`` is both
    streams in the order of arrival, ``stdout`` and ``stderr`` the same bytes apart; all three are cut to head and tail where
    ``truncated`` is true. ``encoding_errors`` says that bytes which are no UTF-8 were replaced in these texts; ``stdout_bytes`` and
    ``stderr_bytes`` are what was kept as it was printed, for callers in Python: they are no part of the envelope as JSON or
    text. ``output_bytes`` is all the command produced; ``spill_path`` holds the whole of it up to the spill limit
    (``spill_truncated`` beyond). ``left_running`` is the number of processes it left behind. ``waiting_for`` is known only while it
    runs. ``cpu_seconds`` is the processor time of it and all it started; ``max_rss_bytes`` the most memory that one of these
    processes had, about 9 MiB at least (the process that became the command). ``oom_victim`` is its process that was killed for
    memory.
    """

    id: str = ""
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False
    oom_victim: OomVictim | None = None
    output: str = ""
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: bytes = Field(default=b"", exclude=True, repr=False)
    stderr_bytes: bytes = Field(default=b"", exclude=True, repr=False)
    encoding_errors: bool = False
    output_bytes: int = 0
    truncated: bool = False
    spill_path: str | None = None
    spill_truncated: bool = False
    left_running: int = 0
    running: bool = False
    cwd: str | None = None
    duration_ms: float = 0.0
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    waiting_for: WaitingFor | None = None

    @property
    def shell_status(self) -> int | None:
        """What a shell shows as ``$?``: ``exit_code``, or 128 plus the number of the signal. None while it runs."""
        return shell_status(self.exit_code, self.signal)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """The output as a terminal would show it (see ``plain_text``), then one line with the status.

        An output of more than ``chars`` characters is shown without its middle; one line there says where all of it is.
        """
        nothing = "" if self.output or self.output_bytes or self.truncated else "no output; "
        if self.running:
            status = f"[running in the background with id {self.id}]"
            if self.waiting_for is not None:
                status = f"[still running with id {self.id}]"  # what it waits for is in the notice that comes with it
        elif self.signal:
            status = f"[{nothing}killed by {self.signal}{', out of memory' if self.oom_killed else ''}]"
        elif self.exit_code is None:
            status = ""
        else:
            status = f"[{nothing}exit code {self.exit_code}]"
        return "\n".join(part for part in (self._shown_output(chars), status) if part)

    def _shown_output(self, chars: int) -> str:
        kept = _CUT.split(self.output) if self.truncated else [self.output]
        head, tail = plain(kept[0]).rstrip("\n"), plain(kept[-1]).rstrip("\n")
        if not self.truncated and len(head) <= chars:
            return head
        head, tail = both_ends(head, tail, chars)
        whole = self.output_bytes if self.truncated else size_in_bytes(self.output)
        missing = whole - size_in_bytes(head) - size_in_bytes(tail)
        where = "Run it again with less output."
        if self.spill_path:
            part = "The first part" if self.spill_truncated else "All"
            where = f"{part} of the output is in {self.spill_path}: read or search that file."
        return joined(head, f"[... {missing:,} bytes are left out here. {where} ...]", tail)


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
    result: ClassVar[type[Result]] = RunResult
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
        False,
        description="Fail if there is no such session yet, instead of making it.",
        json_schema_extra={"host_only": True},
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


class LogsResult(Result):
    """``content`` is the output from ``offset`` to ``next_offset``; ``total_bytes`` is all the command has produced.

    ``encoding_errors`` says that bytes which are no UTF-8 were replaced in it; ``content_bytes`` (in Python only) is what was
    printed. ``stop_reason`` says why the command was stopped, where it was: "timeout", "cpu", "killed", "cancelled", "disk".
    """

    id: str
    content: str = ""
    content_bytes: bytes = Field(default=b"", exclude=True, repr=False)
    encoding_errors: bool = False
    offset: int = 0
    next_offset: int = 0
    total_bytes: int = 0
    kept_bytes: int = 0
    running: bool = False
    exit_code: int | None = None
    signal: str | None = None
    stop_reason: str | None = Field(default=None, max_length=40)
    left_running: int = 0
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    waiting_for: WaitingFor | None = None

    @property
    def shell_status(self) -> int | None:
        """See ``RunResult.shell_status``."""
        return shell_status(self.exit_code, self.signal)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """The output as a terminal would show it, then one line with the state of the command.

        Of a part that is longer than ``chars`` characters the middle is left out; one line there says how to see it.
        """
        state = state_of(self.running, self.exit_code, self.signal, self.waiting_for, self.stop_reason)
        if self.left_running:
            state += f", {count_of(self.left_running, 'process')} left running"
        where = f"[{state}; bytes {self.offset}-{self.next_offset} of {self.total_bytes}]"
        return f"{self._shown_content(chars)}\n{where}".lstrip("\n")

    def _shown_content(self, chars: int) -> str:
        text = plain(self.content).rstrip("\n")
        if len(text) <= chars:
            return text
        # Cut before it is made plain, so that the offsets are right: escape codes only make a text shorter.
        head, tail = both_ends(self.content, self.content, chars)
        start, end = self.offset + size_in_bytes(head), self.next_offset - size_in_bytes(tail)
        mark = f"[... bytes {start}-{end} are left out here: see them with offset={start} ...]"
        return joined(plain(head), mark, plain(tail).rstrip("\n"))


class Logs(Request):
    """Show the output of a command by its id, from a byte offset on, or its last lines; shows whether it still runs.

    With follow it answers as soon as there is output past offset, or the command has ended.
    """

    operation: ClassVar[str] = "logs"
    result: ClassVar[type[Result]] = LogsResult
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


class KillResult(Result):
    """``killed`` counts the processes that were alive; ``survivors`` those that still are (0 in a success).

    With ``signal`` nothing was killed: ``signalled`` processes got that signal, and may go on.
    """

    id: str
    signal: str | None = None
    signalled: int = 0
    killed: int = 0
    survivors: int = 0
    already_ended: bool = False
    collateral: tuple[str, ...] = ()

    def _words(self) -> str:
        """What became of the command."""
        if self.signal is not None:
            return f"[{self.signal} was sent to {_processes(self.signalled)} of {self.id}]"
        if self.already_ended and not self.killed:
            return f"[{self.id} had ended already; nothing of it was left to kill]"
        if self.survivors:
            ended = self.killed - self.survivors
            others = f"{_processes(ended)} ended and " if ended > 0 else ""
            return f"[of {self.id}, {others}{_processes(self.survivors)} did not end]"
        others = f"; {', '.join(self.collateral)} ended with it" if self.collateral else ""
        return f"[{self.id} was killed: {_processes(self.killed)}{others}]"


class Kill(Request):
    """Kill a command by its id, with everything it started; the result says that nothing of it is left.

    With signal, that signal is sent to all processes of the command instead, and they may go on: SIGINT is what Ctrl-C sends.
    """

    operation: ClassVar[str] = "kill"
    result: ClassVar[type[Result]] = KillResult
    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    signal: SignalName | None = Field(None, description="Signal to send to all processes of the command instead.")
    user: User = None


class OpenSessionResult(Result):
    """A session was made; ``cwd`` is the folder that its first command starts in."""

    session: str
    cwd: str

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """One line about it."""
        return f"The session {self.session!r} is open and starts in {self.cwd}."


class OpenSession(Request):
    """Make a session of run; one of that name must not be there yet."""

    operation: ClassVar[str] = "open_session"
    result: ClassVar[type[Result]] = OpenSessionResult
    session: str = Field(min_length=1, max_length=64, description="Name of the session.")
    user: User = None


class SessionState(BaseModel):
    """One session: its name, the folder its next command starts in, and whether a command runs in it that others wait for."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(max_length=64)
    cwd: str = Field(max_length=8192)
    busy: bool = False


class SessionsResult(Result):
    """The sessions of one user, also those that ``run`` made by itself."""

    sessions: tuple[SessionState, ...] = Field((), max_length=4096)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """One line for each."""
        lines = [f"{each.name} in {each.cwd}{', in use' if each.busy else ''}" for each in self.sessions]
        return "\n".join(lines) or "There is no session."


class Sessions(Request):
    """List the sessions of run."""

    operation: ClassVar[str] = "sessions"
    result: ClassVar[type[Result]] = SessionsResult
    user: User = None


class EndSessionResult(Result):
    """``existed`` is false where there was no such session."""

    session: str
    existed: bool = False

    def _words(self) -> str:
        """What became of the session."""
        if self.existed:
            return f"[the session {self.session!r} was ended: its folder and variables are forgotten]"
        return f"[there is no session {self.session!r}, so nothing was done]"


class EndSession(Request):
    """Forget a session of run: its folder, variables and functions. There may be only so many; commands in it go on."""

    operation: ClassVar[str] = "end_session"
    result: ClassVar[type[Result]] = EndSessionResult
    session: str = Field(min_length=1, max_length=64, description="Name of the session.")
    user: User = None


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
