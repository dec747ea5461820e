"""Ask the user to confirm what a log from elsewhere would do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agent.views.screen import Screen
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.invisible import visible

_MOST_CHARS = 500


def confirm(run: str, consequences: Sequence[str], screen: Screen, *, what: str = "It would continue with") -> None:
    """List what a run without a valid signature would do, and ask whether it may. Returns at once if there is nothing.

    Each of ``consequences`` is shown on one line; of a very long one, the beginning and its length. Raises
    SandboxError ``approval_refused`` for a "no", and if standard input is not a terminal.
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
