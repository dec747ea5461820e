"""Word why a sandbox ended by itself: its lifetime or its lease was over, or it was idle."""

from __future__ import annotations

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol.constants import IDLE, LEASE_OVER, LIFETIME_OVER
from sandbox.limits import Limits
from sandbox.readers import Phrase, limit, phrased
from sandbox.text.wording import duration


def ended_by_itself(
    exit_code: int | None, limits: Limits, keep_seconds: float | None = None
) -> SandboxUnavailableError | None:
    """Return the post-mortem if the guest's exit code says that a limit of time ended it, else None.

    ``keep_seconds`` is how long a kept sandbox waits for a host; it replaces the lease of its limits.
    """
    if exit_code == LIFETIME_OVER and limits.lifetime_seconds is not None:
        return SandboxUnavailableError(
            "lifetime_over",
            f"The sandbox has ended, with everything in it: its lifetime of {duration(limits.lifetime_seconds)} was over.",
            f"Start another one, with lifetime_seconds above {limits.lifetime_seconds:g} if the work takes longer.",
        )
    if exit_code == IDLE and limits.idle_seconds is not None:
        return SandboxUnavailableError(
            "idle",
            f"The sandbox has ended, with everything in it: nothing was done in it for {duration(limits.idle_seconds)}.",
            f"Start another one, with idle_seconds above {limits.idle_seconds:g} (or None) if it has to wait that long.",
        )
    if exit_code == LEASE_OVER:
        seconds, name = limits.lease_seconds, limit("lease_seconds")
        if keep_seconds is not None:
            seconds, name = keep_seconds, Phrase("keep_seconds", "--keep-seconds", "keep_seconds")
        return SandboxUnavailableError(
            "lease_ended",
            f"The sandbox heard nothing from this process for {seconds:g} seconds, and ended by itself.",
            phrased(
                "This process was stopped or cut off for that long. Start another sandbox, with a larger {name} if need be.",
                name=name,
            ),
        )
    return None
