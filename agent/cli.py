"""The command ``gamebox``. Nothing heavy is imported before a command needs it: ``gamebox --help`` is fast."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NoReturn

import typer

from sandbox.cli import inside as cli_inside
from sandbox.cli import kept as cli_kept
from sandbox.cli import run as sandbox_cli
from sandbox.cli import shell as cli_shell
from sandbox.cli.errors import fail
from sandbox.cli.status_line import terminal
from sandbox.docker.spec import DEFAULT_IMAGE

from . import cli_agent, cli_batch, cli_hub
from .cli_config import load_defaults
from .cli_help import HelpfulGroup, keep_examples_whole
from .cli_runs import app as runs

# Commands that start a sandbox or look for one.
_SLOW = ("run", "exec", "shell", "cp", "logs", "agent", "batch", "demo")
# What writing to a stream can fail with, other than that nobody reads it.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Interrupted(Exception):  # noqa: N818 - no error
    """Ctrl-C, or a signal that is taken for it."""


class Commands(HelpfulGroup):
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

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """See the base class. Options that are not given take the user's own defaults."""
        return super().make_context(info_name, args, parent, default_map=load_defaults(self), **extra)

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
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", context_settings={"allow_interspersed_args": False}, epilog=sandbox_cli.EPILOG)(sandbox_cli.run)
app.command("agent", epilog=cli_agent.EPILOG)(cli_agent.agent)
app.command("exec", epilog=cli_inside.EXEC_EPILOG)(cli_inside.exec_)
app.command("shell", epilog=cli_shell.EPILOG)(cli_shell.shell)
app.command("cp", epilog=cli_inside.CP_EPILOG)(cli_inside.cp)
app.command("logs", epilog=cli_inside.LOGS_EPILOG)(cli_inside.logs)
app.command("ls", epilog=cli_kept.LS_EPILOG)(cli_kept.ls)
app.add_typer(runs)
app.command("batch", epilog=cli_batch.EPILOG)(cli_batch.batch)
app.command("rm", epilog=cli_kept.RM_EPILOG)(cli_kept.rm)
app.add_typer(cli_hub.app, name="hub")

def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Log to standard error and show tracebacks."),
    _version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
) -> None:
    """Run coding agents, and anything else, in sandboxes."""
    if debug:
        os.environ["GAMEBOX_DEBUG"] = "1"
        import logging

        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)


@app.command()
def demo(
    model: str | None = typer.Option(None, help="Use a real model, given as provider/name."),
    image: str = typer.Option(DEFAULT_IMAGE, help="Image of the sandbox."),
) -> None:
    """Watch an agent find and fix a real bug in a real library, in a sandbox without a network."""
    from agent.demo.run import run_demo

    raise typer.Exit(run_demo(model, image))


@app.command()
def check(
    target: str = typer.Argument(..., metavar="AGENT", help="module:attribute or path/to/file.py:attribute."),
) -> None:
    """Check an agent before it is used: its actions, memory, environment and how it handles failures."""
    from .commands import run_check

    raise typer.Exit(run_check(target))


@app.command()
def setup() -> None:
    """Install everything a sandbox needs: an engine, the images and the guest's runtime. Skips what is already there."""
    from sandbox.docker.setup.provision import setup as provide

    provide(lambda line: typer.echo(line))


DOCTOR_EPILOG = """Examples:

  gamebox doctor --json

  gamebox doctor --runtime runsc
"""


@app.command(epilog=DOCTOR_EPILOG)
def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    runtime: str | None = typer.Option(None, help="OCI runtime of the engine to test instead of its default."),
) -> None:
    """Test everything a sandbox guarantees on this engine. Exit code 0: all enforced, 1: something is not, 2: no engine."""
    from sandbox.cli.doctor import command

    raise typer.Exit(command(as_json, runtime))


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"gamebox {installed('gamebox')}")


keep_examples_whole(app)


def main(args: list[str] | None = None) -> Any:
    """Run the command line; errors are said in one or two lines on standard error, and exit with 2.

    With --json an error is also the failure envelope on standard output.
    """
    _speak_utf8()
    given = sys.argv[1:] if args is None else args
    as_json = _asks_for_json(given)
    if _command_of(given) in _SLOW and not {"-h", "--help"} & set(given):
        terminal().show("starting")  # before anything heavy is imported
    try:
        try:
            return app(args=args, standalone_mode=True)
        finally:
            terminal().hide()
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
            from sandbox.cli.errors import envelope_for_cli
            from sandbox.envelope import Failure

            sandbox_cli.print_json(envelope_for_cli(Failure[Any].of(error)).to_dict())
        fail(error, _command_of(given))


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


def _command_of(args: list[str]) -> str:
    return next((arg for arg in args if not arg.startswith("-")), "")


def _asks_for_json(args: list[str]) -> bool:
    return "--json" in (args[: args.index("--")] if "--" in args else args)
