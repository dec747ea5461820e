"""The command ``gamebox``. Nothing heavy is imported before a command needs it: ``gamebox --help`` is fast."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NoReturn

import typer

from sandbox.cli.errors import fail
from sandbox.cli.status_line import terminal

from . import process
from .config import load_defaults
from .help import HelpfulGroup, keep_examples_whole
from .lazy_commands import LazyCommand, LazyCommands
from .plain_values import keep_plain_values

# Commands that start a sandbox or look for one.
_SLOW = ("run", "exec", "shell", "cp", "logs", "agent", "batch", "demo")
# What writing to a stream can fail with, other than that nobody reads it.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


# In the order of ``gamebox --help``; None stands for a command that is declared below.
_COMMANDS = {
    "run": LazyCommand(
        "sandbox.cli.run:run",
        "Run a command in a fresh sandbox, or in a kept one, and show its output as it comes.",
        settings={"allow_interspersed_args": False},
    ),
    "agent": LazyCommand("agent.cli.agent:agent", "Let an agent work on a copy of a repository, and print the diff."),
    "exec": LazyCommand("sandbox.cli.inside:exec_", "Run a command in a kept sandbox.", epilog="EXEC_EPILOG"),
    "shell": LazyCommand("sandbox.cli.shell:shell", "Open a shell in a fresh sandbox, or in a kept one."),
    "cp": LazyCommand(
        "sandbox.cli.inside:cp", "Copy a file or a folder into a kept sandbox, or out of it.", epilog="CP_EPILOG"
    ),
    "logs": LazyCommand(
        "sandbox.cli.inside:logs",
        "Print the output of a background command in a kept sandbox; without ID, list the commands if there are several.",
        epilog="LOGS_EPILOG",
    ),
    "ls": LazyCommand(
        "sandbox.cli.kept:ls",
        "List the sandboxes on the engine, both kept ones and those in use by a process.",
        epilog="LS_EPILOG",
    ),
    "image": LazyCommand(
        "sandbox.cli.image.commands:app", "Build images for sandboxes, list and remove them, and move them between machines."
    ),
    "setups": LazyCommand("sandbox.cli.setups:app", "List and remove what --setup has installed."),
    "batch": LazyCommand("agent.cli.batch:batch", "Run many tasks."),
    "serve": LazyCommand("sandbox.cli.serve:app", "Serve sandboxes over HTTP until SIGTERM."),
    "rm": LazyCommand(
        "sandbox.cli.kept:rm", "Remove sandboxes and everything in them, and print their ids.", epilog="RM_EPILOG"
    ),
    "demo": LazyCommand(
        "agent.cli.demo:demo", "Watch an agent find and fix a real bug in a real library, in a sandbox without a network."
    ),
    "check": None,
    "setup": None,
    "doctor": None,
    "version": None,
    "runs": LazyCommand("agent.cli.runs:app", "Show, follow, resume, export and remove recorded runs."),
    "hub": LazyCommand("agent.cli.hub:app", "List the available agents and show what they consist of."),
    "mcp": LazyCommand(
        "agent.cli.mcp:app",
        "Serve a sandbox to an MCP client over standard input and output; or sign in to MCP servers that agents use.",
    ),
    "new": LazyCommand("agent.cli.new:app", "Write the files of something new."),
}


class Interrupted(Exception):  # noqa: N818 - no error
    """Ctrl-C, or a signal that is treated like it."""


class Commands(HelpfulGroup):
    """The commands. Ctrl-C and wrong arguments become exceptions of ours, because typer would print its own texts for
    them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        keep_plain_values(self)
        self._lazy = LazyCommands({name: lazy or self.commands[name] for name, lazy in _COMMANDS.items()})
        self.commands = self._lazy

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, without loading one."""
        return list(self._lazy)

    def help_of(self, name: str) -> str:
        """Return the help of one of the commands, or its first sentence if it was not loaded."""
        return self._lazy.help_of(name)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments. The help of a command is shown without that: typer would import pydantic for the
        values.
        """
        command = self.get_command(ctx, args[0]) if len(args) == 2 and args[1] in ctx.help_option_names else None
        if command is not None:
            inner = command.context_class(command, info_name=args[0], parent=ctx, **command.context_settings)
            typer.echo(command.get_help(inner))
            ctx.exit()
        return super().parse_args(ctx, args)

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make the context. Options that are not given take the user's own defaults."""
        return super().make_context(info_name, args, parent, default_map=load_defaults(self), **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises Interrupted, and SandboxError ``invalid_arguments``."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except Exception as error:
            wording = getattr(error, "format_message", None)  # of typer's own usage errors
            if wording is None:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: the wording is its help
                typer.echo(wording(), err=True)
                raise typer.Exit(2) from None
            from sandbox.errors import ErrorCode, SandboxError

            _, _, command = str(getattr(getattr(error, "ctx", None), "command_path", "")).partition(" ")
            hint = f"See: gamebox {command}".rstrip() + " --help."
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

def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Log to standard error and show tracebacks."),
    _version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
) -> None:
    """Run coding agents, and anything else, in sandboxes."""
    if debug:
        os.environ["GAMEBOX_DEBUG"] = "1"
        import logging

        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)


