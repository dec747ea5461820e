"""The Chrome DevTools Protocol over a pipe: messages of JSON, each ended by a NUL."""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

CHUNK = 1 << 18
LOOK_SECONDS = 0.25  # between two looks at what may end waiting, if the browser says nothing
MESSAGE_BYTES = 48 << 20  # a screenshot of a full page in base64 has a few MiB

OnEvent = Callable[[str, dict[str, Any], str], None]


class BrowserLostError(Exception):
    """The browser has ended, or said something that is not the protocol."""


class LateError(Exception):
    """The browser did not answer in time."""


class RefusedError(Exception):
    """The browser answered a call with an error, whose text this is."""


class DevTools:
    """Calls to a browser, one after the other, and its events in between.

    ``on_event(method, parameters, session)`` is called for each event while a call waits, or in ``wait_until``. It may send, and
    must not call. ``interrupt`` ends waiting early when it returns true, as a dialog does that blocks its page.
    """

    def __init__(self, read_fd: int, write_fd: int, on_event: OnEvent) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._on_event = on_event
        self._count = 0
        self._buffer = bytearray()
        self._scanned = 0
        self._messages: deque[bytes] = deque()
        self._answers: dict[int, dict[str, Any] | None] = {}

    @property
    def fd(self) -> int:
        """The descriptor that is readable when the browser has said something."""
        return self._read_fd

    def send(self, method: str, parameters: dict[str, Any] | None = None, session: str = "") -> int:
        """Send a call whose answer nobody waits for. Returns its number."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        data = memoryview(json.dumps(message).encode() + b"\0")
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except OSError as error:
            raise BrowserLostError(f"it cannot be written to: {error.strerror}") from None
        return self._count

    def call(
        self,
        method: str,
        parameters: dict[str, Any] | None = None,
        session: str = "",
        *,
        deadline: float,
        interrupt: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Call and return the result. Raises LateError after ``deadline`` (monotonic) or by ``interrupt``; RefusedError."""
        number = self.send(method, parameters, session)
        self._answers[number] = None
        try:
            if not self.wait_until(lambda: self._answers[number] is not None, deadline, interrupt):
                raise LateError(method)
            answer = self._answers[number] or {}
        finally:
            del self._answers[number]
        if "error" in answer:
            error = answer["error"]
            raise RefusedError(str(error.get("message") if isinstance(error, dict) else error)[:500])
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    def wait_until(
        self, done: Callable[[], bool], deadline: float, interrupt: Callable[[], bool] | None = None
    ) -> bool:
        """Handle events until ``done``. Returns False at the deadline or by ``interrupt``."""
        while not done():
            if self._messages:
                self._dispatch(self._messages.popleft())
                if time.monotonic() > deadline:
                    return done()
                continue
            if interrupt is not None and interrupt():  # after what has arrived: it may say that all is well
                return False
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if select.select([self._read_fd], [], [], min(left, LOOK_SECONDS))[0]:
                self._receive()
        return True

    def handle_events(self) -> None:
        """Handle what has arrived, and no more."""
        while self._messages:
            self._dispatch(self._messages.popleft())
        if select.select([self._read_fd], [], [], 0)[0]:
            self._receive()
            for _ in range(len(self._messages)):
                self._dispatch(self._messages.popleft())

    def _receive(self) -> None:
        try:
            data = os.read(self._read_fd, CHUNK)
        except OSError:
            data = b""
        if not data:
            raise BrowserLostError("it has ended")
        self._buffer += data
        while (end := self._buffer.find(0, self._scanned)) >= 0:
            self._messages.append(bytes(self._buffer[:end]))
            del self._buffer[: end + 1]
            self._scanned = 0
        self._scanned = len(self._buffer)
        if self._scanned > MESSAGE_BYTES:
            raise BrowserLostError("it sent a message that is too long")

    def _dispatch(self, data: bytes) -> None:
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        number = message.get("id")
        if isinstance(number, int):
            if number in self._answers:
                self._answers[number] = message
            return
        parameters = message.get("params")
        if isinstance(parameters, dict):
            self._on_event(str(message.get("method")), parameters, str(message.get("sessionId") or ""))
