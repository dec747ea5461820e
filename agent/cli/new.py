"""``gamebox new``: start something of your own."""

from __future__ import annotations

from pathlib import Path

import typer

from .help import HelpfulGroup

EPILOG = """Examples:

  gamebox new agent dates

  gamebox agent "How many days does February 2026 have?" --agents dates --agent dates --model provider/name
"""
app = typer.Typer(
    cls=HelpfulGroup,
    help="Write the files of something new.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def new() -> None:
    """Write the files of something new."""


@app.command("agent", epilog=EPILOG)
def agent(
    name: str = typer.Argument(..., help="Name of the agent, and of the folder that is made for it here."),
) -> None:
    """Write a folder with an agent, a tool in Python and a test. Never overwrites."""
    from agent.job.new_agent import write_agent

    files = write_agent(name, Path())
    for file in files:
        typer.echo(file)
    typer.echo(f"\ntest it:  python -m pytest {name}", err=True)
    typer.echo(f'run it:   gamebox agent "..." --agents {name} --agent {name} --model provider/name', err=True)
