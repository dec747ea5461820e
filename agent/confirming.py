"""What a log from elsewhere asks for is confirmed by the user before it is done."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandbox.errors import ErrorCode, SandboxError

from .show import Screen


def confirm(run: str, consequences: Sequence[str], screen: Screen) -> None:
    """List what a run that has no valid signature would do, and ask whether it may; returns where there is nothing to confirm.

    Raises SandboxError ``approval_refused`` for a "no", and where standard input is not a terminal.
    """
    if not consequences:
        return
    screen.line(
        f"This user's Gamebox did not write the run {run}, or somebody has changed it since. It would continue with:", "bold yellow"
    )
    for consequence in consequences:
        screen.line(f"  {consequence}")
    if not sys.stdin.isatty():
        raise SandboxError(
            ErrorCode.approval_refused,
            f"The options of the run {run} were not confirmed: standard input is not a terminal.",
            "Read the list above. To accept all of it, add --yes.",
        )
    screen.line("Continue? [y/N]", "bold yellow")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SandboxError(
            ErrorCode.approval_refused,
            f"The options of the run {run} were not confirmed.",
            "Nothing was started.",
        )
