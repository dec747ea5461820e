"""The wall clock: times that survive this process, and that people read. What is waited for is measured with a monotonic one."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# What a date can be.
LAST_SECOND = 253402300799.0


def now() -> float:
    """Return the time in seconds since the epoch."""
    return time.time()


def since_boot() -> float:
    """Return the seconds since this host was booted, also those in which it slept; nobody can set them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def iso(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 in UTC, with milliseconds; None for None. One after the year 9999 is its end."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(min(seconds, LAST_SECOND), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
