"""The operations on commands."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sandbox.argument_types import seconds_or_unlimited
from sandbox.errors import ErrorCode, OperationError
from sandbox.guest.protocol.wire import MAX_REPLY
from sandbox.limits import SILENCE_SECONDS, Limits
from sandbox.messages.faults import fault_error
from sandbox.messages.waiting import state_of
from sandbox.messages.waiting_for import WaitingFor
from sandbox.text.command_output import decode_part, join_segments
from sandbox.text.excerpt import SHOWN_CHARS, both_ends, join_parts, size_in_bytes
from sandbox.text.masking import Mask
from sandbox.text.plain_text import plain
from sandbox.text.wording import count_of, value_text

from .base import Answer, Change, Excerpt, Host, Prepared, PythonType, Reply, Request, User
from .result import Result
from .table import operation

# Up to this size stdin is a part of the request, which is made again after a cut of the pipe. More is streamed.
INLINE_BYTES = 8 << 20

_RUN_NOTES = """
``command`` is shell text, or a list: a program with its arguments, run without a shell, as ``argv`` is. See ``RunResult`` for
what is promised.

``on_output("stdout" | "stderr", text)`` is called in this thread as output comes; a command that prints faster waits for it. What
it raises stops the command and is raised here. ``cancel`` stops the command from another thread: the answer is the failure
``cancelled`` with the output so far.

A ``request_id`` of the caller's choice makes it safe to ask again: of the requests with the same id only the first is carried
out, and all get its answer. The last 256 answers are kept for 10 minutes; after that it is the failure ``transfer_incomplete``.

``stdin`` is text, bytes, a binary file or an iterable of bytes, of any size. The last two, and more than 8 MiB, are streamed as
the command reads. A source is read in a thread of its own; its exception stops the command and is raised here.

With ``timeout_seconds=math.inf`` (or "unlimited") the command may run until the sandbox's ``lifetime_seconds`` are over, which
must be set. ``needs_session`` fails with ``session_not_found`` instead of making the session. ``user`` is the name or number of
another user of the image, where the profile allows it; each user has sessions of its own.
"""


TimeoutSeconds = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=True)] | None,
    BeforeValidator(seconds_or_unlimited),
    PythonType('float | Literal["unlimited"] | None'),
]


_NOT_SENT, _OF_TERMINALS = frozenset({"stdin", "request_id", "secrets"}), frozenset({"rows", "cols"})

# What ``join_segments`` puts where the guest has cut.
_CUT = re.compile(r"(\n\[\.\.\. \d+ bytes cut[^\n]*\.\.\.\]\n)")


class OomVictim(BaseModel):
    """The process that the kernel killed for memory, as far as it is known; it had at least ``rss_bytes``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    pid: int | None = Field(None, ge=0)
    program: str = Field("", max_length=64)
    rss_bytes: int | None = Field(None, ge=0)


def shell_status(exit_code: int | None, signal_name: str | None) -> int | None:
    """Return what a shell shows as the status of such a command: its exit code, or 128 plus the number of the signal."""
    if not signal_name:
        return exit_code
    known = signal.Signals.__members__.get(signal_name)
    number = signal_name.removeprefix("SIG")
    return 128 + (int(known) if known is not None else int(number) if number.isdecimal() else 0)


