"""Show a build while it goes on: the step under way with the last lines of its output, and the time that each one took."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from sandbox.cli.errors import say
from sandbox.cli.status_line import terminal, terminal_columns

if TYPE_CHECKING:
    from sandbox.docker.builds.log import LogEntry
    from sandbox.errors import SandboxError

_INDENT = "    "
_LEAST_SECONDS = 0.1
"""What took less, such as ENV, is not worth a time."""


class BuildProgress:
    """Hears the log of a build of so many ``steps``, as ``on_log``. On a terminal output is shown while its step runs.

    Elsewhere every line is written as it comes. ``steps`` has what was done so far.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._status = terminal()
        self.steps: list[dict[str, Any]] = []
        self._step, self._since, self._failed = "", 0.0, False

    def __call__(self, entry: LogEntry) -> None:
        from sandbox.docker.builds.build import IN_CACHE

        if entry.level in ("debug", "error"):  # an error is printed when the build has ended with it
            return
        if entry.step != self._step:
            self._end()
            self._begin(entry)
        elif entry.text == IN_CACHE and self.steps and entry.step.isdecimal():
            self.steps[-1]["cached"] = True
        elif entry.level == "warn":
            self._status.clear()
            say("warning", entry.text)
        elif self._status.live:
            self._status.add_output("stdout", f"{entry.text}\n")
        else:
            self._line(f"{_INDENT}{entry.text}")

    def done(self) -> None:
        """End the last step."""
        self._end()

    def failed(self, error: SandboxError) -> None:
        """End the step that failed; on a terminal show the last lines that it printed."""
        self._failed = True
        self._end()
        known = error.result if isinstance(error.result, dict) else {}
        if self._status.live:
            for line in known.get("log") or ():
                self._line(f"{_INDENT}{line}")

    def _begin(self, entry: LogEntry) -> None:
        self._step, self._since = entry.step, time.monotonic()
        title = f"[{entry.step}/{self._count}] {entry.text}" if entry.step.isdecimal() else entry.text
        self.steps.append({"step": entry.step, "text": entry.text, "cached": False})
        if self._status.live:
            self._status.show(title, with_output=True)
        else:
            self._line(title)
        self._title = title

    def _end(self) -> None:
        if not self._step:
            return
        self._status.hide()
        last, seconds = self.steps[-1], time.monotonic() - self._since
        last["seconds"] = round(seconds, 3)
        how = "failed" if self._failed else "in the cache" if last["cached"] else f"{seconds:.1f} s"
        self._step = ""
        tells = self._failed or last["cached"] or seconds >= _LEAST_SECONDS
        if not self._status.live and tells:
            self._line(f"{_INDENT}{how}")
        elif self._status.live:
            how = how if tells else "done"
            room = max(20, terminal_columns(sys.stderr) - len(how) - 4)
            title = self._title if len(self._title) <= room else f"{self._title[: room - 1]}…"
            self._line(f"{title} · {how}")

    def _line(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
