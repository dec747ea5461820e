"""``gamebox runs say``: something said to a run by another process than the one that it goes on in."""

from __future__ import annotations

import sys
from pathlib import Path

from agent.store.database import translated
from sandbox.cli.errors import bad_input
from sandbox.errors import SandboxError

from .errors import AgentErrorCode
from .inbox import MOST_CHARS, put
from .store import EventLog, record_of


def mailbox_of(log: EventLog, run: str) -> Path:
    """The folder in which messages to a run wait; it goes with what else is kept for the run."""
    return log.folder(run) / "said"


def say_to_run(run: str, text: str, log: EventLog) -> str:
    """Have ``run`` read ``text`` before its next decision, or when it is resumed; answers what to tell the user.

    Raises SandboxError: ``run_not_found``, ``run_not_resumable`` for one that nobody will go on with, ``invalid_configuration``.
    """
    record = record_of(log, run)
    if record.parent is not None:
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The run {record.run} is a part of {record.parent}, whose agent gave it its task.",
            f"Say it to that: gamebox runs say {record.parent} ...",
        )
    ended = record.status not in (None, "paused", "environment_lost", "model_failed")
    if ended or "agents" not in record.options:
        how = f"has ended ({record.status})" if ended else "is none of gamebox agent"
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The run {record.run} {how}: nobody reads what is said to it.",
            "See which ones go on: gamebox runs ls.",
        )
    try:
        with translated(log.path):
            put(mailbox_of(log, record.run), text)
    except ValueError as error:
        raise bad_input(str(error), f"Say something, at most {MOST_CHARS} characters; - reads it from standard input.") from error
    if log.is_written(record.run):
        return f"said to {record.run}: it is read before the agent's next decision"
    return f"said to {record.run}, which does not go on: it is read when it is resumed, with gamebox runs resume {record.run}"


def text_given(text: str) -> str:
    """``text``; standard input where that is "-"."""
    return sys.stdin.read(MOST_CHARS + 1) if text == "-" else text
