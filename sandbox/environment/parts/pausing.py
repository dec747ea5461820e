"""A pause: every process of a sandbox stops for a while, and that time does not count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError

if TYPE_CHECKING:
    from sandbox.pipe.transport import Transport

RESUME_SECONDS = 10.0


class Pause:
    """The pause of one sandbox, for many threads. ``freeze`` stops every process, ``thaw`` undoes that; both raise SandboxError."""

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
        """Raise SandboxError ``sandbox_paused`` while the sandbox is paused."""
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
