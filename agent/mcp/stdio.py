"""A server that is a command: it runs inside the sandbox, and its standard streams are the way to it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode, OperationError
from sandbox.pipe.watching import CancelToken, Watch

from .wire import MAX_MESSAGE_BYTES, MAX_WORDS, Message, decoded, encoded, gone, is_answer, late, nonsense

START_SECONDS = 20.0
# As long as an operation of the sandbox may take; a server that serves longer is started anew.
LIFE_SECONDS = 86_400.0
# How much may be typed into a command at once.
CHUNK_CHARS = 60_000
END_SECONDS = 5.0


class SandboxWire:
    """The standard streams of ``command``, which is started in ``environment`` as any command of an agent.

    Its output comes by the pipe of the sandbox as it is printed, each stream apart, so that what it logs to standard error cannot
    damage a message; the end of that is part of the words for its death. Nothing of it runs on the host.
    """

    def __init__(
        self, environment: Environment, command: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.ended = ""
        self._environment = environment
        self._mark = f"mcp-{secrets.token_hex(8)}"
        self._run = {
            "command": f": {self._mark}\n{command}", "cwd": cwd, "env": dict(env or {}) or None, "session": None,
        }  # fmt: skip
        self._id = ""
        self._token = CancelToken()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._answers: dict[Any, Message | None] = {}
        self._sending = threading.Lock()
        self._line: list[str] = []
        self._line_chars = 0
        self._said = ""
        self._on_message: Callable[[Message], None] = lambda _: None

    def open(self, on_message: Callable[[Message], None]) -> None:
        """See ``Wire``."""
        self._on_message = on_message
        self._thread = threading.Thread(target=self._serve, name=self._mark, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._id and not self.ended and time.monotonic() < deadline:
            found = answered(self._environment.processes)
            if found.ok:
                self._id = next((c.id for c in found.result.commands if c.running and self._mark in c.command), "")
            if not self._id:
                with self._changed:
                    self._changed.wait(0.02)
        if not self._id:
            self.close()
            raise gone(self.ended or f"it did not start within {START_SECONDS:g} seconds.")

    def ask(self, message: Message, seconds: float) -> Message:
        """See ``Wire``."""
        ident = message["id"]
        self._answers[ident] = None
        deadline = time.monotonic() + seconds
        try:
            self.tell(message)
            with self._changed:
                while self._answers[ident] is None and not self.ended and (left := deadline - time.monotonic()) > 0:
                    self._changed.wait(left)
                answer = self._answers[ident]
        finally:
            self._answers.pop(ident, None)
        if answer is not None:
            return answer
        raise gone(self.ended) if self.ended else late(seconds)

    def tell(self, message: Message) -> None:
        """See ``Wire``."""
        line = encoded(message) + "\n"
        with self._sending:
            for start in range(0, len(line), CHUNK_CHARS):
                sent = answered(self._environment.send, self._id, line[start : start + CHUNK_CHARS], wait_seconds=0)
                if sent.ok:
                    continue
                if sent.code in (ErrorCode.command_ended, ErrorCode.stdin_closed, ErrorCode.unknown_command):
                    self._await_end()
                    raise gone(self.ended or sent.error)
                raise OperationError(sent.code, sent.error, sent.hint, effects="unknown")

    def close(self) -> None:
        """See ``Wire``."""
        self._end("it was closed.")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(END_SECONDS)

    # --- its own thread -----------------------------------------------------------------
    def _serve(self) -> None:
        """Run the command to its end, and take what it prints."""
        limits = getattr(self._environment, "limits", None)
        seconds = min(LIFE_SECONDS, getattr(limits, "max_timeout_seconds", LIFE_SECONDS))
        # An input that stays open is what wait_seconds gives a command.
        args = {**self._run, "timeout_seconds": seconds, "wait_seconds": LIFE_SECONDS}
        try:
            answer = self._environment.execute("run", args, watch=Watch(on_output=self._take, cancel=self._token))
        except Exception as error:  # noqa: BLE001 - a wrapper around the environment may raise anything
            self._end(f"{type(error).__name__}: {error}"[:MAX_WORDS])
            return
        said = f" It said: {self._said.strip()}" if self._said.strip() else ""
        self._end(
            (answer.result.to_text().splitlines()[-1:] or ["it ended"])[0] + said if answer.ok else answer.error + said
        )

    def _take(self, stream: str, text: str) -> None:
        if stream == "stderr":
            self._said = (self._said + text)[-MAX_WORDS:]
            return
        *whole, rest = text.split("\n")
        for part in whole:
            line, self._line, self._line_chars = "".join([*self._line, part]), [], 0
            self._handle(line)
        self._line.append(rest)
        self._line_chars += len(rest)
        if self._line_chars > MAX_MESSAGE_BYTES:
            self._end(nonsense(f"more than {MAX_MESSAGE_BYTES >> 20} MiB without a line end").message)

    def _handle(self, line: str) -> None:
        """One line of its output. What is no message is what some servers print by mistake, and no harm."""
        if self.ended:
            return
        try:
            message = decoded(line)
        except OperationError as error:
            self._end(error.message)
            return
        if message is None:
            return
        if not is_answer(message):
            self._on_message(message)
            return
        ident = message.get("id")
        with self._changed:
            if isinstance(ident, int | str) and ident in self._answers:
                self._answers[ident] = message
                self._changed.notify_all()

    def _end(self, why: str) -> None:
        with self._changed:
            self.ended = self.ended or why
            self._changed.notify_all()
        self._token.cancel()

    def _await_end(self) -> None:
        """Wait a little for the words of its end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.ended), END_SECONDS)
