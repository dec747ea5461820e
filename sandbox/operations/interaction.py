"""Requests that talk with a running command."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from sandbox import results

from .base import Id, Request, User


class Send(Request):
    """Type into a running command and see what it answers: text first, then keys, then the end of input.

    The command must have been started with wait_seconds or pty. Keys are named: enter, tab, escape, backspace, space, up, down,
    left, right, home, end, page-up, page-down, insert, delete, f1 to f12, ctrl-a to ctrl-z; ctrl-c interrupts. Line ends in text
    count as enter. With nothing to type, it waits and shows what is new; so it does for a command that has ended.
    """

    operation: ClassVar[str] = "send"
    result: ClassVar[type[results.Result]] = results.SendResult
    id: Id
    text: str = Field("", max_length=65536, description="Text to type; end it with a line end to have it read.")
    keys: tuple[Annotated[str, Field(max_length=40)], ...] = Field((), max_length=200, description="Keys to press.")
    eof: bool = Field(False, description="End the input (Ctrl-D on a terminal).")
    wait_seconds: float = Field(
        0.5, ge=0, le=600, description="Answer after this many seconds; earlier if the command waits for more input."
    )
    user: User = None


class Resize(Request):
    """Give the terminal of a running command another size."""

    operation: ClassVar[str] = "resize"
    result: ClassVar[type[results.Result]] = results.ResizeResult
    id: Id
    rows: int = Field(ge=1, le=100, description="Lines of the terminal.")
    cols: int = Field(ge=1, le=300, description="Columns of the terminal.")
    user: User = None


class Screen(Request):
    """Show the screen of a command with a terminal as a person would see it, and where the cursor is."""

    operation: ClassVar[str] = "screen"
    result: ClassVar[type[results.Result]] = results.ScreenResult
    id: Id
