"""The command ``gamebox``. Nothing heavy is imported before a command needs it: ``gamebox --help`` is fast."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
import typer.core

from sandbox import cli as sandbox_cli
from sandbox import cli_kept
from sandbox.cli_network import ALLOW_HELP, CACHE_HELP, LOG_HELP, NETWORK_HELP

from . import cli_batch, cli_hub
from .cli_runs import LOG_HELP as RUNS_LOG_HELP
from .cli_runs import app as runs

# What writing to a stream can fail with, other than that nobody reads it.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Interrupted(Exception):  # noqa: N818 - no error
    """Ctrl-C, or a signal that is taken for it."""


class Commands(typer.core.TyperGroup):
    """The commands. What ends one early leaves as an exception of ours, for typer has no words for Ctrl-C and only usage for
    wrong arguments.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """See the base class. The help of a command is shown without parsing: typer would import pydantic for the values."""
        command = self.get_command(ctx, args[0]) if len(args) == 2 and args[1] in ctx.help_option_names else None
        if command is not None:
            inner = command.context_class(command, info_name=args[0], parent=ctx, **command.context_settings)
            typer.echo(command.get_help(inner))
            ctx.exit()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """See the base class. Raises Interrupted, and SandboxError ``invalid_arguments``."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except Exception as error:
            wording = getattr(error, "format_message", None)  # of typer's own usage errors
            if wording is None:
                raise
            from sandbox.errors import ErrorCode, SandboxError

            hint = f"See: gamebox {ctx.invoked_subcommand or ''}".rstrip() + " --help."
            raise SandboxError(ErrorCode.invalid_arguments, wording(), hint) from error


app = typer.Typer(
    name="gamebox",
    cls=Commands,
    help="Run coding agents, and anything else, in sandboxes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", context_settings={"allow_interspersed_args": False}, epilog=sandbox_cli.EPILOG)(sandbox_cli.run)
app.command("ls", epilog=cli_kept.LS_EPILOG)(cli_kept.ls)
app.add_typer(runs)
app.command("batch", epilog=cli_batch.EPILOG)(cli_batch.batch)
app.command("rm", epilog=cli_kept.RM_EPILOG)(cli_kept.rm)
app.add_typer(cli_hub.app, name="hub")

AGENT_EPILOG = """Examples:

  gamebox agent "make the failing test pass" --repo ./mylib --model provider/name

  gamebox agent "add a --quiet option" --repo . --model provider/name --max-cost 0.50 --apply

  gamebox agent "what is 17 * 23?" --agent math --model provider/name
"""
AGENTS_HELP = "Folder with further agents, which count before all others; may be repeated."


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Log to standard error and show tracebacks."),
) -> None:
    """Run coding agents, and anything else, in sandboxes."""
    if debug:
        os.environ["GAMEBOX_DEBUG"] = "1"
        import logging

        logging.basicConfig(level=logging.INFO, stream=sys.stderr)


@app.command(epilog=AGENT_EPILOG)
def agent(
    task: str = typer.Argument(..., help="What the agent is to do."),
    name: str | None = typer.Option(None, "--agent", metavar="NAME", help="Which agent; see gamebox hub ls."),
    repo: Path | None = typer.Option(None, help="Folder of the repository; it is copied into the sandbox."),
    model: str | None = typer.Option(None, help="Model as provider/name; its key comes from the environment."),
    script: Path | None = typer.Option(None, help="A JSON file of replies to follow instead of a model."),
    given: list[str] = typer.Option([], "--input", metavar="KEY=VALUE", help="An input of the agent besides the task."),
    agents: list[Path] = typer.Option([], "--agents", metavar="DIR", help=AGENTS_HELP),
    image: str | None = typer.Option(
        None, help=f"Image of the sandbox: the agent's, else {sandbox_cli.DEFAULT_IMAGE}."
    ),
    apply: bool = typer.Option(False, "--apply", help="Write the changes back when the agent has finished."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON instead of the diff."),
    language: str | None = typer.Option(None, help="function_calling, json ...: in place of the agent's own."),
    max_iterations: int = typer.Option(50, help="Steps at most."),
    max_cost: float | None = typer.Option(None, help="US dollars at most."),
    max_seconds: float | None = typer.Option(None, help="Seconds at most."),
    max_tokens: int | None = typer.Option(None, help="Tokens at most, input and output."),
    memory: str = typer.Option(sandbox_cli.DEFAULT_MEMORY, help="Memory limit of the sandbox, as in 512m or 2g."),
    cpus: float = typer.Option(sandbox_cli.DEFAULT_CPUS, help="How many processors the sandbox may use."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    network: str | None = typer.Option(None, help=NETWORK_HELP),
    allow: list[str] = typer.Option([], "--allow", metavar="RULE", help=ALLOW_HELP),
    cache: Path | None = typer.Option(None, metavar="FOLDER", help=CACHE_HELP),
    network_log: Path | None = typer.Option(None, "--network-log", metavar="FILE", help=LOG_HELP),
    record_changes: bool = typer.Option(
        False, "--record-changes", help="Record what each action has made of the files (gamebox runs export shows it)."
    ),
    approve: str = typer.Option("never", metavar="never|risky|always", help="Which actions you are asked about first."),
    log: Path | None = typer.Option(None, metavar="FILE", help=RUNS_LOG_HELP),
    no_log: bool = typer.Option(False, "--no-log", help="Record nothing; the run cannot be resumed then."),
    no_agents_md: bool = typer.Option(False, "--no-agents-md", help="Leave out the repository's AGENTS.md and skills."),
) -> None:
    """Let an agent work, on a copy of a repository; ends with the diff. Exit code 0: finished, 1: not finished."""
    from agent.commands import run_agent

    code = run_agent(
        task=task, repo=repo, model=model, script=script, image=image, apply=apply, as_json=as_json, language=language,
        max_iterations=max_iterations, max_cost=max_cost, max_seconds=max_seconds, max_tokens=max_tokens, memory=memory,
        cpus=cpus, local=local, network=network, allow=allow, cache=cache, network_log=network_log, approve=approve, log=log,
        record_changes=record_changes, no_log=no_log, agent=name, agents=agents, given=given, agents_md=not no_agents_md,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def demo(
    model: str | None = typer.Option(None, help="Let a real model do it, as provider/name."),
    image: str = typer.Option(sandbox_cli.DEFAULT_IMAGE, help="Image of the sandbox."),
) -> None:
    """Watch an agent find and mend a real bug in a real library, in a sandbox without network."""
    from agent.demo.run import run_demo

    raise typer.Exit(run_demo(model, image))


@app.command()
def check(
    target: str = typer.Argument(..., metavar="AGENT", help="module:attribute or path/to/file.py:attribute."),
) -> None:
    """Look an agent over before it is used: its actions, memory, environment and how it takes faults."""
    from agent.commands import run_check

    raise typer.Exit(run_check(target))


@app.command()
def setup() -> None:
    """Get everything a sandbox needs: an engine, the images and the guest's runtime. Does only what is missing."""
    from sandbox.docker.provision import setup as provide

    provide(lambda line: typer.echo(line))


