"""The command ``gamebox run``: one command in a fresh sandbox."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from .envelope import Envelope
    from .environment import Environment
    from .errors import SandboxError
    from .results import RunResult

# Both streams are held in memory on this side; what is beyond this is cut in the middle, and said so.
KEEP_OUTPUT_BYTES = 8 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
DEFAULT_IMAGE = "gamebox/base"

EPILOG = """Examples:

  gamebox run -- python3 -c 'print(6*7)'

  gamebox run --workspace ./mylib --timeout 60 -- sh -c 'python3 -m unittest 2>&1 | tail'
"""


def run(
    command: list[str] = typer.Argument(..., metavar="COMMAND", help="The program and its arguments."),
    image: str = typer.Option(DEFAULT_IMAGE, help="Image of the sandbox."),
    workspace: Path | None = typer.Option(None, help="Folder to copy in; nothing is written back to it."),
    timeout: float = typer.Option(120.0, help="Seconds after which the command and all it started are killed."),
    network: str = typer.Option("none", help="none, or bridge to reach the outside."),
    memory: str = typer.Option("2g", help="Memory limit, as in 512m or 2g."),
    cpus: float = typer.Option(2.0, help="How many processors at most."),
    env: list[str] = typer.Option([], "--env", "-e", metavar="K=V", help="Environment variable; may be repeated."),
    stdin: bool = typer.Option(False, "--stdin", "-i", help="Give the command this command's standard input."),
    as_json: bool = typer.Option(False, "--json", help="Print the envelope as JSON."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
) -> None:
    """Run one command in a fresh sandbox and exit as it did: 124 after a timeout, 128+n after signal n."""
    variables = dict(_variable(text) for text in env)
    if timeout <= 0:
        raise bad_input(f"--timeout {timeout:g} is not positive.", "Give the seconds the command may take.")
    given = sys.stdin.buffer.read() if stdin else None
    with sandbox_of(image, workspace, network, memory, cpus, local) as sandbox:
        answer = sandbox.run(
            argv=command, env=variables, stdin=given, timeout_seconds=timeout, keep_output_bytes=KEEP_OUTPUT_BYTES
        )
    if as_json:
        sys.stdout.write(json.dumps(answer.to_dict(), ensure_ascii=False) + "\n")
    else:
        _print(answer)
    raise typer.Exit(exit_code(answer))


def sandbox_of(image: str, workspace: Path | None, network: str, memory: str, cpus: float, local: bool) -> Environment:
    """The sandbox that the options ask for, not started yet. Raises SandboxError for options that are no good."""
    from .limits import Limits
    from .network.policy import Network

    if network not in {"none", "bridge"}:
        raise bad_input(f"--network {network!r} is not known.", "Use none or bridge.")
    limits = Limits(memory_bytes=size_of(memory), cpus=cpus)
    if local:
        from .local import LocalEnvironment

        sys.stderr.write("warning: --local runs on this host without isolation\n")
        return LocalEnvironment(workspace=workspace, limits=limits)
    from .docker.environment import DockerEnvironment

    policy = Network.none() if network == "none" else Network.bridge()
    return DockerEnvironment(image=image, workspace=workspace, limits=limits, network=policy, report=_report)


def size_of(text: str) -> int:
    """Bytes of a size such as 512m or 2g (powers of 1024). Raises SandboxError ``invalid_limits``."""
    from .errors import ErrorCode, SandboxError

    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SandboxError(ErrorCode.invalid_limits, f"{text!r} is no size.", "Write it as 512m or 2g.")
    return int(float(match.group(1)) * (1 << _UNITS[match.group(2).lower()]))


def exit_code(answer: Envelope[RunResult]) -> int:
    """The exit code for the answer to a run, as shells have it."""
    import signal

    if answer.ok:
        name = answer.result.signal
        number = getattr(signal, name, 0) if name else 0
        return 128 + int(number) if name else answer.result.exit_code or 0
    return {"timeout": 124, "program_not_found": 127, "program_not_executable": 126}.get(answer.code.value, 2)


def say_error(error: SandboxError) -> None:
    """The error and its hint on standard error."""
    sys.stderr.write(f"error: {error.message} ({error.code.value})\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")


def bad_input(message: str, hint: str) -> SandboxError:
    """The error for an option that is no good."""
    from .errors import ErrorCode, SandboxError

    return SandboxError(ErrorCode.invalid_configuration, message, hint)


def _variable(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not name or "\0" in text:
        raise bad_input(f"--env {text!r} names no variable.", "Write it as NAME=VALUE, or NAME to hand on your own.")
    if given:
        return name, value
    if name not in os.environ:
        raise bad_input(f"--env {name} has no value, and it is not set here.", f"Write --env {name}=VALUE.")
    return name, os.environ[name]


def _print(answer: Envelope[RunResult]) -> None:
    result: Any = answer.result
    if result is not None:
        sys.stdout.write(result.stdout)
        sys.stdout.flush()
        sys.stderr.write(result.stderr)
        if result.truncated:
            sys.stderr.write(f"\nwarning: {result.output_bytes} bytes of output, cut in the middle\n")
    for notice in answer.notices:
        sys.stderr.write(f"notice: {notice.message}{' ' + notice.hint if notice.hint else ''}\n")
    if not answer.ok:
        sys.stderr.write(f"error: {answer.error} ({answer.code.value})\n")
        if answer.hint:
            sys.stderr.write(f"hint: {answer.hint}\n")


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def fail(error: SandboxError) -> NoReturn:
    """Say the error and exit with 2."""
    say_error(error)
    raise SystemExit(2)