@app.command()
def check(
    target: str = typer.Argument(..., metavar="AGENT", help="module:attribute or path/to/file.py:attribute."),
) -> None:
    """Check an agent before it is used: its actions, memory, environment and how it handles failures."""
    from agent.job.commands import run_check

    raise typer.Exit(run_check(target))


@app.command()
def setup(
    code_interpreter: bool = typer.Option(
        False, "--code-interpreter", help="Make the image of E2B's code interpreter, too: 300 MB, one to two minutes."
    ),
    node: bool = typer.Option(False, "--node", help="Also make the image gamebox/node: Node.js and npm."),
    toolchains: bool = typer.Option(
        False, "--toolchains", help="Also make the image gamebox/toolchains: Node.js, Go, Rust, Java, C and C++."
    ),
    browser: bool = typer.Option(
        False, "--browser", help="Also make the image with a browser, gamebox/browser: 650 MB, one to two minutes."
    ),
) -> None:
    """Install everything a sandbox needs: an engine, the images and the guest's runtime. Skips what is already there."""
    from sandbox.docker.setup import provision

    asked = {
        provision.INTERPRETER_IMAGE: code_interpreter,
        provision.NODE_IMAGE: node,
        provision.TOOLCHAINS_IMAGE: toolchains,
        provision.BROWSER_IMAGE: browser,
    }
    provision.setup(lambda line: typer.echo(line), [image for image, wanted in asked.items() if wanted])


DOCTOR_EPILOG = """Examples:

  gamebox doctor --json

  gamebox doctor --runtime runsc

  gamebox doctor --agents
"""


@app.command(epilog=DOCTOR_EPILOG)
def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    runtime: str | None = typer.Option(None, help="OCI runtime of the engine to test instead of its default."),
    agents: bool = typer.Option(False, "--agents", help="Test the actions of agents instead: each is called, without a model."),
) -> None:
    """Test everything a sandbox guarantees on this engine. Exit code 0: all enforced, 1: something is not, 2: no engine."""
    if agents:
        from agent.job.commands import run_dummy

        raise typer.Exit(run_dummy(runtime, as_json=as_json))
    from sandbox.cli.doctor import command

    raise typer.Exit(command(as_json, runtime))


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"gamebox {installed('gamebox')}")


keep_examples_whole(app)


def main(args: list[str] | None = None) -> Any:
    """Run the command line. Errors are one or two lines on standard error, with exit code 2.

    With --json an error is also printed as the failure envelope to standard output.
    """
    return process.main() if args is None else command_line(args)


def command_line(args: list[str] | None) -> Any:
    """Run the command line; None stands for the arguments and the end of this process."""
    _speak_utf8()
    arguments = sys.argv[1:] if args is None else args
    as_json = _asks_for_json(arguments)
    if _command_of(arguments) in _SLOW and not {"-h", "--help"} & set(arguments):
        terminal().show("starting")  # before anything heavy is imported
    try:
        try:
            return app(args=args, standalone_mode=True)
        finally:
            terminal().hide()
            sys.stdout.flush()
    except (KeyboardInterrupt, Interrupted):
        if args is None:
            process.ignore_interrupts()
        _end_interrupted(as_json)
    except OSError as error:
        _end_unwritten(error)
    except Exception as error:
        from sandbox.errors import SandboxError

        if not isinstance(error, SandboxError) or os.environ.get("GAMEBOX_DEBUG"):
            raise
        if as_json:
            from sandbox.cli.errors import envelope_for_cli
            from sandbox.cli.run import print_json
            from sandbox.envelope import Failure

            print_json(envelope_for_cli(Failure[Any].of(error)).to_dict())
        fail(error, _command_of(arguments))


def _end_interrupted(as_json: bool) -> NoReturn:
    _say("\ninterrupted\n")
    if as_json:
        from sandbox.cli.run import print_json
        from sandbox.envelope import Failure
        from sandbox.errors import ErrorCode

        stopped = Failure[Any](ErrorCode.cancelled, "It was interrupted.", "Start it again.", effects="unknown")
        print_json(stopped.to_dict())
    raise SystemExit(130) from None


def _end_unwritten(error: OSError) -> NoReturn:
    """Exit if output could not be written; raise any other error again."""
    gone = isinstance(error, BrokenPipeError)  # as with | head: the program that read our output has had enough
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
    """Write text as UTF-8 in every locale, and bytes of data that are not UTF-8 unchanged."""
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors=errors)


def _command_of(args: list[str]) -> str:
    return next((arg for arg in args if not arg.startswith("-")), "")


def _asks_for_json(args: list[str]) -> bool:
    return "--json" in (args[: args.index("--")] if "--" in args else args)
