"""``gamebox agent``. Nothing heavy is imported before it is run."""

from __future__ import annotations

from pathlib import Path

import typer

from sandbox import cli as sandbox_cli
from sandbox.cli_network import ALLOW_HELP, CACHE_HELP, LOG_HELP, NETWORK_HELP, PULL_HELP
from sandbox.status_line import terminal

from .cli_runs import LOG_HELP as RUNS_LOG_HELP
from .cli_words import AGENTS_HELP, LANGUAGE_HELP, MCP_HEADER_HELP, MCP_HELP

EPILOG = """Examples:

  gamebox agent "make the failing test pass" --model provider/name

  gamebox agent "add a --quiet option" --repo . --model provider/name --max-cost 0.50 --apply

  gamebox agent "make the failing test pass" --repo . --model provider/name --check "python -m pytest -q" --verifier verifier

  gamebox agent "which tickets are about this code?" --repo . --model provider/name --mcp tracker=https://tracker.example.com/mcp

  gamebox agent "what is 17 * 23?" --agent math --model provider/name

While it works, type a line to say something to it, or from elsewhere: gamebox runs say last "use the new API". Ctrl-C pauses it.
"""
CHECK_HELP = (
    "A command that must pass in the sandbox before the run may end; the agent is told what did not. May be repeated. "
    "Programs that the agent has put into ~/.local/bin are found first."
)
VERIFIER_HELP = "An agent, such as verifier, that must agree that the task is done before the run may end."
SCHEMA_HELP = "A file with the JSON schema that the result (the arguments of finish) must fit; printed with --json."
_REPO = typer.Option(None, help="Folder of the repository, copied into the sandbox: that of the git work tree you are in.")
_INPUT = typer.Option([], "--input", metavar="KEY=VALUE", help="An input of the agent besides the task.")
_AGENTS = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP)
_MCP = typer.Option([], "--mcp", metavar="NAME=COMMAND|ADDRESS", help=MCP_HELP)
_HEADER = typer.Option([], "--mcp-header", metavar="NAME:HEADER=VARIABLE", help=MCP_HEADER_HELP)
_IMAGE = typer.Option(None, help=f"Image of the sandbox: the agent's, else {sandbox_cli.DEFAULT_IMAGE}.")
_MEMORY = typer.Option(sandbox_cli.DEFAULT_MEMORY, help="Memory limit of the sandbox, as in 512m or 2g.")
_CPUS = typer.Option(sandbox_cli.DEFAULT_CPUS, help="How many processors the sandbox may use.")
_RECORD_CHANGES = typer.Option(
    False, "--record-changes", help="Record what each action has made of the files (gamebox runs export shows it)."
)
_HISTORY = typer.Option(False, "--history", help="Copy the repository's commits, too; else there is one, of the files.")
_APPROVE = typer.Option("never", metavar="never|risky|always", help="Which actions you are asked about first.")


def agent(
    ctx: typer.Context,
    task: str = typer.Argument(..., help="What the agent is to do."),
    agent: str | None = typer.Option(None, "--agent", metavar="NAME", help="Which agent; see gamebox hub ls."),
    repo: Path | None = _REPO,
    model: str | None = typer.Option(
        None, envvar="GAMEBOX_MODEL", help="Model as provider/name; its key comes from the environment."
    ),
    script: Path | None = typer.Option(None, help="A JSON file of replies to follow instead of a model."),
    given: list[str] = _INPUT,
    agents: list[Path] = _AGENTS,
    language: str | None = typer.Option(None, help=LANGUAGE_HELP),
    apply: bool = typer.Option(False, "--apply", help="Write the changes back when the agent has finished."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON instead of the diff."),
    check: list[str] = typer.Option([], "--check", metavar="COMMAND", help=CHECK_HELP),
    verifier: str | None = typer.Option(None, metavar="NAME", help=VERIFIER_HELP),
    result_schema: Path | None = typer.Option(None, metavar="FILE", help=SCHEMA_HELP),
    mcp: list[str] = _MCP,
    mcp_header: list[str] = _HEADER,
    approve: str = _APPROVE,
    max_iterations: int = typer.Option(50, help="Steps at most."),
    max_cost: float | None = typer.Option(None, help="US dollars at most."),
    max_seconds: float | None = typer.Option(None, help="Seconds at most."),
    max_tokens: int | None = typer.Option(None, help="Tokens at most, input and output."),
    image: str | None = _IMAGE,
    pull: bool = typer.Option(False, "--pull", help=PULL_HELP),
    memory: str = _MEMORY,
    cpus: float = _CPUS,
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    network: str | None = typer.Option(None, help=NETWORK_HELP),
    allow: list[str] = typer.Option([], "--allow", metavar="RULE", help=ALLOW_HELP),
    cache: Path | None = typer.Option(None, metavar="FOLDER", help=CACHE_HELP),
    network_log: Path | None = typer.Option(None, "--network-log", metavar="FILE", help=LOG_HELP),
    record_changes: bool = _RECORD_CHANGES,
    history: bool = _HISTORY,
    log: Path | None = typer.Option(None, metavar="FILE", help=RUNS_LOG_HELP),
    no_log: bool = typer.Option(False, "--no-log", help="Record nothing; the run cannot be resumed then."),
    no_agents_md: bool = typer.Option(False, "--no-agents-md", help="Leave out the repository's AGENTS.md and skills."),
) -> None:  # fmt: skip
    """Let an agent work, on a copy of a repository; ends with the diff. Exit code 0: finished, 1: not finished."""
    options = dict(locals())
    terminal().show("starting")
    from agent.commands import run_agent

    chosen = options.pop("ctx").get_parameter_source("model")
    raise typer.Exit(run_agent(options, model_is_default=getattr(chosen, "name", "") != "COMMANDLINE"))
