"""Waiting until what was started in a sandbox is ready: a port, a log line, a file, an HTTP answer, a command.

Each wait asks again and again through the environment's own operations, at once when it is called and then at growing intervals,
and either answers or raises NotReadyError at most 2 s after ``timeout_seconds``. ``command_id`` names the background command that
is waited for: its output is then part of the error, and when it ends first the wait ends at once. A sandbox that is gone raises
the SandboxError that says so.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

from .envelope import Envelope
from .errors import ErrorCode, SandboxError
from .methods import OperationMethods
from .results import BrowseResult, RunResult

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.25
LOG_BYTES = 4096
# A line that has no end yet is kept up to this size.
LINE_CHARS = 65536
# A last try just before the end gets as long as an answer may take, or it would only tell that it was too short.
_LEAST_TRY_SECONDS, _LONGEST_TRY_SECONDS = 1.0, 10.0
# Faults of a moment: the same question may be answered a little later.
_PASSING = frozenset({ErrorCode.timeout, ErrorCode.too_many_processes, ErrorCode.too_many_actions})
_LISTENING = "0A"
# Any address, and loopback, of IPv4 and IPv6 as /proc/net writes them (in the byte order of x86 and arm64).
_OWN_ADDRESS = re.compile(r"0{8}|[0-9A-F]{6}7F|0{32}|0{24}01000000|0{16}FFFF0000[0-9A-F]{6}7F")


class NotReadyError(SandboxError):
    """It was not ready in time, or what was to become ready ended first (code ``not_ready``).

    ``logs`` is the end of the command's output so far (at most 4096 bytes; empty without ``command_id``), ``waited_seconds`` says
    how long was waited.
    """

    def __init__(self, message: str, hint: str, logs: str, waited_seconds: float) -> None:
        super().__init__(ErrorCode.not_ready, message, hint, effects="none")
        self.logs = logs
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return super().__str__() + (f"\n--- its output so far ---\n{self.logs.rstrip()}" if self.logs else "")


@runtime_checkable
class Watched(Protocol):
    """An environment that wants to be told of waits, rather than see each of their many questions."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Entered for as long as is waited until ``what`` is so; the error passes through."""


def wait_for_port(
    env: OperationMethods, port: int, *, command_id: str | None = None, timeout_seconds: float = 30.0
) -> None:
    """Wait until something listens on TCP ``port`` of the sandbox's own addresses (any, or 127.0.0.1, or ::1).

    No connection is made where the image has ``cat`` (/proc/net is read); elsewhere an HTTP request is sent, and a server that says
    nothing to that is not seen. In a LocalEnvironment the ports are the host's: any program's server on that port counts.
    """
    if not 0 < port < 65536:
        raise SandboxError(ErrorCode.invalid_arguments, f"{port} is no port.", "Give a port from 1 to 65535.")

    def probe(wait: _Wait) -> bool | None:
        listed = env.run(
            argv=["cat", "/proc/net/tcp", "/proc/net/tcp6"], session=None, cwd="/", timeout_seconds=wait.seconds,
            keep_output_bytes=1 << 20,
        )  # fmt: skip
        if not listed.ok and listed.code is ErrorCode.program_not_found:
            answer = env.browse(f"http://127.0.0.1:{port}/", raw=True, max_chars=1, timeout_seconds=wait.seconds)
            if not answer.ok and answer.code is ErrorCode.connection_failed and "refused" not in answer.error:
                return True  # an open port may well answer with something that is no HTTP
            return None if _settled(answer, wait, ErrorCode.connection_failed) is None else True
        table = _settled(listed, wait)
        return True if table is not None and port in listening_ports(table.stdout) else None

    _Wait(env, f"port {port} is open", command_id, timeout_seconds).until(probe)


def wait_for_log(
    env: OperationMethods, command_id: str, pattern: str, *, timeout_seconds: float = 30.0
) -> re.Match[str]:
    """Wait until a line of the command's output matches the regular expression ``pattern`` anywhere; answers the match.

    Only whole lines are looked at, and the last one without its end once nothing more came (a prompt).
    """
    looked_for = re.compile(pattern)
    lines = _Lines(env, command_id)

    def probe(wait: _Wait) -> re.Match[str] | None:
        return next((found for line in lines.more(wait.seconds) if (found := looked_for.search(line))), None)

    return _Wait(env, f"a line matches {pattern!r}", command_id, timeout_seconds).until(probe)


def wait_for_file(
    env: OperationMethods, path: str, *, command_id: str | None = None, timeout_seconds: float = 30.0
) -> None:
    """Wait until ``path`` exists: a file, a folder, or a socket. It must be below the folders that operations may touch."""
    there = (ErrorCode.is_a_directory, ErrorCode.not_a_regular_file)
    missing = (ErrorCode.path_not_found, ErrorCode.not_a_directory)

    def probe(wait: _Wait) -> bool | None:
        seen = env.read(path, offset=0, max_bytes=1)
        if not seen.ok and seen.code in there:
            return True
        return None if _settled(seen, wait, *missing) is None else True

    _Wait(env, f"{path} exists", command_id, timeout_seconds).until(probe)


