"""The operations that talk with a running command: what it is typed, what its screen shows."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from sandbox.envelope import Result
from sandbox.messages.waiting import WaitingFor, state_of

from .base import Id, Request, User


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


class Send(Request):
    """Type into a running command and see what it answers: text first, then keys, then the end of input.

    The command must have been started with wait_seconds or pty. Keys are named: enter, tab, escape, backspace, space, up, down,
    left, right, home, end, page-up, page-down, insert, delete, f1 to f12, ctrl-a to ctrl-z; ctrl-c interrupts. Line ends in text
    count as enter. With nothing to type, it waits and shows what is new; so it does for a command that has ended.
    """

    operation: ClassVar[str] = "send"
    result: ClassVar[type[Result]] = SendResult
    id: Id
    text: str = Field("", max_length=65536, description="Text to type; end it with a line end to have it read.")
    keys: tuple[Annotated[str, Field(max_length=40)], ...] = Field((), max_length=200, description="Keys to press.")
    eof: bool = Field(False, description="End the input (Ctrl-D on a terminal).")
    wait_seconds: float = Field(
        0.5, ge=0, le=600, description="Answer after this many seconds; earlier if the command waits for more input."
    )
    user: User = None


class ResizeResult(Result):
    """The size the terminal has now."""

    id: str
    rows: int = 0
    cols: int = 0

    def _words(self) -> str:
        return f"[the terminal of {self.id} has {self.rows} rows and {self.cols} columns]"


class Resize(Request):
    """Give the terminal of a running command another size."""

    operation: ClassVar[str] = "resize"
    result: ClassVar[type[Result]] = ResizeResult
    id: Id
    rows: int = Field(ge=1, le=100, description="Lines of the terminal.")
    cols: int = Field(ge=1, le=300, description="Columns of the terminal.")
    user: User = None


class Screen(Request):
    """Show the screen of a command with a terminal as a person would see it, and where the cursor is."""

    operation: ClassVar[str] = "screen"
    result: ClassVar[type[Result]] = ScreenResult
    id: Id