class RunResult(Result):
    """What a command did, or has done so far.

    - ``exit_code`` is None while the command runs and if a signal ended it; ``signal`` then names that ("SIGKILL").
    - ``output`` is both streams in the order of arrival, ``stdout`` and ``stderr`` are the same bytes apart. With ``truncated``
      the middle of all three was cut out. ``output_bytes`` is how much the command printed; ``spill_path`` is the file of the
      sandbox that holds it, up to the spill limit (with ``spill_truncated``, there was more).
    - ``encoding_errors`` says that bytes which are not UTF-8 were replaced in these texts; ``stdout_bytes`` and
      ``stderr_bytes`` are what was printed, for callers in Python: the envelope as JSON or text does not have them.
    - ``left_running`` is the number of processes that it left behind. ``waiting_for`` is known only while it runs.
    - ``cpu_seconds`` is the processor time of the command and all it started. ``max_rss_bytes`` is the most memory that one of
      these processes had: at least about 9 MiB, which the process has that becomes the command.
    - ``oom_victim`` is the one of its processes that was killed for memory.
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
        """What a shell shows as ``$?``: ``exit_code``, or 128 plus the number of the signal; None while the command runs."""
        return shell_status(self.exit_code, self.signal)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return the output as a terminal would show it (see ``plain_text``), then one line with the status.

        The middle of an output of more than ``chars`` characters is left out; one line there says where all of it is.
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
        return "\n".join(part for part in (self._join_segments(chars), status) if part)

    def masked(self, mask: Mask) -> Self:
        """See the base class; where the middle was cut out, a secret may lie on either border."""
        masked = super().masked(mask)
        if not self.truncated:
            return masked
        texts = {name: _masked_around_cut(getattr(masked, name), mask) for name in ("output", "stdout", "stderr")}
        return masked.model_copy(update=texts)

    def _join_segments(self, chars: int) -> str:
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
        return join_parts(head, f"[... {missing:,} bytes are left out here. {where} ...]", tail)


@operation("run", RunResult, changes_files=True, starts_process=True, positional=("command",), method_notes=_RUN_NOTES)
class Run(Change):
    """Run a shell command and wait for it, or start it in the background.

    The working folder and exported variables carry over to the next run of the same session. A command that exits with an
    error is still a success of the tool: look at exit_code. After timeout_seconds everything the command started is killed
    and the output so far is returned. Long output is cut in the middle; spill_path then names the file with the rest. Give
    either command (shell text) or argv (a program and its arguments, no shell).

    For a program that asks questions or reacts to keys, give wait_seconds: after that time run returns while the command goes
    on, waiting_for says what it waits for, and send types into it. With pty=true it has a terminal, and screen shows it.
    timeout_seconds still applies.
    """

    command: Annotated[str | None, PythonType("str | Sequence[str] | None")] = Field(None, description="Shell text.")
    argv: tuple[str, ...] | None = Field(None, min_length=1, description="Program and arguments, run without a shell.")
    cwd: str | None = Field(None, min_length=1, max_length=4096, description="Folder to run in, for this run.")
    env: dict[str, str] | None = Field(None, description="Additional environment variables for this run.")
    secrets: tuple[str, ...] | None = Field(None, description="Names of secrets to give to this run as variables.")
    stdin: Annotated[str | bytes | None, PythonType("Stdin | None")] = Field(
        None, description="What the command reads on standard input."
    )
    timeout_seconds: TimeoutSeconds = Field(None, description="Kill the command after this many seconds.")
    cpu_seconds: float | None = Field(
        None, gt=0, description="Kill the command when it and all it started have used this much processor time."
    )
    background: bool = Field(False, description="Start the command and return its id at once.")
    session: str | None = Field(
        "default", max_length=64, description="Session whose state to use; null for a clean one."
    )
    keep_output_bytes: int | None = Field(None, ge=0, description="Maximum number of bytes of output to return.")
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
        """Return why no process can be started from this, or None if one can. Surrogate escapes stand for bytes."""
        if (self.command is None) == (self.argv is None):
            return "give either command or argv"
        env = self.env or {}
        texts = (self.command or "", *(self.argv or ()), self.cwd or "", self.user or "", *env, *env.values())
        together = "".join(texts)
        if "\0" in together:
            return "a NUL character in the command, its folder, its user or its environment"
        if not _is_bytes(together):
            return f"{_named(next(text for text in texts if not _is_bytes(text)))} is not valid Unicode"
        if isinstance(self.stdin, str) and not _is_bytes(self.stdin):
            return "stdin is not valid Unicode"
        wrong = next((name for name in env if not name or "=" in name), None)
        return None if wrong is None else f"{_named(wrong)} is not a valid name for a variable"

    def prepare(self, limits: Limits) -> Prepared:
        """See the base class; limits that were not given are those of the sandbox."""
        self.check()
        timeout = self._timeout_seconds(limits)
        most = limits.most_kept_bytes
        keep = min(limits.keep_output_bytes, most) if self.keep_output_bytes is None else self.keep_output_bytes
        if keep > most:
            raise _invalid(f"keep_output_bytes is {value_text(keep)}, at most {most}")
        args = self.guest_arguments()
        args.update(timeout_seconds=timeout, keep_output_bytes=keep, cpu_seconds=self._cpu_seconds(limits))
        args["stays_open"] = self.wait_seconds is not None and self.stdin is None
        silence = SILENCE_SECONDS + (self.wait_seconds or 0) if self.background else timeout
        stdin = self.stdin.encode("utf-8", "surrogateescape") if isinstance(self.stdin, str) else self.stdin or b""
        streams = len(stdin) > INLINE_BYTES
        prepared = Prepared(
            args,
            timeout_seconds=math.inf if silence is None else silence,
            max_reply_bytes=MAX_REPLY + keep,
            request_id=self.request_id,
            stdin=b"" if streams else stdin,
            secret_names=self.secrets,
            waits_for_command=not self.background,
        )
        return self.reading_from(prepared, stdin) if streams else prepared

    def guest_arguments(self) -> dict[str, Any]:
        """See the base class; None and False, which the guest assumes where an argument is missing, are left out."""
        if self.request_id is not None:  # it compares them with those of the first time, which an earlier version may have sent
            return self.model_dump(mode="json", exclude=set(_NOT_SENT))
        left_out = _NOT_SENT if self.pty else _NOT_SENT | _OF_TERMINALS
        fields = self.__dict__.items()  # half the time of a dump
        return {name: value for name, value in fields if value is not None and value is not False and name not in left_out}

    def _timeout_seconds(self, limits: Limits) -> float | None:
        timeout = self.timeout_seconds
        if timeout is None and not self.background:
            timeout = min(limits.timeout_seconds, limits.max_timeout_seconds)
        if timeout == math.inf:
            if limits.lifetime_seconds is None:
                raise _invalid(
                    'timeout_seconds="unlimited" needs a sandbox that ends by itself: set Limits(lifetime_seconds=...)'
                )
            return None
        if timeout is not None and timeout > limits.max_timeout_seconds:
            raise _invalid(f"timeout_seconds is {timeout:g}, at most {limits.max_timeout_seconds:g}")
        return timeout

    def _cpu_seconds(self, limits: Limits) -> float | None:
        most = limits.cpu_seconds_per_command
        if self.cpu_seconds is not None and most is not None and self.cpu_seconds > most:
            raise _invalid(f"cpu_seconds is {self.cpu_seconds:g}, at most {most:g}")
        return most if self.cpu_seconds is None else self.cpu_seconds

    def reading_from(self, prepared: Prepared, source: Any) -> Prepared:
        """See the base class; what the caller does not wait for could not be streamed to its end."""
        if source is None:
            return prepared
        if self.background or self.wait_seconds is not None:
            raise _invalid(
                f"with background or wait_seconds, stdin can be text or bytes, at most {INLINE_BYTES} bytes: put more into a "
                "file of the sandbox and redirect it (COMMAND < FILE)"
            )
        return prepared._replace(args={**prepared.args, "stays_open": False}, source=source)

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:
        """See the base class; the output comes in segments of both streams."""
        if "segments" not in reply:
            return fields
        where = fields.get("spill_path") if not fields.get("spill_truncated") else None
        total, truncated = int(fields["output_bytes"]), bool(fields["truncated"])
        return {**fields, **join_segments(reply["segments"], blob, total, truncated, where or None)._asdict()}

    def read_reply(self, reply: Reply, host: Host) -> Answer:
        """See the base class; the output may show that the shell could not parse the command."""
        answer = _with_encoding_notice(super().read_reply(reply, host))
        line = None if answer.result is None else _syntax_error_line(answer.result)
        if line is None:
            return answer
        return answer._replace(notices=(*answer.notices, {"code": "syntax_error", "line": line}))


def _named(text: str) -> str:
    """Quote a text for an error. A long one is not cut: a part of a secret could not be recognized and masked."""
    return repr(text) if len(text) <= 80 else f"A text of {len(text)} characters"


def _is_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _invalid(problem: str) -> OperationError:
    return fault_error(ErrorCode.invalid_arguments, {"problem": problem}, Run.operation)


def _masked_around_cut(text: str, mask: Mask) -> str:
    pieces = _CUT.split(text)
    return "".join(piece if _CUT.fullmatch(piece) else mask.part(piece) for piece in pieces) if text else text


def _with_encoding_notice(answer: Answer) -> Answer:
    replaced = answer.result is not None and answer.result.encoding_errors
    return answer._replace(notices=({"code": "output_not_text"},)) if replaced else answer


# What bash, dash and busybox print of a command's own text; the name before it is theirs. Compiling it takes milliseconds, and
# most commands end without a need for it.
_SYNTAX_ERROR = r"(?m)^\S*sh: (?:eval: line (\d{1,9}): (?:syntax error|unexpected EOF while)|(\d{1,9}): (?:eval: )?Syntax error: )"


def _syntax_error_line(result: RunResult) -> int | None:
    """Return the number of the line that the shell could not parse, or None if it parsed all of them or does not say."""
    found = re.search(_SYNTAX_ERROR, result.stderr) if result.exit_code in (1, 2) else None
    return None if found is None else int(found[1] or found[2])


class LogsResult(Excerpt):
    """``content`` is the output from ``offset`` to ``next_offset``; ``total_bytes`` is all the command has produced.

    ``encoding_errors`` says that bytes which are not UTF-8 were replaced in it; ``content_bytes`` (in Python only) is what was
    printed, and ``streams`` (there, too) where it was printed to: 1 is standard output, 2 standard error, each with a number of
    bytes; of the rest it is not known. ``stop_reason`` says why the command was stopped, where it was: "timeout", "cpu", "killed",
    "cancelled", "disk".
    """

    id: str
    content: str = ""
    content_bytes: bytes = Field(default=b"", exclude=True, repr=False)
    streams: tuple[tuple[Literal[1, 2], Annotated[int, Field(gt=0)]], ...] = Field(
        default=(), exclude=True, repr=False, max_length=256
    )
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
        """Return the output as a terminal would show it, then one line with the state of the command.

        The middle of more than ``chars`` characters is left out; one line there says how to see it.
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
        return join_parts(plain(head), mark, plain(tail).rstrip("\n"))


