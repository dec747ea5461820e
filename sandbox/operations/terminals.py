"""The operations that talk with a running command: what it is typed, what its screen shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Self

from pydantic import Field

from sandbox.limits import SILENCE_SECONDS
from sandbox.messages.waiting import state_of
from sandbox.messages.waiting_for import WaitingFor
from sandbox.text.masking import Mask

from .base import Excerpt, Host, Id, Prepared, Reply, Request, User
from .result import Result
from .table import operation

# bash if the image has it; not as a login shell, which would read the start-up files of another user.
SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi")


class ScreenResult(Result):
    """The screen as a person would see it: ``text`` is its lines without trailing blanks; the cursor counts from 0.

    ``skipped_bytes`` of output were too much, or too costly, to draw: what they would show is missing.
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

    def masked(self, mask: Mask) -> Self:
        """See the base class; a secret may be broken where a line of the screen ends."""
        return super().masked(mask).model_copy(update={"text": mask.drawn(self.text)})

    def _words(self) -> str:
        """Return the screen, then one line about cursor and command."""
        state = state_of(self.running, self.exit_code, self.signal, self.waiting_for)
        lost = f"; {self.skipped_bytes} bytes not drawn" if self.skipped_bytes else ""
        where = f"cursor at row {self.cursor_row}, column {self.cursor_col} of {self.rows}x{self.cols}"
        return f"{self.text}\n[{where}; {state}{lost}]".lstrip("\n")


class SendResult(Excerpt):
    """``output`` is what is new since the last answer about the command: bytes ``offset`` to ``next_offset`` of its output.

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

    def masked(self, mask: Mask) -> Self:
        masked = super().masked(mask)
        return masked if self.screen is None else masked.model_copy(update={"screen": self.screen.masked(mask)})

    def _words(self) -> str:
        """Return the screen, or the new output of a command without a terminal; then one line with the state."""
        if self.screen is not None:
            return self.screen.to_text()
        notes = [state_of(self.running, self.exit_code, self.signal, self.waiting_for)]
        if self.skipped_bytes:
            notes.append(f"{self.skipped_bytes} bytes before this are left out: logs(id={self.id!r})")
        if self.pending_bytes:
            notes.append(f"{self.pending_bytes} bytes sent were not read yet")
        return f"{self.output.rstrip(chr(10))}\n[{'; '.join(notes)}]".lstrip("\n")


@operation("send", SendResult, positional=("id", "text"), method_notes="See ``kill`` for ``user``.")
class Send(Request):
    """Type into a running command and see what it answers: text first, then keys, then the end of input.

    The command must have been started with wait_seconds or pty. Keys are named: enter, tab, escape, backspace, space, up, down,
    left, right, home, end, page-up, page-down, insert, delete, f1 to f12, ctrl-a to ctrl-z; ctrl-c interrupts. Line ends in text
    count as enter. With nothing to type, it waits and shows new output, also of a command that has ended.
    """

    id: Id
    text: str = Field("", max_length=65536, description="Text to type; end it with a newline so that it is read.")
    keys: tuple[Annotated[str, Field(max_length=40)], ...] = Field((), max_length=200, description="Keys to press.")
    eof: bool = Field(False, description="End the input (Ctrl-D on a terminal).")
    wait_seconds: float = Field(
        0.5, ge=0, le=600, description="Answer after this many seconds; earlier if the command waits for more input."
    )
    user: User = None

    def silence_seconds(self) -> float:
        return SILENCE_SECONDS + self.wait_seconds

    def carry_out(self, prepared: Prepared, host: Host) -> Reply:
        """See the base class; what cursor keys send depends on the screen, which is drawn on the host."""
        ask = partial(_ask_screen, host)
        if self.keys:
            keys = host.screens.application_keys(self.id, ask)
            prepared = prepared._replace(args={**prepared.args, "application_keys": keys})
        fields, blob = host.ask(self.operation, prepared)
        return host.screens.add_screen(fields, ask), blob

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {**fields, "output": blob.decode("utf-8", "replace")}


class ResizeResult(Result):
    """The size the terminal has now."""

    id: str
    rows: int = 0
    cols: int = 0

    def _words(self) -> str:
        return f"[the terminal of {self.id} has {self.rows} rows and {self.cols} columns]"


@operation("resize", ResizeResult, repeatable=True, ordered=True, method_notes="See ``kill`` for ``user``.")
class Resize(Request):
    """Change the size of a running command's terminal."""

    id: Id
    rows: int = Field(ge=1, le=100, description="Lines of the terminal.")
    cols: int = Field(ge=1, le=300, description="Columns of the terminal.")
    user: User = None


@operation("screen", ScreenResult, repeatable=True)
class Screen(Request):
    """Show the screen of a command with a terminal as a person would see it, and where the cursor is."""

    id: Id

    def carry_out(self, prepared: Prepared, host: Host) -> Reply:  # noqa: ARG002
        """See the base class; the guest tells what the command printed, and the host draws it."""
        return host.screens.draw(self.id, partial(_ask_screen, host)), b""


def _ask_screen(host: Host, args: dict[str, Any]) -> Reply:
    return host.ask(Screen.operation, Prepared(args))
