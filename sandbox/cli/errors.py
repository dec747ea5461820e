"""Errors on the command line: made, worded for a person who typed ``gamebox``, printed, and turned into an exit status."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from sandbox.readers import hint_for

from .status_line import terminal, terminal_columns

if TYPE_CHECKING:
    from sandbox.envelope import Envelope
    from sandbox.errors import SandboxError

_EXIT_AS_OTHERS = ("run", "exec", "shell")
OWN_FAILURE = 125
"""Exit status of run, exec and shell when gamebox itself fails, so that it is not taken for the command's own."""


def bad_input(message: str, hint: str) -> SandboxError:
    """Return the error for an option that cannot be used."""
    from sandbox.errors import ErrorCode, SandboxError

    return SandboxError(ErrorCode.invalid_configuration, message, hint)


def envelope_for_cli(answer: Envelope[Any]) -> Envelope[Any]:
    """Return the answer with hints for a person who typed ``gamebox``."""
    notices = tuple(dataclasses.replace(n, hint=hint_for("cli", n.hint)) for n in answer.notices)
    if answer.ok:
        return dataclasses.replace(answer, notices=notices)
    return dataclasses.replace(answer, notices=notices, hint=hint_for("cli", answer.hint))


def say_error(error: SandboxError) -> None:
    """Print the error and its hint on standard error."""
    terminal().hide()
    message = error.message.replace("keep_seconds=", "--keep-seconds ")
    say("error", f"{message} ({error.code.value})")
    if hint := hint_for("cli", error.hint):
        say("hint", hint)


def say(label: str, text: str) -> None:
    """Write one labelled sentence on standard error; on a terminal, its further lines are indented."""
    from sandbox.text.invisible import visible  # it may hold what a sandbox or a log says

    line = f"{label}: {visible(text)}"
    if sys.stderr.isatty():
        from sandbox.text.wrapping import wrap

        line = wrap(line, terminal_columns(sys.stderr), rest=" " * (len(label) + 2))
    sys.stderr.write(f"{line}\n")


def fail(error: SandboxError, command: str = "") -> NoReturn:
    """Print the error and exit: with 125 for commands that exit as another one did, with 2 for the others."""
    say_error(error)
    raise SystemExit(OWN_FAILURE if command in _EXIT_AS_OTHERS else 2)
