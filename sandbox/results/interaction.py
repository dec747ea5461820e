"""Results of talking with a command that runs: send, resize, screen."""

from __future__ import annotations

from sandbox.messages.waiting import WaitingFor, state_of

from .base import Result


class ScreenResult(Result):
    """The screen as a person would see it: ``text`` is its lines without trailing blanks; the cursor counts from 0.

    ``skipped_bytes`` of output were too many, or too costly, to be drawn: what they left on the screen is missing.
    """

    id: str
    text: str = ""
    rows: int = 0
    cols: int = 0
    cursor_row: int = 0
    cursor_col: int = 0
    cursor_hidden: bool = False
    title: str = ""
    skipped_bytes: int = 0
    running: bool = False
    exit_code: int | None = None
    signal: str | None = None
    waiting_for: WaitingFor | None = None

    def _words(self) -> str:
        """The screen, then one line about cursor and command."""
        state = state_of(self.running, self.exit_code, self.signal, self.waiting_for)
        lost = f"; {self.skipped_bytes} bytes not drawn" if self.skipped_bytes else ""
        where = f"cursor at row {self.cursor_row}, column {self.cursor_col} of {self.rows}x{self.cols}"
        return f"{self.text}\n[{where}; {state}{lost}]".lstrip("\n")


class SendResult(Result):
    """``output`` is what is new since the last answer about the command, bytes ``offset`` to ``next_offset`` of all of it.

    ``skipped_bytes`` before that are left out: logs has them. ``pending_bytes`` were sent and not taken yet. ``screen`` is there
    for a command with a terminal.
    """

    id: str
    output: str = ""
    offset: int = 0
    next_offset: int = 0
    skipped_bytes: int = 0
    pending_bytes: int = 0
    running: bool = False
    exit_code: int | None = None
    signal: str | None = None
    waiting_for: WaitingFor | None = None
    terminal: bool = False
    screen: ScreenResult | None = None

    def _words(self) -> str:
        """The screen where there is one, else the new output; then one line with the state."""
        if self.screen is not None:
            return self.screen.to_text()
        notes = [state_of(self.running, self.exit_code, self.signal, self.waiting_for)]
        if self.skipped_bytes:
            notes.append(f"{self.skipped_bytes} bytes before this are left out: logs(id={self.id!r})")
        if self.pending_bytes:
            notes.append(f"{self.pending_bytes} bytes sent were not read yet")
        return f"{self.output.rstrip(chr(10))}\n[{'; '.join(notes)}]".lstrip("\n")


class ResizeResult(Result):
    """The size the terminal has now."""

    id: str
    rows: int = 0
    cols: int = 0

    def _words(self) -> str:
        return f"[the terminal of {self.id} has {self.rows} rows and {self.cols} columns]"
