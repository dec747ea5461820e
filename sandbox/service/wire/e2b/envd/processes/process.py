"""A command of a sandbox with its process id: a ``run`` of ours, or one of our terminals."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.envelope import Failure
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.terminal import Output, Terminal
from sandbox.service.http.payloads.reading import new_request_id
from sandbox.service.requests.bridges import BrokenOffError
from sandbox.service.requests.output import OutputGoneError
from sandbox.service.requests.under_way import RequestUnderWay
from sandbox.service.store.database import Database
from sandbox.service.wire.e2b.errors import SandboxGoneError, WireError, unwrapped, wire_error

from .marks import SAYS_PID, Asked, mark_of

MOST_PID_BYTES = 16
START_SECONDS = 30.0
LOOK_SECONDS = 15.0
# As Go, in which envd is written, calls signals.
_SIGNALS = {
    "SIGHUP": "hangup",
    "SIGINT": "interrupt",
    "SIGQUIT": "quit",
    "SIGILL": "illegal instruction",
    "SIGTRAP": "trace/breakpoint trap",
    "SIGABRT": "aborted",
    "SIGBUS": "bus error",
    "SIGFPE": "floating point exception",
    "SIGKILL": "killed",
    "SIGSEGV": "segmentation fault",
    "SIGPIPE": "broken pipe",
    "SIGALRM": "alarm clock",
    "SIGTERM": "terminated",
}
Piece = tuple[Literal["stdout", "stderr", "pty"], bytes]


@dataclass(eq=False)
class Process(ABC):
    """A command with the id that it has in the sandbox. ``config`` and ``tag`` are its client's words."""

    live: LiveSandbox
    asked: Asked
    pid: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    tag: str | None = None
    start: int = 0
    """Where its output begins: after its id."""

    @abstractmethod
    def output(self, offset: int) -> AsyncGenerator[Piece, None]:
        """Yield what it prints from there on, to its end. Raises WireError."""

    @abstractmethod
    async def end(self) -> dict[str, Any]:
        """Return how it has ended, as clients read it. Raises WireError if it did not end by itself."""

    @abstractmethod
    async def position(self) -> int:
        """Return how much it has printed."""

    @abstractmethod
    async def is_running(self) -> bool:
        """Return whether it runs."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its standard input, or type. Raises WireError."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """End its standard input. Raises WireError."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it with everything it started. Raises WireError."""


class Piped(Process):
    """A command whose streams are pipes: a request of the service."""

    request: RequestUnderWay

    async def begin(self, database: Database) -> None:
        """Start it, and wait until it has said its id. Raises WireError, SandboxError, Problem."""
        asked = self.asked
        most = self.live.spec.limits.max_timeout_seconds
        limited = asked.timeout_seconds is not None and asked.timeout_seconds <= most
        args = {
            "argv": [*SAYS_PID, mark_of(asked, self.tag), *asked.argv],
            "env": dict(asked.env),
            "cwd": asked.cwd,
            "session": None,
            "timeout_seconds": asked.timeout_seconds if limited else "unlimited",
            "keep_output_bytes": 0,
            **({} if asked.user is None else {"user": asked.user}),
        }
        self.request = await self.live.send(database, "run", args, new_request_id(), streams=True, reads=asked.stdin)
        if asked.timeout_seconds is not None and not limited:
            asyncio.get_running_loop().call_later(asked.timeout_seconds, self.request.cancel.cancel)
        self.pid, self.start = await self._said_pid()

    async def _said_pid(self) -> tuple[int, int]:
        output = self.request.output
        assert output is not None  # noqa: S101  # it was asked for
        async with asyncio.timeout(START_SECONDS):
            while True:
                said = b"".join(piece.data for piece in output.after(0)[:1])
                line, end, _ = said.partition(b"\n")
                if end and line.isdigit() and len(line) < MOST_PID_BYTES:
                    return int(line), len(line) + 1
                if output.ended or len(said) >= MOST_PID_BYTES:
                    unwrapped(await self.request.envelope(), self.live.record.id)
                    raise WireError("internal", "The command did not start.")
                await output.wait(len(said), LOOK_SECONDS)

    async def output(self, offset: int) -> AsyncGenerator[Piece, None]:
        log = self.request.output
        assert log is not None  # noqa: S101
        with log.reading(offset) as note:
            while True:
                try:
                    pieces = log.after(offset)
                except OutputGoneError:
                    raise WireError("resource_exhausted", "The reader is too far behind the output.") from None
                for piece in pieces:
                    yield "stderr" if piece.stream == "stderr" else "stdout", piece.data
                    offset = piece.end
                    note(offset)
                if not pieces and log.ended:
                    return
                if not pieces:
                    await log.wait(offset, LOOK_SECONDS)

    async def end(self) -> dict[str, Any]:
        envelope = await self.request.envelope()
        if isinstance(envelope, Failure) and envelope.code is ErrorCode.cancelled:
            return end_of(None, "SIGKILL")
        if isinstance(envelope, Failure) and envelope.result is None:
            unwrapped(envelope, self.live.record.id)
        if isinstance(envelope, Failure) and envelope.code is ErrorCode.timeout:
            raise WireError("deadline_exceeded", str(envelope.error))
        result = envelope.result
        if result is None or (result.exit_code is None and result.signal is None):
            unwrapped(envelope, self.live.record.id)
            raise SandboxGoneError(self.live.record.id)
        return end_of(result.exit_code, result.signal)

    async def position(self) -> int:
        return 0 if self.request.output is None else self.request.output.end

    async def is_running(self) -> bool:
        return self.request.task is not None and not self.request.task.done()

    async def write(self, data: bytes) -> None:
        stdin = self.request.stdin
        if stdin is None:
            raise WireError("failed_precondition", "The process was started without a standard input.")
        try:
            await stdin.write(data)
        except BrokenOffError:
            raise WireError("internal", "The standard input of the process is closed.") from None

    async def close_stdin(self) -> None:
        if self.request.stdin is not None:
            self.request.stdin.finish()

    async def kill(self) -> None:
        await asyncio.to_thread(self.request.cancel.cancel)  # it may send a frame


