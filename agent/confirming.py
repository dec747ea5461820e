"""What a log from elsewhere asks for is confirmed by the user before it is done."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.invisible import visible

from .show import Screen

_MOST_CHARS = 500


def confirm(run: str, consequences: Sequence[str], screen: Screen, *, what: str = "It would continue with") -> None:
    """List what a run that has no valid signature would do, and ask whether it may; returns where there is nothing to confirm.

    Each of ``consequences`` is one line, whatever is in it; of one that is very long the beginning is shown, and its length.

    Raises SandboxError ``approval_refused`` for a "no", and where standard input is not a terminal.
    """
    if not consequences:
        return
    screen.line(
        f"This user's Gamebox did not write the run {run}, or somebody has changed it since. {what}:", "bold yellow"
    )
    for consequence in consequences:
        screen.line(f"  {_one_line(consequence)}")
    if not sys.stdin.isatty():
        raise SandboxError(
            ErrorCode.approval_refused,
            f"What is listed for the run {run} was not confirmed: standard input is not a terminal.",
            "Read the list above. To accept all of it, add --yes.",
        )
    screen.line("Continue? [y/N]", "bold yellow")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SandboxError(
            ErrorCode.approval_refused,
            f"What is listed for the run {run} was not confirmed.",
            "Nothing was started or removed.",
        )


def _one_line(consequence: str) -> str:
    line = visible(consequence[:_MOST_CHARS], one_line=True)
    rest = len(consequence) - _MOST_CHARS
    return line if rest <= 0 else f"{line} ... ({rest:,} more characters)"
