"""The commands ``gamebox runs``: show what is in the event log, and resume runs. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import trajectory as cli_trajectory
from .help import LOG_HELP, OTEL_HELP, HelpfulGroup

if TYPE_CHECKING:
    from agent.record.store import EventLog, Verdict
    from agent.views.screen import Screen

_COLUMNS = ("RUN", "BEGAN", "STATUS", "STEPS", "COST", "TASK")
_TASK_CHARS = 60
_RUN_HELP = 'Id of the run, the beginning of one, or "last".'
FOLLOW_HELP = "Keep showing new steps until the run ends; with --json one event per line."
_LOG = typer.Option(None, "--log", metavar="FILE", help=LOG_HELP)
_JSON = typer.Option(False, "--json", help="Print the output as JSON.")
_RUN = typer.Argument(..., metavar="RUN", help=_RUN_HELP)

_RUNS = typer.Argument(..., metavar="RUN...", help=_RUN_HELP)

YES_HELP = (
    "Do not ask for confirmation of options (a repository, a network, commands on this host ...) in a log that this user's "
    "Gamebox did not write."
)
SHOW_EPILOG = """Examples:

  gamebox runs show last

  gamebox runs show last --follow
"""
SAY_EPILOG = """Examples:

  gamebox runs say last "use the new API, the old one is going away"

  git diff | gamebox runs say last -
"""

EPILOG = """Examples:

  gamebox runs ls

  gamebox runs show last --follow

  gamebox runs resume last --say "leave the tests as they are"

  gamebox runs export last -o run.html
