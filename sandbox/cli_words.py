"""What errors and notices advise, in the words of who typed ``gamebox``: the library's own advice is for Python and for models."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .envelope import Envelope

_ATTACH = re.compile(r"DockerEnvironment\.attach\('([^']*)'(, take_over=True)?\)")
_LONGER = re.compile(r"Give timeout_seconds above ([\d.e+]+)")
_PROGRAM = "Check its name and PATH; shell text goes to a shell, as in: -- sh -c 'TEXT'."
# Advice that only who can call again in the same sandbox is able to follow.
_NO_ADVICE = {"left_running", "waited_for_session"}


def hint_for_cli(code: str, hint: str) -> str:
    """The hint of an error, with options and commands where it names arguments and methods."""
    if code == "program_not_found":
        return _PROGRAM
    if code == "timeout" and (longer := _LONGER.match(hint)):
        return f"Give a --timeout above {longer[1]}."
    if code == "timeout" and "session" in hint:  # it was in the queue
        return "Wait until that has ended, or give a longer --timeout."
    return _ATTACH.sub(_run_in, hint)


def message_for_cli(message: str) -> str:
    """The message of an error, with options where it names arguments."""
    return message.replace("keep_seconds=", "--keep-seconds ")


def envelope_for_cli(answer: Envelope[Any]) -> Envelope[Any]:
    """The answer with the advice reworded."""
    notices = tuple(dataclasses.replace(n, hint="") if n.code in _NO_ADVICE else n for n in answer.notices)
    if answer.ok:
        return dataclasses.replace(answer, notices=notices)
    return dataclasses.replace(answer, notices=notices, hint=hint_for_cli(answer.code.value, answer.hint))


def _run_in(match: re.Match[str]) -> str:
    return f"`gamebox run --in {match[1]}{' --take-over' if match[2] else ''} -- COMMAND`"
