"""When the time to live of a sandbox is to begin anew."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any


class TimeToLive:
    """``seconds`` of a sandbox; with ``renews`` they begin anew while it is used and half of them is over."""

    def __init__(self, *, renews: bool) -> None:
        self.seconds = 0.0
        self.renew_at = 0.0
        self._renews = renews

    def note(self, found: Any) -> None:
        """Note what the service says of the sandbox. Raises KeyError, TypeError, ValueError for what it would not say."""
        self.seconds = float(found["time_to_live_seconds"])
        left = datetime.fromisoformat(found["ends_at"]) - datetime.now(UTC)
        self.renew_at = time.monotonic() + left.total_seconds() - self.seconds / 2

    @property
    def is_to_renew(self) -> bool:
        """Whether it is to begin anew."""
        return self._renews and time.monotonic() > self.renew_at

    def begin(self) -> float:
        """Note that it begins now, and return the seconds."""
        self.renew_at = time.monotonic() + self.seconds / 2
        return self.seconds
