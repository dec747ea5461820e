"""What the commands ``gamebox runs`` do once their options are read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.store.verify import CANNOT_SHOW, verify_all
from sandbox.cli.errors import say_error
from sandbox.cli.run import print_json
from sandbox.cli.table import write_table
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.invisible import visible

from .confirming import confirm
from .errors import AgentErrorCode
from .runs_shown import cost
from .runs_story import status_of, summary
from .show import Screen
from .store import EventLog, Verdict, default_path, existing, is_trusted, record_of, verify

_COLUMNS = ("RUN", "BEGAN", "STATUS", "STEPS", "COST", "TASK")
_TASK_CHARS = 60


def list_runs(log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs ls``. A run that cannot be read is listed as that, and does not hide the others."""
    found: list[dict[str, Any]] = []
    if (log or default_path()).exists():
        with EventLog(log, read_only=True) as events:
            found = [_listed(events, run) for run in events.runs()]
    if as_json:
        print_json(found)
        return 0
    rows = [
        (
            each["run"],
            each["began"][:19].replace("T", " "),
            each["status"],
            str(each["steps"]),
            each["cost"] if "cost" in each else cost(each["usage"]),
            _line(each["task"], _TASK_CHARS),
        )
        for each in found
    ]
    clean = [tuple(visible(cell, one_line=True) for cell in row) for row in rows]
    write_table(_COLUMNS, clean, spare=("BEGAN", "COST", "STEPS"))
    return 0


def _listed(events: EventLog, run: str) -> dict[str, Any]:
    try:
        record = record_of(events, run)
        return summary(record, status_of(events, record))
    except SandboxError as error:
        say_error(error)
        return {
            "run": run,
            "began": "",
            "status": "unreadable",
            "reason": error.message,
            "steps": "?",
            "cost": "?",
            "task": "",
        }


def verify_runs(run: str | None, head: str | None, log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs verify``; 1 where something is wrong."""
    with existing(log, read_only=True) as events:
        verdicts = verify_all(events) if run is None else [verify(events, _named(events, run), head)]
        under_way = {v.run for v in verdicts if events.is_written(v.run)}
    if as_json:
        print_json([{**asdict(v), "intact": v.intact, "running": v.run in under_way} for v in verdicts])
    else:
        screen = Screen(sys.stdout)
        for verdict in verdicts:
            _show_verdict(screen, verdict, verdict.run in under_way)
        sys.stderr.write(f"{CANNOT_SHOW}\n")
    return 0 if all(v.intact for v in verdicts) else 1


def resume_run(
    run: str, log: Path | None, changes: Mapping[str, Any], *, fresh: bool, say: str, as_json: bool, yes: bool = False
) -> int:
    """The command ``gamebox runs resume``; the exit code is that of ``gamebox agent``."""
    from .commands import show_outcome
    from .options import AgentOptions
    from .recorded_job import resume_recorded

    screen = Screen()
    with existing(log) as events:
        record = record_of(events, run)
        if record.parent is not None:
            raise SandboxError(
                AgentErrorCode.run_not_resumable,
                f"The run {record.run} is part of {record.parent} and is resumed with it.",
                f"Resume that one: gamebox runs resume {record.parent}.",
            )
        options = AgentOptions.of_data(record.options, record.run)
        if not yes and not is_trusted(events, record.run):
            confirm(record.run, options.unasked_for(changes), screen)
        options = options.changed(changes)
        outcome = resume_recorded(options, record.run, events, screen, fresh=fresh, say=say)
    return show_outcome(outcome, screen, as_json=as_json)


def say_to(run: str, text: str, log: Path | None) -> int:
    """The command ``gamebox runs say``."""
    from .saying import say_to_run, text_given

    with existing(log, read_only=True) as events:
        sys.stderr.write(f"{say_to_run(run, text_given(text), events)}\n")
    return 0


def follow_run(run: str, log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs show --follow``."""
    from .following import follow

    with existing(log, read_only=True) as events:
        follow(events, run, Screen(sys.stdout), as_json=as_json)
    return 0


def remove_runs(runs: Sequence[str], log: Path | None, *, yes: bool = False) -> int:
    """The command ``gamebox runs rm``; 2 where one could not be removed."""
    refused = False
    with existing(log) as events:
        for run in runs:
            try:
                sys.stdout.write(f"{_removed(events, events.found(run), yes)}\n")
            except SandboxError as error:
                say_error(error)
                refused = True
    return 2 if refused else 0


def _removed(events: EventLog, run: str, yes: bool) -> str:
    from .job import sandbox_name
    from .recorded_job import remove_sandbox_of_run, sandbox_of_run

    with events.begin(run) as writer:  # nobody is at it
        if _may_have_sandbox(events, run):
            try:
                if not yes and not is_trusted(events, run) and sandbox_of_run(run) is not None:
                    # somebody else's log can have the id of any run
                    sandbox = f"the sandbox {sandbox_name(run)} of this machine, with everything in it"
                    confirm(run, [sandbox], Screen(), what="To remove it from the log also ends")
                remove_sandbox_of_run(run)
            except SandboxError as error:
                if error.code is not ErrorCode.engine_unavailable:  # without an engine there is no sandbox either
                    raise
        writer.forget()
        events.remove(run)
    return run


def _may_have_sandbox(events: EventLog, run: str) -> bool:
    try:
        record = record_of(events, run)
    except SandboxError:
        return True  # nobody can say: look
    ended = record.status not in (None, "paused", "environment_lost", "model_failed")
    asked_to_keep = record.options.get("keep") or record.options.get("keep_seconds") is not None
    return bool(record.options) and not record.options.get("local") and (asked_to_keep or not ended)


def _named(events: EventLog, run: str) -> str:
    """The run of that id, also one whose first event is not there any more."""
    try:
        return events.found(run)
    except SandboxError:
        if run in events.every_run():
            return run
        raise


def _show_verdict(screen: Screen, verdict: Verdict, running: bool) -> None:
    state = "intact" if verdict.intact else "CHANGED"
    screen.line(
        f"{verdict.run}  {state}  {verdict.events} events  head {verdict.head}", "green" if verdict.intact else "red"
    )
    for flaw in verdict.flaws:
        screen.line(f"  event {flaw.id}: {flaw.what}", "red")
    if verdict.intact and not verdict.signed:
        screen.line("  this user's Gamebox did not write all of it: it has no valid signature", "yellow")
    if not verdict.ended:
        why = "it is still going on" if running else "it was cut off, or its end was removed"
        screen.line(f"  it has no end: {why}", "yellow")


def _line(text: str, most: int) -> str:
    one = " ".join(visible(" ".join(text.split())).split())
    return one if len(one) <= most else f"{one[: most - 1]}…"