DOCTOR_EPILOG = """Examples:

  gamebox doctor --json

  gamebox doctor --runtime runsc
"""


@app.command(epilog=DOCTOR_EPILOG)
def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print what was found as JSON."),
    runtime: str | None = typer.Option(None, help="Try this one of the engine's OCI runtimes, not its default."),
) -> None:
    """Try every promise of a sandbox on this engine. Exit code 0: all enforced, 1: something is not, 2: no engine."""
    from sandbox.docker.doctor import command

    raise typer.Exit(command(as_json, runtime))


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"gamebox {installed('gamebox')}")


def main(args: list[str] | None = None) -> Any:
    """Run the command line; errors are said in one or two lines on standard error, and exit with 2.

    With --json an error is also the failure envelope on standard output.
    """
    _speak_utf8()
    as_json = _asks_for_json(sys.argv[1:] if args is None else args)
    try:
        try:
            return app(args=args, standalone_mode=True)
        finally:
            sys.stdout.flush()
    except (KeyboardInterrupt, Interrupted):
        _end_interrupted(as_json)
    except OSError as error:
        _end_unwritten(error)
    except Exception as error:
        from sandbox.errors import SandboxError

        if not isinstance(error, SandboxError) or os.environ.get("GAMEBOX_DEBUG"):
            raise
        if as_json:
            from sandbox.cli_words import envelope_for_cli
            from sandbox.envelope import Failure

            sandbox_cli.print_json(envelope_for_cli(Failure[Any].of(error)).to_dict())
        sandbox_cli.fail(error)


def _end_interrupted(as_json: bool) -> NoReturn:
    _say("\ninterrupted\n")
    if as_json:
        from sandbox.envelope import Failure
        from sandbox.errors import ErrorCode

        stopped = Failure[Any](ErrorCode.cancelled, "It was interrupted.", "Start it again.", effects="unknown")
        sandbox_cli.print_json(stopped.to_dict())
    raise SystemExit(130) from None


def _end_unwritten(error: OSError) -> NoReturn:
    """Exit for an output that cannot be written; anything else is raised again."""
    gone = isinstance(error, BrokenPipeError)  # as with | head: whoever read our output has had enough
    if not gone and (error.errno not in _UNWRITABLE or error.filename is not None):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail once more at the end
    if not gone:
        _say(f"error: the output could not be written: {error.strerror} (io_error)\nhint: Free some space there.\n")
    raise SystemExit(1 if gone else 2) from None


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # the terminal is gone, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _speak_utf8() -> None:
    """Text goes out as UTF-8 whatever the locale says; in data, bytes that are no text as the bytes they were."""
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors=errors)


def _asks_for_json(args: list[str]) -> bool:
    return "--json" in (args[: args.index("--")] if "--" in args else args)