def wait_for_http(
    env: OperationMethods,
    url: str,
    *,
    status: int | None = None,
    command_id: str | None = None,
    timeout_seconds: float = 30.0,
) -> BrowseResult:
    """Wait until ``url`` answers with ``status``, or else with any status below 500; redirects are followed. Answers the page."""

    def probe(wait: _Wait) -> BrowseResult | None:
        page = _settled(env.browse(url, raw=True, timeout_seconds=wait.seconds), wait, ErrorCode.connection_failed)
        if page is None:
            return None
        wait.last = f"it answered with status {page.status}"
        got = page.status or 599
        return page if (got == status if status is not None else got < 500) else None

    what = f"{url} answers" + (f" with status {status}" if status is not None else "")
    return _Wait(env, what, command_id, timeout_seconds).until(probe)


def wait_for_command(
    env: OperationMethods,
    command: str | Sequence[str],
    *,
    command_id: str | None = None,
    timeout_seconds: float = 30.0,
) -> RunResult:
    """Wait until ``command`` (shell text, or a program and its arguments) exits with 0; answers its result.

    Every try runs in a clean session and for at most 10 s; one that takes longer is killed and tried again.
    """
    called: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": tuple(command)}

    def probe(wait: _Wait) -> RunResult | None:
        ran = _settled(env.run(**called, session=None, timeout_seconds=wait.seconds), wait)
        if ran is not None:
            wait.last = f"the last try: {ran.to_text()[-500:]}"
        return ran if ran is not None and ran.exit_code == 0 else None

    return _Wait(env, f"{command!r} succeeds", command_id, timeout_seconds).until(probe)


class _Wait:
    """The one place where is asked again; a probe answers None for "not yet" and may say in ``last`` what it saw.

    ``seconds`` is how long the present try may take.
    """

    def __init__(self, env: OperationMethods, what: str, command_id: str | None, timeout_seconds: float) -> None:
        if not timeout_seconds > 0:
            raise SandboxError(
                ErrorCode.invalid_arguments,
                f"timeout_seconds is {timeout_seconds!r}.",
                "Give a positive number of seconds.",
            )
        self.env, self.what, self.command_id, self.timeout_seconds = env, what, command_id, timeout_seconds
        self.last = ""
        self.seconds = timeout_seconds

    def until(self, probe: Callable[[_Wait], T | None]) -> T:
        """What the probe finds. Raises NotReadyError."""
        with self.env.waiting(self.what) if isinstance(self.env, Watched) else contextlib.nullcontext():
            return self._asked(probe)

    def _asked(self, probe: Callable[[_Wait], T | None]) -> T:
        started = time.monotonic()
        deadline = started + self.timeout_seconds
        pause, ended = FIRST_PAUSE_SECONDS, None
        while True:
            self.seconds = min(max(deadline - time.monotonic(), _LEAST_TRY_SECONDS), _LONGEST_TRY_SECONDS)
            self.last = ""
            found = probe(self)
            if found is not None:
                return found
            waited = time.monotonic() - started
            if ended is not None:
                raise self._error(f"{self.command_id} {ended} before {self.what}", waited)
            if waited >= self.timeout_seconds:
                raise self._error(f"After {waited:.1f} s it is still not so that {self.what}", waited)
            ended = self._ended()  # then it is asked once more: the answer may have come with the end
            if ended is None:
                time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
                pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)

    def _ended(self) -> str | None:
        if self.command_id is None:
            return None
        state = self.env.logs(self.command_id, max_bytes=1).unwrap()
        if state.running or state.left_running:  # a server that went into the background by itself goes on
            return None
        return f"was killed by {state.signal}" if state.signal else f"ended with exit code {state.exit_code}"

    def _error(self, what: str, waited: float) -> NotReadyError:
        hint = "See its output below." if self.command_id else "Pass command_id of the server to see its output here."
        said = f" ({self.last})" if self.last else ""
        return NotReadyError(f"{what}{said}.", hint, _log_end(self.env, self.command_id), waited)


class _Lines:
    """The lines of a command's output as they become whole."""

    def __init__(self, env: OperationMethods, command_id: str) -> None:
        self._env, self._id = env, command_id
        self._offset = 0
        self._begun = ""

    def more(self, seconds: float) -> Iterator[str]:
        """The lines that came since, read for about that long; the begun one too when nothing came or nothing more can."""
        until = time.monotonic() + seconds
        while True:
            part = self._env.logs(self._id, offset=self._offset).unwrap()
            quiet = part.next_offset == self._offset
            *whole, begun = (self._begun + part.content).split("\n")
            self._offset, self._begun = part.next_offset, begun[-LINE_CHARS:]
            yield from whole
            if quiet or self._offset >= part.total_bytes or time.monotonic() > until:
                if self._begun and (quiet or not part.running):
                    yield self._begun
                return


def _settled(envelope: Envelope[T], wait: _Wait, *not_yet: ErrorCode) -> T | None:
    """The result; None for a fault that may pass, noted in ``wait.last``. Raises SandboxError for any other."""
    if envelope.ok:
        return envelope.result
    if envelope.code in not_yet or envelope.code in _PASSING:
        wait.last = envelope.error.rstrip(".")
        return None
    return envelope.unwrap()


def listening_ports(table: str) -> set[int]:
    """The TCP ports with a listener in the texts of /proc/net/tcp and tcp6."""
    ports = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENING:
            address, _, port = fields[1].rpartition(":")
            if _OWN_ADDRESS.fullmatch(address):
                ports.add(int(port, 16))
    return ports


def _log_end(env: OperationMethods, command_id: str | None) -> str:
    if command_id is None:
        return ""
    size = env.logs(command_id, max_bytes=1)
    if not size.ok:
        return ""
    end = env.logs(command_id, offset=max(0, size.result.total_bytes - LOG_BYTES), max_bytes=LOG_BYTES)
    return end.result.content if end.ok else ""
