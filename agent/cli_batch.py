"""``gamebox batch``. Nothing heavy is imported before it is run."""

from __future__ import annotations

from pathlib import Path

import typer

from sandbox.cli import DEFAULT_CPUS, DEFAULT_MEMORY
from sandbox.cli_network import PULL_HELP

from .cli_words import AGENTS_HELP, LANGUAGE_HELP, MCP_HEADER_HELP, MCP_HELP

EPILOG = """Examples:

  gamebox batch tasks.jsonl --workers 4 --model provider/name --max-cost 0.50 -o results

  gamebox batch ./harbor-tasks --agent oracle -o results

  gamebox batch ./harbor-tasks --model provider/name --env JUDGE_API_KEY -o results

  gamebox runs ls --log results/runs.db
"""
LOG_HELP = "The event log of the runs; runs.db in the folder of the results where it is not given."
ENV_HELP = "A variable that tasks in Harbor's form may ask for, with its value here, or NAME=VALUE; may be repeated."


TASKS_HELP = "A .jsonl file, a folder of tasks in Harbor's form, or one such task."
AGENT_HELP = "Agent by name, that of gamebox agent otherwise; oracle runs the solutions that the tasks bring."
_AGENTS = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP)
_MODEL = typer.Option(None, envvar="GAMEBOX_MODEL", help="Model as provider/name; its key comes from the environment.")
_MCP = typer.Option([], "--mcp", metavar="NAME=COMMAND|ADDRESS", help=MCP_HELP)
_HEADER = typer.Option([], "--mcp-header", metavar="NAME:HEADER=VARIABLE", help=MCP_HEADER_HELP)
_APPROVE = typer.Option("never", metavar="never|risky", help="risky: what is risky is refused, for nobody is asked.")


def batch(
    ctx: typer.Context,
    tasks: Path = typer.Argument(..., help=TASKS_HELP),
    output: Path = typer.Option(Path("batch"), "-o", "--output", help="Folder of the results; what is done there is skipped."),
    workers: int = typer.Option(1, "--workers", "-n", help="Tasks at a time."),
    agent: str | None = typer.Option(None, help=AGENT_HELP),
    agents: list[Path] = _AGENTS,
    model: str | None = _MODEL,
    script: Path | None = typer.Option(None, help="A JSON file of replies to follow instead of a model."),
    language: str | None = typer.Option(None, help=LANGUAGE_HELP),
    image: str | None = typer.Option(None, help="Image of tasks that name none, instead of the agent's own."),
    pull: bool = typer.Option(False, "--pull", help=PULL_HELP),
    mcp: list[str] = _MCP,
    mcp_header: list[str] = _HEADER,
    approve: str = _APPROVE,
    env: list[str] = typer.Option([], "--env", "-e", metavar="NAME", help=ENV_HELP),
    max_iterations: int = typer.Option(50, help="Steps at most, for each task."),
    max_cost: float | None = typer.Option(None, help="US dollars at most, for each task."),
    max_seconds: float = typer.Option(3600.0, help="Seconds at most, for each task; a task may say less."),
    max_tokens: int | None = typer.Option(None, help="Tokens at most, for each task."),
    memory: str = typer.Option(DEFAULT_MEMORY, help="Memory limit of sandboxes of tasks that name none."),
    cpus: float = typer.Option(DEFAULT_CPUS, help="Processors of sandboxes of tasks that name none."),
    network: str = typer.Option("none", help="none, task (what each task asks for) or open."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    retry: bool = typer.Option(False, "--retry", help="Do tasks again whose verifier failed."),
    redo_changed: bool = typer.Option(False, "--redo-changed", help="Do tasks again that have changed since."),
    history: bool = typer.Option(False, "--history", help="Copy the commits of the tasks' repositories, too."),
    log: Path | None = typer.Option(None, metavar="FILE", help=LOG_HELP),
    no_log: bool = typer.Option(False, "--no-log", help="Record no events."),
    no_agents_md: bool = typer.Option(False, "--no-agents-md", help="Leave out the repositories' AGENTS.md and skills."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON instead of a table."),
) -> None:  # fmt: skip
    """Run many tasks. Exit code 0: all have an outcome, 1: some have none."""
    given = dict(locals())
    source = given.pop("ctx").get_parameter_source("model")
    if script is not None and getattr(source, "name", "") != "COMMANDLINE":
        given["model"] = None  # a default of the user's, which the script replaces
    from .batch.command import run_given

    raise typer.Exit(run_given(given))