class InTerminal(Process):
    """A command with a terminal."""

    terminal: Terminal

    async def begin(self, rows: int, cols: int) -> None:
        """Start it, and wait until it has said its id. Raises WireError, SandboxError."""
        asked = self.asked
        argv = [*SAYS_PID, mark_of(asked, self.tag), *asked.argv]
        args = {"argv": argv, "env": dict(asked.env), "cwd": asked.cwd, "rows": rows, "cols": cols}
        if asked.user is not None:
            args["user"] = asked.user
        terminal, answer = await Terminal.start(self.live, args)
        if terminal is None:
            unwrapped(answer, self.live.record.id)
            raise WireError("internal", "The terminal did not start.")
        self.terminal = terminal
        said = b""
        async with asyncio.timeout(START_SECONDS):
            async for piece in terminal.output(0):
                said += piece.data
                line, end, _ = said.partition(b"\n")
                if end and line.strip().isdigit():
                    self.pid, self.start = int(line), len(line) + 1
                    return
                if len(said) >= MOST_PID_BYTES:
                    break
        raise WireError("internal", "The terminal did not start.")

    async def output(self, offset: int) -> AsyncGenerator[Piece, None]:
        async for piece in self._printed(offset):
            yield "pty", piece.data

    async def _printed(self, offset: int) -> AsyncGenerator[Output, None]:
        try:
            async for piece in self.terminal.output(offset):
                if piece.data:
                    yield piece
        except SandboxError as error:
            raise wire_error(error, self.live.record.id) from error

    async def end(self) -> dict[str, Any]:
        state = await self.terminal.state()
        if state is None:
            raise SandboxGoneError(self.live.record.id)
        return end_of(state.exit_code, state.signal)

    async def position(self) -> int:
        state = await self.terminal.state()
        return self.start if state is None else state.total_bytes

    async def is_running(self) -> bool:
        state = await self.terminal.state()
        return state is not None and state.running

    async def write(self, data: bytes) -> None:
        self._check(await self.terminal.type(data))

    async def close_stdin(self) -> None:
        raise WireError("unknown", "The input of a terminal cannot be closed: type Ctrl-D.")

    async def kill(self) -> None:
        self._check(await self.terminal.kill())

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal. Raises WireError."""
        self._check(await self.terminal.resize(rows, cols))

    def _check(self, failure: Failure[Any] | None) -> None:
        if failure is not None:
            unwrapped(failure, self.live.record.id)


def end_of(exit_code: int | None, signal_name: str | None) -> dict[str, Any]:
    """Return the end of a command as clients read it."""
    if signal_name is not None:
        words = _SIGNALS.get(signal_name) or f"signal {_number(signal_name)}"
        status = f"signal: {words}"
        return {"exitCode": -1, "status": status, "error": status}
    status = f"exit status {exit_code}"
    ended = {"exitCode": exit_code, "exited": True, "status": status}
    return ended if exit_code == 0 else {**ended, "error": status}


def _number(signal_name: str) -> int:
    known = signal.Signals.__members__.get(signal_name)
    return 0 if known is None else int(known)