@operation("logs", LogsResult, repeatable=True, waits=True)
class Logs(Request):
    """Show the output of a command by its id, from a byte offset or its last lines, and whether it is still running.

    With follow, it answers as soon as there is output past offset, or the command has ended.
    """

    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    offset: int = Field(
        0, description="Byte of the output to start at: next_offset of the last call; from the end if negative."
    )
    max_bytes: int = Field(65536, ge=1, description="Maximum number of bytes.")
    tail_lines: int | None = Field(
        None, ge=1, le=100_000, description="Show only this many lines from the end; cannot be combined with offset."
    )
    follow: bool = Field(False, description="Wait until there is output past offset, or the command ends.")
    wait_seconds: float = Field(30, ge=0, le=86400, description="Maximum number of seconds that follow waits.")

    def problem(self) -> str | None:
        return "offset and tail_lines exclude each other" if self.offset and self.tail_lines else None

    def silence_seconds(self) -> float:
        return SILENCE_SECONDS + (self.wait_seconds if self.follow else 0)

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        starts, ends = fields["offset"] == 0, fields["next_offset"] == fields["total_bytes"]
        content, wrong = decode_part(blob, starts=starts, ends=ends)
        return {**fields, "content": content, "encoding_errors": wrong, "content_bytes": blob}

    def read_reply(self, reply: Reply, host: Host) -> Answer:
        return _with_encoding_notice(super().read_reply(reply, host))


SignalName = Literal["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGWINCH"]


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
        """Return one line that says what became of the command."""
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


@operation(
    "kill",
    KillResult,
    positional=("id", "signal"),
    method_notes=(
        "A command that was run with ``user`` needs the same ``user`` here, so that a model's tools cannot reach it."
    ),
)
class Kill(Request):
    """Kill a command by its id with everything it started, and verify that nothing is left.

    With signal, that signal is sent to all processes of the command instead, and they may go on: SIGINT is what Ctrl-C sends.
    """

    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    signal: SignalName | None = Field(None, description="Signal to send to all processes of the command instead.")
    user: User = None


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
