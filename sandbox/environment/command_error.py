"""The exception of ``sh(..., check=True)``; a module of its own, for it imports subprocess."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.operations import RunResult

TAIL_CHARS = 2000
# Of a signal that Python has no name for; what a shell answers with "out of range".
UNKNOWN_SIGNAL = 255


class CommandError(subprocess.CalledProcessError):
    """A command ended with another exit code than 0, or by a signal; ``result`` is its whole RunResult.

    The other attributes are those of CalledProcessError: ``returncode`` (-n after signal n), ``cmd``, ``stdout`` and ``stderr``.
    """

    def __init__(self, command: str | Sequence[str], result: RunResult) -> None:
        code = result.exit_code
        if code is None:
            known = signal.Signals.__members__.get(result.signal or "")
            code = UNKNOWN_SIGNAL if known is None else -known.value
        super().__init__(code, command, result.stdout, result.stderr)
        self.result = result

    def __str__(self) -> str:
        output = self.result.output
        tail = output if len(output) <= TAIL_CHARS else f"...{output[-TAIL_CHARS:]}"
        return f"{super().__str__()}\n--- the end of its output ---\n{tail}" if output else super().__str__()
