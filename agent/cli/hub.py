"""The command ``gamebox hub``: list the agents, and show what one consists of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sandbox.cli.table import write_table

from .help import AGENTS_HELP, HelpfulGroup

if TYPE_CHECKING:
    from agent.hub import AgentSpec, Hub


EPILOG = """Examples:

  gamebox hub ls

  gamebox hub show codeact

  gamebox hub ls --agents ./my-agents
"""
_COLUMNS = ("NAME", "NEEDS", "ACTIONS", "SOURCE", "DESCRIPTION")
app = typer.Typer(
    cls=HelpfulGroup,
    help="List the available agents and show what they consist of.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("ls")
def ls(
    agents: list[Path] = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the list as JSON."),
) -> None:
    """List the agents. Exit code 0: all could be loaded, 1: some could not; standard error names them."""
    hub = _hub(agents)
    specs = hub.listed()
    if as_json:
        _print_json({"agents": [summary(s) for s in specs], "problems": [_problem(p) for p in hub.problems]})
    else:
        rows = [tuple(_plain(" ".join(cell.split())) for cell in row(spec)) for spec in specs]
        write_table(_COLUMNS, rows, spare=("SOURCE", "ACTIONS"))
    _tell_problems(hub)
    raise typer.Exit(1 if hub.problems else 0)


@app.command("show")
def show(
    name: str = typer.Argument(..., help="Name of the agent."),
    agents: list[Path] = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the output as JSON."),
) -> None:
    """Show what an agent consists of. Inputs appear in its goals as <name>."""
    hub = _hub(agents)
    _tell_problems(hub)
    spec = hub.load(name)
    whole = {**summary(spec), **details(spec)}
    if as_json:
        _print_json(whole)
        return
    goals = whole.pop("goals")
    for key, value in whole.items():
        typer.echo(f"{key}: {_worded(value)}")
    for goal in goals:
        typer.echo(_plain(f"\n## {goal['name']}\n{goal['description']}"))


def summary(spec: AgentSpec) -> dict[str, Any]:
    """Return what a list shows of an agent."""
    return {
        "name": spec.name,
        "description": spec.description,
        "needs_model": spec.needs_model,
        "needs_repo": spec.needs_repo,
        "read_only": spec.read_only,
        "actions": list(spec.actions),
        "source": spec.source,
    }


def details(spec: AgentSpec) -> dict[str, Any]:
    """Return the rest of it, with its goals filled in as far as possible without inputs."""
    return {
        "language": spec.language,
        "language_options": dict(spec.language_options),
        "memory": spec.memory,
        "memory_options": dict(spec.memory_options),
        "kit_options": {name: dict(options) for name, options in spec.kit_options.items()},
        "middleware": list(spec.middleware),
        "inputs": dict(spec.inputs),
        "outputs": dict(spec.outputs),
        "max_iterations": spec.max_iterations,
        "image": spec.image,
        "goals": [
            {"priority": goal.priority, "name": goal.name, "description": _filled(goal.description, spec)}
            for goal in spec.goals
        ],
    }


def row(spec: AgentSpec) -> tuple[str, str, str, str, str]:
    """Return the cells of an agent in the table."""
    actions = ", ".join(spec.actions[:4]) + (f" and {len(spec.actions) - 4} more" if len(spec.actions) > 4 else "")
    return spec.name, "model" if spec.needs_model else "-", actions, spec.source, spec.description


def _hub(agents: Sequence[Path]) -> Hub:
    from agent.hub.finding import PROJECT_FOLDER, default

    named = {folder.resolve() for folder in agents}
    if PROJECT_FOLDER.is_dir() and PROJECT_FOLDER.resolve() not in named:
        typer.echo(
            f"not loaded: the agents of {PROJECT_FOLDER}; name the folder with --agents if you trust it", err=True
        )
    return default(agents)


def _filled(text: str, spec: AgentSpec) -> str:
    """Return the text with <name> for each input; unchanged if it cannot be filled in that way."""
    from agent.hub.templates import filled
    from sandbox.errors import SandboxError

    try:
        return filled(text, {name: f"<{name}>" for name in spec.inputs.get("properties", {})}, spec)
    except SandboxError:
        return text


def _worded(value: Any) -> str:
    import json

    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return _plain(", ".join(map(str, value)))
    return _plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_named))


def _tell_problems(hub: Hub) -> None:
    for problem in hub.problems:
        typer.echo(_plain(f"not loaded: {problem.where}: {problem.what}"), err=True)


def _problem(problem: Any) -> dict[str, str]:
    return {"where": problem.where, "what": problem.what}


def _plain(text: str) -> str:
    """Return ``text`` without characters that could control a terminal."""
    from sandbox.text.invisible import visible

    return visible(text)


def _print_json(data: Any) -> None:
    import json

    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2, default=_named) + "\n")


def _named(value: Any) -> str:
    """Return the name of an option that is not data, such as the class of an old agent."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}:{name}" if name else repr(value)
