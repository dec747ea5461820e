"""A request that waits for its reply."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from .errors import SandboxUnavailableError
from .guest import wire


@dataclass(slots=True, eq=False)
class Pending:
    """One request under way, shared by its caller and the reader under ``changed``.

    It may be silent for ``seconds``. ``deadline`` is monotonic, None while a command waits in the queue; ``lent`` is the time the
    caller took over its own callbacks, ``late`` the bytes that came after the deadline. ``limit`` bounds the reply in bytes.
    ``sends`` and ``takes`` say whether it has a stream to the guest and one back, ``streams`` that the latter is the output of a
    command, which does not put off the deadline.
    """

    seconds: float
    limit: int
    deadline: float | None
    sends: bool = False
    takes: bool = False
    streams: bool = False
    cancelled: bool = False
    lent: float = 0.0
    late: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    reply: tuple[dict[str, Any], bytes] | None = None
    error: SandboxUnavailableError | None = None
    chunks: deque[bytes] = field(default_factory=deque)
    held: int = 0
    window: int = wire.WINDOW
    events: set[str] = field(default_factory=set)

    def wake(self) -> None:
        """Have the caller look again."""
        with self.changed:
            self.changed.notify_all()

    def cancel(self) -> None:
        """Have the caller ask the guest to stop; from any thread."""
        with self.changed:
            self.cancelled = True
            self.changed.notify_all()

    def extend(self) -> None:
        """Put off the deadline: the guest has shown that it works."""
        if self.deadline is not None:
            self.deadline = time.monotonic() + self.seconds
