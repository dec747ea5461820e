"""Results of commands: run, logs, kill, and what belongs to them."""

from __future__ import annotations

import re
import signal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.messages.waiting import WaitingFor, state_of
from sandbox.text.excerpt import SHOWN_CHARS, both_ends, joined, size_in_bytes
from sandbox.text.plain_text import plain
from sandbox.text.wording import count_of

from .base import Result

# What ``shown_output`` puts where the guest has cut.
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


class OpenSessionResult(Result):
    """A session was made; ``cwd`` is the folder that its first command starts in."""

    session: str
    cwd: str

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """One line about it."""
        return f"The session {self.session!r} is open and starts in {self.cwd}."


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


class EndSessionResult(Result):
    """``existed`` is false where there was no such session."""

    session: str
    existed: bool = False

    def _words(self) -> str:
        """What became of the session."""
        if self.existed:
            return f"[the session {self.session!r} was ended: its folder and variables are forgotten]"
        return f"[there is no session {self.session!r}, so nothing was done]"


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
