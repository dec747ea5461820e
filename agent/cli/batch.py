"""``gamebox batch``. Nothing heavy is imported before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sandbox.cli.sandbox_options import OF_KEPT, with_sandbox_options

from .help import (
    AGENTS_HELP,
    DEVCONTAINER_HELP,
    FALLBACK_HELP,
    LANGUAGE_HELP,
    MCP_CONFIG_HELP,
    MCP_HEADER_HELP,
    MCP_HELP,
    MODEL_OPTION_HELP,
    OTEL_HELP,
)

EPILOG = """Examples:

  gamebox batch tasks.jsonl --workers 4 --model provider/name --max-cost 0.50 -o results

  gamebox batch ./harbor-tasks --agent oracle -o results

  gamebox batch ./harbor-tasks --model provider/name --env JUDGE_API_KEY -o results

  gamebox runs ls --log results/runs.db
"""
LOG_HELP = "Event log to use instead of runs.db in the output folder."
_SANDBOX_HELPS = {
    "image": "Image for tasks that do not name one, instead of the agent's own.",
    "memory": "Memory limit of the sandbox, for tasks that do not set one.",
    "cpus": "Number of processors of the sandbox, for tasks that do not set it.",
    "network": "none, task (the network that each task asks for), or open.",
    "profile": "Profile of the sandbox, for tasks that do not need another: default, root-on-request, root or conformance.",
}
ENV_HELP = "Variable that tasks in Harbor's format may use: NAME for its value here, or NAME=VALUE; may be repeated."


TASKS_HELP = "A .jsonl file, a folder of tasks in Harbor's format, or one such task."
AGENT_HELP = "Name of the agent, by default that of gamebox agent; oracle runs the solutions that come with the tasks."
_AGENTS = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP)
_MODEL = typer.Option(
    None, envvar="GAMEBOX_MODEL", help="Model, as provider/name; its API key is read from the environment."
)
_MCP = typer.Option([], "--mcp", metavar="NAME=COMMAND|ADDRESS", help=MCP_HELP)
_MODEL_OPTION = typer.Option([], "--model-option", metavar="KEY=VALUE", help=MODEL_OPTION_HELP)
_FALLBACK = typer.Option([], "--fallback", metavar="MODEL", help=FALLBACK_HELP)
_HEADER = typer.Option([], "--mcp-header", metavar="NAME:HEADER=VARIABLE", help=MCP_HEADER_HELP)
_MCP_CONFIG = typer.Option(None, "--mcp-config", metavar="FILE", help=MCP_CONFIG_HELP)
_OTEL = typer.Option(None, "--otel/--no-otel", help=OTEL_HELP)
_APPROVE = typer.Option(
    "never", metavar="never|risky", help="risky refuses risky actions, since nobody is there to approve them."
)


# Each task brings its folder, and a batch makes hundreds of sandboxes: none of them is kept.
@with_sandbox_options(
    without={"workspace", *OF_KEPT}, defaults={"image": None, "network": "none"}, helps=_SANDBOX_HELPS
)
def batch(
    ctx: typer.Context,
    tasks: Path = typer.Argument(..., help=TASKS_HELP),
    output: Path = typer.Option(
        Path("batch"), "-o", "--output", help="Folder for results; tasks with a result in it are skipped."
    ),
    workers: int = typer.Option(1, "--workers", "-n", help="Number of tasks to run in parallel."),
    agent: str | None = typer.Option(None, help=AGENT_HELP),
    agents: list[Path] = _AGENTS,
    model: str | None = _MODEL,
    model_option: list[str] = _MODEL_OPTION,
    fallback: list[str] = _FALLBACK,
    script: Path | None = typer.Option(None, help="JSON file of replies to use instead of a model."),
    language: str | None = typer.Option(None, help=LANGUAGE_HELP),
    mcp: list[str] = _MCP,
    mcp_header: list[str] = _HEADER,
    mcp_config: Path | None = _MCP_CONFIG,
    approve: str = _APPROVE,
    env: list[str] = typer.Option([], "--env", "-e", metavar="NAME", help=ENV_HELP),
    max_iterations: int = typer.Option(50, help="Maximum number of steps of each task."),
    max_cost: float | None = typer.Option(None, help="Maximum cost of each task in US dollars."),
    max_seconds: float = typer.Option(3600.0, help="Maximum time of each task in seconds; a task may set less."),
    max_tokens: int | None = typer.Option(None, help="Maximum number of tokens of each task."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    retry: bool = typer.Option(False, "--retry", help="Repeat tasks whose verifier failed."),
    redo_changed: bool = typer.Option(
        False, "--redo-changed", help="Repeat tasks that have changed since their last result."
    ),
    history: bool = typer.Option(False, "--history", help="Copy the commits of the tasks' repositories, too."),
    devcontainer: bool = typer.Option(False, "--devcontainer", help=DEVCONTAINER_HELP),
    log: Path | None = typer.Option(None, metavar="FILE", help=LOG_HELP),
    no_log: bool = typer.Option(False, "--no-log", help="Do not record the runs."),
    otel: bool | None = _OTEL,
    no_agents_md: bool = typer.Option(
        False, "--no-agents-md", help="Do not give agents the repositories' AGENTS.md and skills."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON instead of a table."),
    **of_sandbox: Any,
) -> None:
    """Run many tasks. Exit code 0: every task has an outcome, 1: some do not."""
    values = dict(locals())
    values |= values.pop("of_sandbox")
    source = values.pop("ctx").get_parameter_source("model")
    if script is not None and getattr(source, "name", "") != "COMMANDLINE":
        values["model"] = None  # a default of the user's, which the script replaces
    from agent.batch.command import run_command

    raise typer.Exit(run_command(values))
