"""A server that is a command: it runs inside the sandbox, and its standard streams are the way to it."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest

from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.pipe.watching import CancelToken, Watch

from .inbound import Inbound, Streams, failed
from .messages import MAX_MESSAGE_BYTES, MAX_WORDS, Message, decoded, encoded, gone, nonsense

START_SECONDS = 20.0
# The longest timeout of a sandbox operation; a server that serves longer is started again.
LIFE_SECONDS = 86_400.0
# What one operation may type into a command.
CHUNK_CHARS = 60_000
END_SECONDS = 5.0
# Messages of the session that wait for a server that does not read.
WAITING_MESSAGES = 100

Incoming = MemoryObjectSendStream[SessionMessage | Exception]


class SandboxWire:
    """The standard streams of ``command``, which starts in ``environment`` like any command of an agent.

    Its output arrives through the pipe of the sandbox as it is printed, the two streams apart: what it logs to standard error
    cannot damage a message, and the last part of it is quoted when the server dies. Nothing of it runs on the host.
    """

    def __init__(
        self, environment: Environment, command: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.ended = ""
        self._environment = environment
        self._mark = f"mcp-{secrets.token_hex(8)}"
        self._run = {
            "command": f": {self._mark}\n{command}",
            "cwd": cwd,
            "env": dict(env or {}) or None,
            "session": None,
        }
        self._id = ""
        self._token = CancelToken()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._line: list[str] = []
        self._line_chars = 0
        self._log_tail = ""
        self._on_message: Callable[[Message], None] = lambda _: None
        self._on_end: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def streams(self, inbound: Inbound) -> AsyncIterator[Streams]:
        loop = asyncio.get_running_loop()
        # Not more than the requests in flight: ``inbound`` accepts one answer to each.
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](inf)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](WAITING_MESSAGES)
        self._on_end = lambda: _call_in(loop, to_session.close)

        def handle(message: Message) -> None:  # in the thread of the command
            reply = inbound.reply_to(message)
            if reply is not None:
                self._reply(reply)
                return
            answer = inbound.accept(message)
            if answer is not None:
                _call_in(loop, lambda: _put(to_session, answer))

        try:
            await to_thread.run_sync(self.open, handle, abandon_on_cancel=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_all, from_session, to_session, inbound)
                yield incoming, outgoing
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self.close)
            for stream in (to_session, incoming, outgoing, from_session):
                stream.close()

    async def _send_all(
        self, messages: MemoryObjectReceiveStream[SessionMessage], to_session: Incoming, inbound: Inbound
    ) -> None:
        async for each in messages:
            message = each.message
            inbound.expect(message)
            if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                inbound.forget((message.params or {}).get("requestId"))
            content = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            try:
                await to_thread.run_sync(self.tell, content, abandon_on_cancel=True)
            except OperationError as fault:
                if isinstance(message, JSONRPCRequest):
                    inbound.forget(message.id)
                    _put(to_session, failed(message.id, fault))

    def open(self, on_message: Callable[[Message], None]) -> None:
        """Start the command; ``on_message`` is called in its thread with each message. Raises OperationError."""
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

    def tell(self, message: Message) -> None:
        """Send a message. Raises OperationError."""
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
        """End the command and wait for that; may be called more than once."""
        self._end("it was closed.")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(END_SECONDS)

    # --- the thread of the command ------------------------------------------------------
    def _serve(self) -> None:
        """Run the command until it ends, and handle what it prints."""
        limits = getattr(self._environment, "limits", None)
        seconds = min(LIFE_SECONDS, getattr(limits, "max_timeout_seconds", LIFE_SECONDS))
        # wait_seconds keeps the standard input of a command open.
        args = {**self._run, "timeout_seconds": seconds, "wait_seconds": LIFE_SECONDS}
        try:
            answer = self._environment.execute("run", args, watch=Watch(on_output=self._take, cancel=self._token))
        except Exception as error:  # noqa: BLE001 - a layer around the environment may raise anything
            self._end(f"{type(error).__name__}: {error}"[:MAX_WORDS])
            return
        log = f" It said: {self._log_tail.strip()}" if self._log_tail.strip() else ""
        self._end(
            (answer.result.to_text().splitlines()[-1:] or ["it ended"])[0] + log if answer.ok else answer.error + log
        )

    def _take(self, stream: str, text: str) -> None:
        if stream == "stderr":
            self._log_tail = (self._log_tail + text)[-MAX_WORDS:]
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
        """Handle one line of output. Lines that are not messages are ignored: some servers print them by mistake."""
        if self.ended:
            return
        try:
            message = decoded(line)
        except OperationError as error:
            self._end(error.message)
            return
        if message is not None:
            self._on_message(message)

    def _reply(self, reply: Message) -> None:
        try:
            self.tell(reply)
        except SandboxError:
            pass  # a server that does not read gets no reply; that it died is noticed elsewhere

    def _end(self, why: str) -> None:
        with self._changed:
            self.ended = self.ended or why
            self._changed.notify_all()
        self._token.cancel()
        self._on_end()

    def _await_end(self) -> None:
        """Wait a little for the reason of the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.ended), END_SECONDS)


def _put(stream: Incoming, message: SessionMessage) -> None:
    try:
        stream.send_nowait(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the session ended meanwhile


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        pass  # the loop ended meanwhile
