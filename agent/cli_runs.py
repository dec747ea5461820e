"""The commands ``gamebox runs``: show what is in the event log, and resume runs. Nothing heavy is imported before it is needed."""

from __future__ import annotations

from pathlib import Path

import typer

from . import cli_trajectory
from .cli_help import HelpfulGroup

LOG_HELP = "Event log to use instead of $XDG_STATE_HOME/gamebox/runs.db."
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
    from .runs_commands import list_runs

    raise typer.Exit(list_runs(log, as_json=as_json))


@app.command("show", epilog=SHOW_EPILOG)
def show(
    run: str = _RUN,
    follow: bool = typer.Option(False, "--follow", "-f", help=FOLLOW_HELP),
    log: Path | None = _LOG,
    as_json: bool = _JSON,
) -> None:
    """Show the steps of a run: thoughts, actions, approvals and results, what the user said, and the cost."""
    from .runs_commands import follow_run
    from .runs_shown import show_run

    raise typer.Exit(follow_run(run, log, as_json=as_json) if follow else show_run(run, log, as_json=as_json))


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
    from .runs_commands import verify_runs

    raise typer.Exit(verify_runs(run, head, log, as_json=as_json))


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
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON instead of the diff."),
) -> None:
    """Continue a run that was paused or cut off, and print the diff as gamebox agent does."""
    from .runs_commands import resume_run

    changes = {
        "apply": apply, "approve": approve, "max_iterations": max_iterations, "max_cost": max_cost, "max_seconds": max_seconds,
        "max_tokens": max_tokens,
    }  # fmt: skip
    raise typer.Exit(resume_run(run, log, changes, fresh=fresh, say=say, as_json=as_json, yes=yes))


@app.command("say", epilog=SAY_EPILOG)
def say(
    run: str = _RUN,
    text: str = typer.Argument(..., help="The message; - reads it from standard input."),
    log: Path | None = _LOG,
) -> None:
    """Send a message to a run that is going on or will be resumed. The agent reads it before its next decision."""
    from .runs_commands import say_to

    raise typer.Exit(say_to(run, text, log))


@app.command("rm")
def rm(
    runs: list[str] = _RUNS,
    yes: bool = typer.Option(
        False, "--yes", help="Do not ask before removing the sandbox of a run that this user's Gamebox did not write."
    ),
    log: Path | None = _LOG,
) -> None:
    """Remove runs from the log, with the sandboxes that wait for them. Prints their ids."""
    from .runs_commands import remove_runs

    raise typer.Exit(remove_runs(runs, log, yes=yes))


cli_trajectory.add_to(app)
