"""What errors and notices advise, in the words of who typed ``gamebox``: the library's own advice is for Python and for models."""

from __future__ import annotations

import dataclasses
import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .envelope import Envelope

_ATTACH = re.compile(r"DockerEnvironment\.attach\('([^']*)'(, take_over=True)?\)")
_LONGER = re.compile(r"[Gg]ive timeout_seconds above ([\d.e+]+)")
_PROGRAM = "Check its name and PATH; shell text goes to a shell, as in: -- sh -c 'TEXT'."
_ALLOW = re.compile(r"env\.allow\(((?:'[^']*'(?:, *)?)+)\)")
_LIMIT = re.compile(r"Limits\((\w+)=(?:\.\.\.)?\)")
_OPTIONS = {"memory_bytes": "--memory", "disk_bytes": "--disk", "cpus": "--cpus", "timeout_seconds": "--timeout"}
# Advice that only who can call again in the same sandbox is able to follow.
_NO_ADVICE = {"left_running", "waited_for_session"}


def hint_for_cli(code: str, hint: str) -> str:
    """The hint of an error, with options and commands where it names arguments and methods."""
    if code == "program_not_found":
        return _PROGRAM
    if code == "timeout" and (longer := _LONGER.search(hint)):
        return f"Give a --timeout above {longer[1]}."
    if code == "timeout" and "session" in hint:  # it was in the queue
        return "Wait until that has ended, or give a longer --timeout."
    return _in_options(hint)


def message_for_cli(message: str) -> str:
    """The message of an error, with options where it names arguments."""
    return message.replace("keep_seconds=", "--keep-seconds ")


def envelope_for_cli(answer: Envelope[Any]) -> Envelope[Any]:
    """The answer with the advice reworded."""
    notices = tuple(
        dataclasses.replace(n, hint="" if n.code in _NO_ADVICE else _in_options(n.hint)) for n in answer.notices
    )
    if answer.ok:
        return dataclasses.replace(answer, notices=notices)
    return dataclasses.replace(answer, notices=notices, hint=hint_for_cli(answer.code.value, answer.hint))


def _in_options(hint: str) -> str:
    """The hint with options where it names methods and arguments that have one."""
    return _LIMIT.sub(_limit, _ALLOW.sub(_allow, _ATTACH.sub(_run_in, hint)))


def _allow(match: re.Match[str]) -> str:
    return " ".join(f"--allow {shlex.quote(rule)}" for rule in re.findall(r"'([^']*)'", match[1]))


def _limit(match: re.Match[str]) -> str:
    return _OPTIONS.get(match[1], f"the limit {match[1]}, which has no option here")


def _run_in(match: re.Match[str]) -> str:
    return f"`gamebox run --in {match[1]}{' --take-over' if match[2] else ''} -- COMMAND`"
