"""``gamebox agent``. Nothing heavy is imported before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sandbox.cli.sandbox_options import with_sandbox_options
from sandbox.docker.spec import DEFAULT_IMAGE

from .help import (
    AGENTS_HELP,
    DEVCONTAINER_HELP,
    FALLBACK_HELP,
    LANGUAGE_HELP,
    LOG_HELP,
    MCP_CONFIG_HELP,
    MCP_HEADER_HELP,
    MCP_HELP,
    MODEL_OPTION_HELP,
    OTEL_HELP,
)

EPILOG = """Examples:

  gamebox agent "make the failing test pass" --model provider/name

  gamebox agent "add a --quiet option" --repo . --model provider/name --max-cost 0.50 --apply

  gamebox agent "make the failing test pass" --repo . --model provider/name --check "python -m pytest -q" --verifier verifier

  gamebox agent "which tickets are about this code?" --repo . --model provider/name --mcp tracker=https://tracker.example.com/mcp

  gamebox agent "make the failing test pass" --repo . --model provider/name --packages --setup "npm ci"

  gamebox agent "make the failing test pass" --repo . --model provider/name --devcontainer

  gamebox agent "what is 17 * 23?" --agent math --model provider/name

To send the agent a message while it works, type a line, or use another terminal: gamebox runs say last "use the new API".
Ctrl-C pauses the run.
"""
CHECK_HELP = (
    "Command that must pass in the sandbox before the run may end; the agent sees what failed. May be repeated. "
    "Programs that the agent installed in ~/.local/bin are found first."
)
VERIFIER_HELP = "Agent, such as verifier, that must agree that the task is done before the run may end."
SCHEMA_HELP = (
    "File with the JSON schema that the result (the arguments of finish) must match; --json prints the result."
)
_REPO = typer.Option(None, help="Repository to copy into the sandbox; by default the git work tree you are in.")
_INPUT = typer.Option(
    [], "--input", metavar="KEY=VALUE", help="An input of the agent other than the task; may be repeated."
)
_AGENTS = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP)
_MCP = typer.Option([], "--mcp", metavar="NAME=COMMAND|ADDRESS", help=MCP_HELP)
_MODEL_OPTION = typer.Option([], "--model-option", metavar="KEY=VALUE", help=MODEL_OPTION_HELP)
_FALLBACK = typer.Option([], "--fallback", metavar="MODEL", help=FALLBACK_HELP)
_HEADER = typer.Option([], "--mcp-header", metavar="NAME:HEADER=VARIABLE", help=MCP_HEADER_HELP)
_MCP_CONFIG = typer.Option(None, "--mcp-config", metavar="FILE", help=MCP_CONFIG_HELP)
_SANDBOX_HELPS = {
    "image": f"Image of the sandbox; by default the agent's own, one that fits the repository's files, or {DEFAULT_IMAGE}.",
    "memory": "Memory limit of the sandbox, as in 512m or 2g.",
    "cpus": "Number of processors the sandbox may use.",
    "keep": "Leave the sandbox running when the run has ended, as run-ID, without its --network and --allow.",
    "keep_seconds": "Keep the sandbox, even of a paused run, until it has been unused for N seconds; 3600 by default.",
    "env": "Environment variable of the sandbox: NAME=VALUE, or NAME for its value here; may be repeated. Runs record the name.",
}
_RECORD_CHANGES = typer.Option(
    False, "--record-changes", help="Record how each action changed the files; gamebox runs export shows it."
)
_HISTORY = typer.Option(
    False, "--history", help="Copy the repository's commits, too; without it the copy has a single commit."
)
_DEVCONTAINER = typer.Option(False, "--devcontainer", help=DEVCONTAINER_HELP)
_OTEL = typer.Option(None, "--otel/--no-otel", help=OTEL_HELP)
_APPROVE = typer.Option("never", metavar="never|risky|always", help="When to ask you for approval of an action.")


# --repo is the workspace, and the id of the run names its sandbox: gamebox runs resume finds it by that.
@with_sandbox_options(without={"workspace", "name"}, defaults={"image": None}, helps=_SANDBOX_HELPS)
def agent(
    ctx: typer.Context,
    task: str = typer.Argument(..., help="The task for the agent."),
    agent: str | None = typer.Option(
        None, "--agent", metavar="NAME", help="Name of the agent, by default coding; gamebox hub ls lists them."
    ),
    repo: Path | None = _REPO,
    model: str | None = typer.Option(
        None, envvar="GAMEBOX_MODEL", help="Model, as provider/name; its API key is read from the environment."
    ),
    model_option: list[str] = _MODEL_OPTION,
    fallback: list[str] = _FALLBACK,
    script: Path | None = typer.Option(None, help="JSON file of replies to use instead of a model."),
    given: list[str] = _INPUT,
    agents: list[Path] = _AGENTS,
    language: str | None = typer.Option(None, help=LANGUAGE_HELP),
    apply: bool = typer.Option(False, "--apply", help="Write the changes back once the agent has finished."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON instead of the diff."),
    check: list[str] = typer.Option([], "--check", metavar="COMMAND", help=CHECK_HELP),
    verifier: str | None = typer.Option(None, metavar="NAME", help=VERIFIER_HELP),
    result_schema: Path | None = typer.Option(None, metavar="FILE", help=SCHEMA_HELP),
    mcp: list[str] = _MCP,
    mcp_header: list[str] = _HEADER,
    mcp_config: Path | None = _MCP_CONFIG,
    approve: str = _APPROVE,
    max_iterations: int = typer.Option(50, help="Maximum number of steps."),
    max_cost: float | None = typer.Option(None, help="Maximum cost in US dollars."),
    max_seconds: float | None = typer.Option(None, help="Maximum time in seconds."),
    max_tokens: int | None = typer.Option(None, help="Maximum number of tokens, input and output together."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    record_changes: bool = _RECORD_CHANGES,
    history: bool = _HISTORY,
    devcontainer: bool = _DEVCONTAINER,
    log: Path | None = typer.Option(None, metavar="FILE", help=LOG_HELP),
    no_log: bool = typer.Option(False, "--no-log", help="Do not record the run; it cannot be resumed."),
    otel: bool | None = _OTEL,
    no_agents_md: bool = typer.Option(
        False, "--no-agents-md", help="Do not give the agent the repository's AGENTS.md and skills."
    ),
    **of_sandbox: Any,
) -> None:
    """Let an agent work on a copy of a repository, and print the diff. Exit code 0: finished, 1: not finished."""
    options = dict(locals())
    options |= options.pop("of_sandbox")
    from agent.job.commands import run_agent

    chosen = options.pop("ctx").get_parameter_source("model")
    raise typer.Exit(run_agent(options, model_is_default=getattr(chosen, "name", "") != "COMMANDLINE"))
