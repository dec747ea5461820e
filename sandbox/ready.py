"""Wait until something that was started in a sandbox is ready: a port, a log line, a file, an HTTP answer, a command.

The guest waits for ports, lines and files (operation ``wait_for``). HTTP answers and commands are tried from here, at once
and then at growing intervals. Each function returns, or raises NotReadyError at most 2 s after ``timeout_seconds``.
``command_id`` names the background command that is to become ready: its output is then part of the error, and the wait ends
at once if it ends first. If the sandbox is gone, its SandboxError is raised.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from sandbox.environment.methods import OperationMethods

from .envelope import Envelope
from .errors import ErrorCode, SandboxError

if TYPE_CHECKING:
    from .operations import BrowseResult, RunResult, WaitForResult

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.25
LOG_BYTES = 4096
# A last try just before the end gets as long as an answer may take, or it would only show that its time was too short.
_LEAST_TRY_SECONDS, _LONGEST_TRY_SECONDS = 1.0, 10.0
# Temporary faults: the next try may succeed.
_PASSING = frozenset({ErrorCode.timeout, ErrorCode.too_many_processes, ErrorCode.too_many_actions})


class NotReadyError(SandboxError):
    """It was not ready in time, or the command that was to become ready ended first (code ``not_ready``).

    ``logs`` is the end of the command's output so far (at most 4096 bytes; empty without ``command_id``), ``waited_seconds`` the
    duration of the wait.
    """

    def __init__(self, message: str, hint: str, logs: str, waited_seconds: float) -> None:
        super().__init__(ErrorCode.not_ready, message, hint, effects="none")
        self.logs = logs
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return super().__str__() + (f"\n--- its output so far ---\n{self.logs.rstrip()}" if self.logs else "")


@runtime_checkable
class Watched(Protocol):
    """An environment that records a wait as a whole, instead of each of its many requests."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Return a context that lasts as long as the wait until ``what`` holds; errors pass through it."""


def wait_for_port(
    env: OperationMethods, port: int, *, command_id: str | None = None, timeout_seconds: float = 30.0
) -> None:
    """Wait until something listens on TCP ``port`` of the sandbox's own addresses (any, or 127.0.0.1, or ::1).

    No connection is made. In a LocalEnvironment the ports are the host's: any program's server on that port counts.
    """
    _wait_inside(env, f"port {port} is open", timeout_seconds, id=command_id, port=port)


def wait_for_log(
    env: OperationMethods, command_id: str, pattern: str, *, timeout_seconds: float = 30.0
) -> re.Match[str]:
    """Wait until a line of the command's output matches the regular expression ``pattern`` anywhere; return the match.

    Only whole lines count, without escape codes; the last one counts without its end (a prompt) when nothing more comes.
    """
    looked_for = re.compile(pattern)
    what = f"a line matches {pattern!r}"
    seen = _wait_inside(env, what, timeout_seconds, id=command_id, log=pattern)
    found = looked_for.search(seen.line)
    if found is None:
        raise SandboxError(
            ErrorCode.invalid_result,
            f"The sandbox took {seen.line[:200]!r} for a match of {pattern!r}.",
            "Look at the output with logs.",
        )
    return found


def wait_for_file(
    env: OperationMethods, path: str, *, command_id: str | None = None, timeout_seconds: float = 30.0
) -> None:
    """Wait until ``path`` exists: a file, a folder or a socket. It must be below the roots of file operations."""
    _wait_inside(env, f"{path} exists", timeout_seconds, id=command_id, file=path)


def _wait_inside(env: OperationMethods, what: str, timeout_seconds: float, **condition: Any) -> WaitForResult:
    """Return the result of ``wait_for``. Raises NotReadyError, or SandboxError for an invalid condition."""
    with env.waiting(what) if isinstance(env, Watched) else contextlib.nullcontext():
        answer = env.wait_for(**condition, timeout_seconds=timeout_seconds)
        if answer.ok or answer.code not in (ErrorCode.not_ready, ErrorCode.command_ended):
            return answer.unwrap()
        logs = answer.result.last_output if answer.result is not None else ""
        raise NotReadyError(answer.error, _hint(condition["id"]), logs, answer.duration_ms / 1000)


def wait_for_http(
    env: OperationMethods,
    url: str,
    *,
    status: int | None = None,
    command_id: str | None = None,
    timeout_seconds: float = 30.0,
) -> BrowseResult:
    """Wait until ``url`` answers with ``status``, or with any below 500 if that is None; return the page. Follows redirects."""

    def probe(wait: _Wait) -> BrowseResult | None:
        page = _result_or_none(
            env.browse(url, raw=True, timeout_seconds=wait.seconds), wait, ErrorCode.connection_failed
        )
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
    """Wait until ``command`` (shell text, or a program and its arguments) exits with 0; return its result.

    Every try runs in a clean session, for at most 10 s; one that takes longer is killed, and the command is tried again.
    """
    called: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": tuple(command)}

    def probe(wait: _Wait) -> RunResult | None:
        ran = _result_or_none(env.run(**called, session=None, timeout_seconds=wait.seconds), wait)
        if ran is not None:
            wait.last = f"the last try: {ran.to_text()[-500:]}"
        return ran if ran is not None and ran.exit_code == 0 else None

    return _Wait(env, f"{command!r} succeeds", command_id, timeout_seconds).until(probe)


class _Wait:
    """Repeats a probe until it succeeds. A probe returns None for "not yet" and may put what it saw into ``last``.

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
        """Return what the probe returns. Raises NotReadyError."""
        with self.env.waiting(self.what) if isinstance(self.env, Watched) else contextlib.nullcontext():
            return self._repeat(probe)

    def _repeat(self, probe: Callable[[_Wait], T | None]) -> T:
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
            ended = self._ended()  # then it is tried once more: what is waited for may have come with the end
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
        last = f" ({self.last})" if self.last else ""
        return NotReadyError(f"{what}{last}.", _hint(self.command_id), _log_end(self.env, self.command_id), waited)


def _hint(command_id: str | None) -> str:
    return "See its output below." if command_id else "Pass command_id of the server to see its output here."


def _result_or_none(envelope: Envelope[T], wait: _Wait, *not_yet: ErrorCode) -> T | None:
    """Return the result, or None for a temporary fault, which goes to ``wait.last``. Raises SandboxError for other faults."""
    if envelope.ok:
        return envelope.result
    if envelope.code in not_yet or envelope.code in _PASSING:
        wait.last = envelope.error.rstrip(".")
        return None
    return envelope.unwrap()


def _log_end(env: OperationMethods, command_id: str | None) -> str:
    if command_id is None:
        return ""
    end = env.logs(command_id, offset=-LOG_BYTES, max_bytes=LOG_BYTES)
    return end.result.content if end.ok else ""