"""

app = typer.Typer(
    cls=HelpfulGroup,
    name="runs",
    epilog=EPILOG,
    help="Show, follow, resume, export and remove recorded runs. RUN is an id, the beginning of one, or last.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("ls")
def ls(log: Path | None = _LOG, as_json: bool = _JSON) -> None:
    """List the runs in the log, the latest first."""
    from agent.record.store import EventLog, default_path
    from agent.views.usage_text import cost
    from sandbox.cli.run import print_json
    from sandbox.cli.table import write_table
    from sandbox.text.invisible import visible

    found: list[dict[str, Any]] = []
    if (log or default_path()).exists():
        with EventLog(log, read_only=True) as events:
            found = [_summary(events, run) for run in events.runs()]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["run"],
            each["began"][:19].replace("T", " "),
            each["status"],
            str(each["steps"]),
            each["cost"] if "cost" in each else cost(each["usage"]),
            _one_line(each["task"]),
        )
        for each in found
    ]
    clean = [tuple(visible(cell, one_line=True) for cell in row) for row in rows]
    write_table(_COLUMNS, clean, spare=("BEGAN", "COST", "STEPS"))


def _summary(events: EventLog, run: str) -> dict[str, Any]:
    """Return what the list shows of a run. One that cannot be read is listed as unreadable, and does not hide the others."""
    from agent.record.store import record_of
    from agent.views.timeline import status_of, summary
    from sandbox.cli.errors import say_error
    from sandbox.errors import SandboxError

    try:
        record = record_of(events, run)
        return summary(record, status_of(events, record))
    except SandboxError as error:
        say_error(error)
        unknown = {"began": "", "steps": "?", "cost": "?", "task": ""}
        return {"run": run, "status": "unreadable", "reason": error.message, **unknown}


def _one_line(task: str) -> str:
    from sandbox.text.invisible import visible

    line = " ".join(visible(" ".join(task.split())).split())
    return line if len(line) <= _TASK_CHARS else f"{line[: _TASK_CHARS - 1]}…"


@app.command("show", epilog=SHOW_EPILOG)
def show(
    run: str = _RUN,
    follow: bool = typer.Option(False, "--follow", "-f", help=FOLLOW_HELP),
    log: Path | None = _LOG,
    as_json: bool = _JSON,
) -> None:
    """Show the steps of a run: thoughts, actions, approvals and results, what the user said, and the cost."""
    from agent.record.store import existing
    from agent.views.follow import follow as follow_run
    from agent.views.runs_show import show_run
    from agent.views.screen import Screen

    if not follow:
        raise typer.Exit(show_run(run, log, as_json=as_json))
    with existing(log, read_only=True) as events:
        follow_run(events, run, Screen(sys.stdout), as_json=as_json)


@app.command("verify")
def verify(
    run: str | None = typer.Argument(None, metavar="[RUN]", help=f"{_RUN_HELP} All runs if left out."),
    head: str | None = typer.Option(
        None, metavar="ID:HASH", help="Head that an earlier verify printed, which the log must still contain."
    ),
    log: Path | None = _LOG,
    as_json: bool = _JSON,
) -> None:
    """Find events that were changed, removed or reordered. Exit code 0: none were, 1: some were."""
    from dataclasses import asdict

    from agent.record.store import existing
    from agent.record.store import verify as verify_run
    from agent.record.store.verify import CANNOT_SHOW, verify_all
    from agent.views.screen import Screen
    from sandbox.cli.run import print_json

    with existing(log, read_only=True) as events:
        verdicts = verify_all(events) if run is None else [verify_run(events, _full_id(events, run), head)]
        running = {verdict.run for verdict in verdicts if events.is_written(verdict.run)}
    if as_json:
        print_json([{**asdict(v), "intact": v.intact, "running": v.run in running} for v in verdicts])
    else:
        screen = Screen(sys.stdout)
        for verdict in verdicts:
            _show_verdict(screen, verdict, verdict.run in running)
        sys.stderr.write(f"{CANNOT_SHOW}\n")
    raise typer.Exit(0 if all(verdict.intact for verdict in verdicts) else 1)


def _full_id(events: EventLog, run: str) -> str:
    """Return the id of a run, also if its first event is gone."""
    from sandbox.errors import SandboxError

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


@app.command("resume")
def resume(
    run: str = _RUN,
    say: str = typer.Option("", metavar="TEXT", help="Message for the agent before it continues."),
    fresh: bool = typer.Option(
        False, "--fresh", help="Use a new sandbox with the repository as it is now; the agent is informed."
    ),
    apply: bool | None = typer.Option(
        None, "--apply/--no-apply", help="Write the changes back once the agent has finished."
    ),
    approve: str | None = typer.Option(
        None, metavar="never|risky|always", help="When to ask you for approval of an action."
    ),
    max_iterations: int | None = typer.Option(None, help="Maximum number of steps, earlier ones included."),
    max_cost: float | None = typer.Option(None, help="Maximum cost in US dollars, earlier cost included."),
    max_seconds: float | None = typer.Option(None, help="Maximum time in seconds, earlier time included."),
    max_tokens: int | None = typer.Option(None, help="Maximum number of tokens, earlier ones included."),
    yes: bool = typer.Option(False, "--yes", help=YES_HELP),
    log: Path | None = _LOG,
    otel: bool | None = typer.Option(None, "--otel/--no-otel", help=OTEL_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON instead of the diff."),
) -> None:
    """Continue a run that was paused or cut off, and print the diff as gamebox agent does."""
    from agent.errors import AgentErrorCode
    from agent.job.commands import show_outcome
    from agent.job.options import AgentOptions
    from agent.job.recorded import resume_recorded
    from agent.job.telemetry import tracing
    from agent.record.store import existing, is_trusted, record_of
    from agent.views.screen import Screen
    from sandbox.errors import SandboxError

    from .confirm import confirm

    changes = {
        "apply": apply,
        "approve": approve,
        "max_iterations": max_iterations,
        "max_cost": max_cost,
        "max_seconds": max_seconds,
        "max_tokens": max_tokens,
    }
    screen = Screen()
    with existing(log) as events:
        record = record_of(events, run)
        if record.parent is not None:
            raise SandboxError(
                AgentErrorCode.run_not_resumable,
                f"The run {record.run} is part of {record.parent} and is resumed with it.",
                f"Resume that one: gamebox runs resume {record.parent}.",
            )
        options = AgentOptions.of_data(record.options, record.run, record.agent)
        if is_trusted(events, record.run):
            options = options.with_python()
        elif not yes:
            confirm(record.run, options.unasked_for(changes), screen)
        options = options.changed(changes)
        with tracing(otel, lambda line: screen.line(line, "dim")) as layers:
            outcome = resume_recorded(options, record.run, events, screen, fresh=fresh, say=say, layers=layers)
    raise typer.Exit(show_outcome(outcome, screen, as_json=as_json))


@app.command("say", epilog=SAY_EPILOG)
def say(
    run: str = _RUN,
    text: str = typer.Argument(..., help="The message; - reads it from standard input."),
    log: Path | None = _LOG,
) -> None:
    """Send a message to a run that is going on or will be resumed. The agent reads it before its next decision."""
    from agent.job.mailbox import message_text, say_to_run
    from agent.record.store import existing

    with existing(log, read_only=True) as events:
        sys.stderr.write(f"{say_to_run(run, message_text(text), events)}\n")


@app.command("rm")
def rm(
    runs: list[str] = _RUNS,
    yes: bool = typer.Option(
        False, "--yes", help="Do not ask before removing the sandbox of a run that this user's Gamebox did not write."
    ),
    log: Path | None = _LOG,
) -> None:
    """Remove runs from the log, with the sandboxes that wait for them. Prints their ids."""
    from agent.record.store import existing
    from sandbox.cli.errors import say_error
    from sandbox.errors import SandboxError

    refused = False
    with existing(log) as events:
        for run in runs:
            try:
                sys.stdout.write(f"{_remove(events, events.found(run), yes)}\n")
            except SandboxError as error:
                say_error(error)
                refused = True
    raise typer.Exit(2 if refused else 0)


def _remove(events: EventLog, run: str, yes: bool) -> str:
    from agent.job.job import sandbox_name
    from agent.job.recorded import remove_sandbox_of_run, sandbox_of_run
    from agent.record.store import is_trusted
    from agent.views.screen import Screen
    from sandbox.errors import ErrorCode, SandboxError

    from .confirm import confirm

    with events.begin(run) as writer:  # no other process uses it
        if _may_have_sandbox(events, run):
            try:
                if not yes and not is_trusted(events, run) and sandbox_of_run(run) is not None:
                    # a log from elsewhere can have the id of any run
                    sandbox = f"the sandbox {sandbox_name(run)} of this machine, with everything in it"
                    confirm(run, [sandbox], Screen(), what="Removing it from the log also ends")
                remove_sandbox_of_run(run)
            except SandboxError as error:
                if error.code is not ErrorCode.engine_unavailable:  # without an engine there is no sandbox either
                    raise
        writer.forget()
        events.remove(run)
    return run


def _may_have_sandbox(events: EventLog, run: str) -> bool:
    from agent.record.store import record_of
    from sandbox.errors import SandboxError

    try:
        record = record_of(events, run)
    except SandboxError:
        return True
    ended = record.status not in (None, "paused", "environment_lost", "model_failed")
    asked_to_keep = record.options.get("keep") or record.options.get("keep_seconds") is not None
    return bool(record.options) and not record.options.get("local") and (asked_to_keep or not ended)


cli_trajectory.add_to(app)
