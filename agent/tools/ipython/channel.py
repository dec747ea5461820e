"""The host's end of the kernel: a background command of the sandbox, requests on its input, answers in its output.

What comes back is hostile input: lines without the nonce are ignored, an answer is bounded, and every field is checked.
"""

from __future__ import annotations

import importlib.resources
import json
import secrets
import time
from typing import Any

from agent.errors import AgentErrorCode
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

START_SECONDS = 90.0
SEND_CHARS = 32_000
MAX_LINE_BYTES = 1 << 20
MAX_CHARS = 20_000
_BOOT = "import json,sys\nh=json.loads(sys.stdin.readline())\nexec(compile(h['driver'],'driver','exec'),globals())\nmain(h)\n"


@dataclass(frozen=True, slots=True)
class Line:
    """Where a kernel is: the command that drives it, the nonce of its answers, how far they were read, and what was asked."""

    command: str
    nonce: str
    offset: int = 0
    asked: int = 0


class Channel:
    """Asks the driver in the sandbox, which the first request starts."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.line: Line | None = None

    def ask(self, fields: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request. Raises SandboxError ``kernel_died`` if it does not come within ``seconds``."""
        if self.line is None:
            self.line = self._start()
        line = self.line
        asked = line.asked + 1
        self.line = line = Line(line.command, line.nonce, line.offset, asked)
        try:
            return self._answered(line, {"id": asked, **fields}, seconds)
        except KeyboardInterrupt:
            self.interrupt()
            raise

    def interrupt(self) -> None:
        """Interrupt the kernel; may be called from another thread."""
        line = self.line
        if line is not None:
            answered(self._environment.kill, line.command, "SIGINT")

    def _answered(self, line: Line, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request. Raises SandboxError ``kernel_died``."""
        self._send(line, json.dumps(request))
        deadline, asked, buffer = time.monotonic() + seconds, line.asked, b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.lost(f"did not answer within {seconds:g} seconds")
            got = answered(
                self._environment.logs,
                line.command,
                offset=line.offset,
                follow=True,
                wait_seconds=min(left, 20.0),
                max_bytes=200_000,
            )
            if not got.ok:
                raise self.lost(f"cannot be reached: {got.error}")
            part = got.result
            if part.offset != line.offset or len(buffer) > MAX_LINE_BYTES:
                raise self.lost("printed more than is kept")
            buffer += part.content_bytes
            self.line = line = Line(line.command, line.nonce, part.next_offset, asked)
            *whole, buffer = buffer.split(b"\n")
            for text in whole:
                answer = _answer(text, line)
                if answer is not None:
                    return answer
            if not part.running and not part.content_bytes:
                raise self.lost(f"was killed ({part.signal or part.stop_reason or part.exit_code})")

    def lost(self, how: str) -> SandboxError:
        """Give up the kernel, and return the error to raise. The next request starts another one."""
        line = self.end()
        if line is not None and line.asked <= 1 and (missing := self._missing()):
            return missing
        return died(how)

    def end(self) -> Line | None:
        """Kill the driver with its kernel, and return where it was; None if there was none."""
        line, self.line = self.line, None
        if line is not None:
            answered(self._environment.kill, line.command)
        return line

    def _missing(self) -> SandboxError | None:
        """Return the error for a sandbox without Python; None if it has one."""
        tried = answered(self._environment.run, argv=["python3", "-c", "pass"], session=None)
        if tried.ok or tried.code is not ErrorCode.program_not_found:
            return None
        return SandboxError(
            ErrorCode.operation_not_supported,
            "There is no python3 in this sandbox, so there is no Python kernel.",
            "Do it with shell commands.",
        )

    def _start(self) -> Line:
        nonce = secrets.token_hex(16)
        ran = self._environment.run(argv=["python3", "-I", "-c", _BOOT], background=True, wait_seconds=0, session=None)
        if not ran.ok and (missing := self._missing()):
            raise missing
        self.line = line = Line(ran.unwrap().id, nonce)
        internal = getattr(self._environment, "internal_commands", None)
        if internal is not None:  # the kernel listens on a port of its own, which no model needs to know
            internal.add(line.command)
        self._send(
            line, json.dumps({"nonce": nonce, "driver": _source("driver"), "worker": _source("worker")})
        )
        return line

    def _send(self, line: Line, text: str) -> None:
        """Send the driver a line, in pieces that fit. Raises SandboxError ``kernel_died`` if it accepts none."""
        text += "\n"
        for at in range(0, len(text), SEND_CHARS):
            sent = answered(self._environment.send, line.command, text[at : at + SEND_CHARS], wait_seconds=0)
            if not sent.ok:
                raise self.lost(f"was killed ({sent.error})")


def died(how: str) -> SandboxError:
    """The failure for a kernel that is gone."""
    return SandboxError(
        AgentErrorCode.kernel_died,
        f"The Python kernel {how}: its variables are lost.",
        "The next cell starts in a fresh kernel: import and define again what it needs, and do less in each cell.",
        effects="unknown",
    )


def _source(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")


def _answer(text: bytes, line: Line) -> dict[str, Any] | None:
    """Return the answer in a line of output; None for any other line, or an answer to an earlier request."""
    mark = f"{line.nonce} ".encode()
    if not text.startswith(mark) or len(text) > MAX_LINE_BYTES:
        return None
    try:
        told = json.loads(text[len(mark) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("id") != line.asked:
        return None
    texts = {k: str(told[k])[:MAX_CHARS] for k in ("head", "tail", "died", "kind", "python", "fault") if k in told}
    total = told.get("total", 0)
    flags = {k: told.get(k) is True for k in ("ok", "interrupted")}
    return {**texts, **flags, "total": total if isinstance(total, int) and 0 <= total < 1 << 62 else 0}
