"""The result of wait_for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandbox.messages.waiting import state_of
from sandbox.text.plain_text import plain
from sandbox.text.wording import count_of

from .base import Result


class WaitForResult(Result):
    """What was waited for (``condition``) and what came of it.

    Of a log: ``line`` is the line that matched, without escape codes, ``groups`` the pattern's groups (each cut to 200 characters,
    [] for plain text), and bytes ``offset`` to ``next_offset`` of the output are that line. Of a port: ``address`` is where it is
    open. Of a file: ``path``. With an id, the state of that command; ``last_output`` is the end of its output (at most 4 KiB) in
    a failure and at its exit.
    """

    condition: Literal["port", "log", "file", "exit"]
    waited_seconds: float = 0.0
    address: str = Field(default="", max_length=64)
    path: str = ""
    line: str = ""
    groups: tuple[str | None, ...] = ()
    offset: int = 0
    next_offset: int = 0
    id: str = ""
    running: bool = False
    exit_code: int | None = None
    signal: str | None = None
    stop_reason: str | None = Field(default=None, max_length=40)
    left_running: int = 0
    last_output: str = ""

    def _words(self) -> str:
        """What was seen, the end of the output where it is shown, then one line with the state."""
        seen = {"port": f"open at {self.address}", "file": f"{self.path} is there", "log": self.line, "exit": ""}
        is_so = {"port": self.address, "file": self.path, "log": self.next_offset, "exit": False}
        notes = []
        if self.id:
            state = state_of(self.running, self.exit_code, self.signal, None, self.stop_reason)
            notes.append(f"{self.id}: {state}")
        if self.left_running:
            notes.append(f"{count_of(self.left_running, 'process')} left running")
        shown = [seen[self.condition] if is_so[self.condition] else "", plain(self.last_output).rstrip("\n")]
        return "\n".join([*(part for part in shown if part), *([f"[{'; '.join(notes)}]"] if notes else [])])
