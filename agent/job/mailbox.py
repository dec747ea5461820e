"""``gamebox runs say``: a message to a run that another process executes."""

from __future__ import annotations

import sys
from pathlib import Path

from agent.errors import AgentErrorCode
from agent.layers.inbox import MOST_CHARS, put
from agent.record.store import EventLog, record_of
from agent.record.store.database import translated
from sandbox.cli.errors import bad_input
from sandbox.errors import SandboxError


def mailbox_of(log: EventLog, run: str) -> Path:
    """Return the folder in which messages to a run wait. It is removed with the run's other files."""
    return log.folder(run) / "said"


def say_to_run(run: str, text: str, log: EventLog) -> str:
    """Leave ``text`` for ``run``, which reads it before its next decision or when it is resumed. Returns what to tell
    the user.

    Raises SandboxError: ``run_not_found``, ``run_not_resumable`` for one that has ended, ``invalid_configuration``.
    """
    record = record_of(log, run)
    if record.parent is not None:
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The run {record.run} is part of {record.parent}, and takes no messages of its own.",
            f"Send it to that one: gamebox runs say {record.parent} ...",
        )
    ended = record.status not in (None, "paused", "environment_lost", "model_failed")
    if ended or "agents" not in record.options:
        how = f"has ended ({record.status})" if ended else "was not made by gamebox agent"
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The run {record.run} {how}: nobody would read the message.",
            "List the runs, with their status: gamebox runs ls.",
        )
    try:
        with translated(log.path):
            put(mailbox_of(log, record.run), text)
    except ValueError as error:
        raise bad_input(
            str(error), f"Write a message of at most {MOST_CHARS} characters; - reads it from standard input."
        ) from error
    if log.is_written(record.run):
        return f"sent to {record.run}: the agent reads it before its next decision"
    return f"sent to {record.run}, which is not running: the agent reads it after gamebox runs resume {record.run}"


def message_text(text: str) -> str:
    """Return ``text``, or standard input for "-"."""
    return sys.stdin.read(MOST_CHARS + 1) if text == "-" else text
