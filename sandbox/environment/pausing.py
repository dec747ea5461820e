"""A sandbox that is stopped for a while, and for which that while does not count."""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable

from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.pipe import forked_processes as forks
from sandbox.pipe.transport import Transport

from .base import Approver, Environment

RESUME_SECONDS = 10.0


class Pause:
    """Begun and ended by any thread; ``freeze`` and ``thaw`` stop every process of the sandbox and undo that (SandboxError)."""

    def __init__(self, freeze: Callable[[], None], thaw: Callable[[], None]) -> None:
        self._freeze = freeze
        self._thaw = thaw
        self._since: float | None = None
        self._lock = threading.Lock()

    @property
    def on(self) -> bool:
        """Whether the sandbox is paused."""
        return self._since is not None

    def check(self) -> None:
        """Raises SandboxError ``sandbox_paused`` while it is."""
        if self.on:
            raise SandboxError(
                ErrorCode.sandbox_paused, "The sandbox is paused: nothing in it runs.", "Call resume() first."
            )

    def begin(self, live: Callable[[], Transport]) -> None:
        """Pause; does nothing when it is paused. Raises SandboxError."""
        with self._lock:
            if self.on:
                return
            transport = live()
            try:
                transport.pause_deadlines()
                self._freeze()
            except BaseException:
                transport.resume_deadlines()
                raise
            self._since = time.monotonic()

    def end(self, transport: Transport | None) -> None:
        """Go on; does nothing when it is not paused. Raises SandboxError."""
        with self._lock:
            if self._since is None:
                return
            seconds = time.monotonic() - self._since
            try:
                if transport is not None and transport.connected:
                    # Sent before it wakes: a timer that is due must not be the first to act.
                    args = {"seconds": seconds}
                    transport.request("resumed", args, timeout_seconds=RESUME_SECONDS, on_sent=self._wake)
            except SandboxUnavailableError:
                if not self.on:
                    raise
            finally:
                if self.on:  # its pipe was full, or is cut: commands whose time is over will be ended
                    self._wake()
                if transport is not None:
                    transport.resume_deadlines()

    def drop(self) -> None:
        """Wake a sandbox that is left alone: paused, it could not end by itself."""
        if self.on:
            self._wake()

    def _wake(self) -> None:
        self._thaw()
        self._since = None


class PausableEnvironment(Environment):
    """An environment behind a transport. Subclasses say how everything in it is stopped."""

    def __init__(self, approver: Approver | None) -> None:
        super().__init__(approver)
        self._pid = os.getpid()
        self._transport: Transport | None = None
        self._pause = Pause(self._freeze, self._thaw)

    @abstractmethod
    def _live(self) -> Transport:
        """The transport of a sandbox that is in use. Raises SandboxError."""

    def _freeze(self) -> None:
        """Stop every process of the sandbox. Raises SandboxError."""
        raise SandboxError(
            ErrorCode.operation_not_supported,
            f"{type(self).__name__} cannot be paused.",
            "Use DockerEnvironment, or leave it as it is.",
        )

    def _thaw(self) -> None:
        """Undo ``_freeze``. Raises SandboxError."""

    def pause(self) -> None:
        """Stop every process in the sandbox until ``resume``; does nothing when it is paused. Raises SandboxError.

        Operations are the failure ``sandbox_paused`` meanwhile; those under way go on afterwards, and neither their deadlines nor
        those of commands run: the time of the pause does not count.
        """
        self._pause.begin(self._live)

    def resume(self) -> None:
        """Let the sandbox go on; does nothing when it is not paused. Raises SandboxError."""
        forks.check(self._pid)
        self._pause.end(self._transport)
