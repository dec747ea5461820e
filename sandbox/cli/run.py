"""The command ``gamebox run``: one command in a fresh sandbox."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer

from sandbox.messages.command_line import envelope_for_cli, message_for_cli
from sandbox.readers import hint_for

from .conflicts import refuse_with_in, refuse_with_local
from .network_options import (  # fmt: skip
    ALLOW_HELP,
    CACHE_HELP,
    DISK_HELP,
    HEADER_HELP,
    IN_HELP,
    KEEP_HELP,
    LOG_HELP,
    NETWORK_HELP,
    PROFILE_HELP,
    PULL_HELP,
    SERVICE_HELP,
    USER_HELP,
    cache_in,
    connection_file,
    kept_one,
    policy_of,
    services_of,
)
from .status_line import Progress, progress, terminal, terminal_columns

if TYPE_CHECKING:
    from sandbox.envelope import Envelope
    from sandbox.environment.sandboxed import GuestEnvironment
    from sandbox.errors import SandboxError
    from sandbox.limits import Limits
    from sandbox.network.services.service import Service
    from sandbox.operations import RunResult

# With --json the sandbox is gone when the output is printed, so all of it has to be kept; the guest keeps it in the sandbox's
# memory, and this share of that is no harm to the command.
KEPT_SHARE_OF_MEMORY = 1 / 32
# Notices that mean nothing here: what was printed are the very bytes, and all of them.
_SAID_OTHERWISE = {"output_cut", "output_not_text"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_VARIABLE = re.compile(r"[^\s=]+")
_LEAST_BYTES = 1 << 20
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
DEFAULT_IMAGE = "gamebox/base"
DEFAULT_MEMORY = "2g"
DEFAULT_CPUS = 2.0
DEFAULT_PROFILE = "default"
DEFAULT_KEEP_SECONDS = 3600.0

_EXIT_AS_OTHERS = ("run", "exec", "shell")
_OWN_FAILURE = 125
"""Exit status of run, exec and shell when gamebox itself fails, so that it is no exit status of the command."""


EPILOG = """Examples:

  gamebox run -- python3 -c 'print(6*7)'

  gamebox run --workspace ./mylib --timeout 60 \\
    -- sh -c 'python3 -m unittest 2>&1 | tail'

  gamebox run --profile root --allow example.com \\
    -- sh -c 'apt-get update && apt-get install -y jq'

  gamebox run --allow example.com --allow '*.example.org:443' \\
    -- curl -sS https://example.com/

  API_KEY=... gamebox run \\
    --service llm=https://api.example.com \\
    --service-header llm:X-Api-Key=API_KEY \\
    -- curl http://llm.internal/v1/

  gamebox run --allow example.com --network-log log.jsonl \\
    -- curl -sS https://example.com/

  gamebox run --disk 20g --runtime runsc -- ./build.sh

  gamebox run --forward 8000 --timeout 3600 \\
    -- python3 -m http.server 8000

  gamebox run --keep --name work -- git init

  gamebox exec work -- git status
"""


def run(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="COMMAND", help="The program and its arguments."),
    image: str = typer.Option(DEFAULT_IMAGE, help="Image of the sandbox."),
    pull: bool = typer.Option(False, "--pull", help=PULL_HELP),
    workspace: Path | None = typer.Option(None, help="Folder to copy in; nothing is written back to it."),
    timeout: float = typer.Option(120.0, help="Seconds after which the command and everything it started are killed."),
    network: str | None = typer.Option(None, help=NETWORK_HELP),
    allow: list[str] = typer.Option([], "--allow", metavar="RULE", help=ALLOW_HELP),
    cache: Path | None = typer.Option(None, metavar="FOLDER", help=CACHE_HELP),
    network_log: Path | None = typer.Option(None, "--network-log", metavar="FILE", help=LOG_HELP),
    service: list[str] = typer.Option([], "--service", metavar="NAME=UPSTREAM", help=SERVICE_HELP),
    service_header: list[str] = typer.Option([], "--service-header", metavar="NAME:HEADER=VARIABLE", help=HEADER_HELP),
    memory: str = typer.Option(DEFAULT_MEMORY, help="Memory limit, as in 512m or 2g."),
    cpus: float = typer.Option(DEFAULT_CPUS, help="Maximum number of processors."),
    disk: str | None = typer.Option(None, help=DISK_HELP),
    profile: str = typer.Option(DEFAULT_PROFILE, help=PROFILE_HELP),
    user: str | None = typer.Option(None, help=USER_HELP),
    runtime: str | None = typer.Option(None, help="OCI runtime of the engine to use, as in runsc."),
    env: list[str] = typer.Option([], "--env", "-e", metavar="K=V", help="Environment variable; may be repeated."),
    stdin: bool = typer.Option(False, "--stdin", "-i", help="Pass standard input on to the command."),
    as_json: bool = typer.Option(False, "--json", help="Print the envelope as JSON."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    keep: bool = typer.Option(False, "--keep", help=KEEP_HELP),
    name: str | None = typer.Option(None, help="Keep the sandbox, under this name."),
    keep_seconds: float | None = typer.Option(None, help="Keep the sandbox until unused for N seconds (3600)."),
    inside: str | None = typer.Option(None, "--in", metavar="ID", help=IN_HELP),
    forward: list[str] = typer.Option(
        [],
        "--forward",
        metavar="PORT",
        help="While the command runs, make a port of the sandbox available on this host's loopback, as in 8000 or 9000:8000.",
    ),
    take_over: bool = typer.Option(False, "--take-over", help="With --in: take the sandbox from a process that is using it."),
) -> None:
    """Run a command in a fresh sandbox, or in a kept one, and show its output as it comes.

    Exits with the command's own status: 128+n after signal n, 124 after a timeout; 125 if gamebox itself failed.
    """
    from .forward import forward as forwarded
    from .forward import ports_of

    ports = ports_of(forward)
    args = {"argv": command, "env": dict(variable_of(text) for text in env), "timeout_seconds": timeout, "user": user}
    seconds = DEFAULT_KEEP_SECONDS if keep_seconds is None else keep_seconds
    kept = Kept(keep or name is not None or keep_seconds is not None, name, inside, seconds, take_over)
    refuse_with_in(ctx, kept)
    folder = None if local else workspace
    with progress() as report:
        asked = sandbox_of(
            image,
            folder,
            network,
            memory,
            cpus,
            local,
            allow=allow,
            cache=cache,
            disk=disk,
            profile=profile,
            runtime=runtime,
            kept=kept,
            services=services_of(service, service_header, os.environ),
            network_log=network_log,
            report=report,
            pull=pull,
        )
        with opened(asked, timeout) as sandbox:
            report.done()
            if local and workspace is not None:  # LocalEnvironment would work in the folder itself
                sandbox.upload(_folder(workspace), ".").unwrap()
            if kept.keep:
                sys.stderr.write(f"kept: {sandbox.container_id[:12]}\n")  # type: ignore[attr-defined]
            forwarded(sandbox, ports)
            carry_out(sandbox, args, as_json=as_json, stdin=stdin, stays=kept.stays)


def carry_out(sandbox: GuestEnvironment, args: dict[str, Any], *, as_json: bool, stdin: bool, stays: bool) -> NoReturn:
    """Run the command of ``args``, show what comes of it, and exit as it did. ``stays``: the sandbox outlives this process."""
    from sandbox.operations import HostArguments
    from sandbox.pipe.watching import Watch

    args = {**args, "stdin": sys.stdin.buffer.read() if stdin else None}
    args["keep_output_bytes"] = _kept(sandbox.limits) if as_json else 0
    watch = None if as_json else Watch(on_bytes=_pass_on)
    answer: Envelope[RunResult] = envelope_for_cli(sandbox.execute("run", HostArguments(args), watch=watch))
    if as_json:
        print_json(_json_of(answer, sandbox, stays))
    else:
        _print(answer)
    raise typer.Exit(exit_code(answer))


def _json_of(answer: Envelope[RunResult], sandbox: GuestEnvironment, stays: bool) -> dict[str, Any]:
    """The JSON of the answer, with the id of a sandbox that stays."""
    if not stays:
        return _without_spill(answer).to_dict()
    return {**answer.to_dict(), "sandbox_id": sandbox.container_id[:12]}  # type: ignore[attr-defined]


@contextmanager
def opened(sandbox: GuestEnvironment, timeout: float | None = None) -> Iterator[GuestEnvironment]:
    """Start the sandbox, and close it whatever happens. Raises SandboxError before that for a timeout it cannot keep."""
    from sandbox.interrupts import terminated_like_interrupted, uninterrupted

    most = sandbox.limits.max_timeout_seconds
    if timeout is not None and not 0 < timeout <= most:  # refuses nan, too
        raise bad_input(
            f"--timeout {timeout:g} is not between 0 and {most:g}.", "Give the number of seconds that the command may take."
        )
    with terminated_like_interrupted():
        try:
            yield sandbox.start()
        finally:
            with uninterrupted():
                sandbox.close()


def _folder(workspace: Path) -> Path:
    if not workspace.is_dir():
        from sandbox.errors import ErrorCode, SandboxError

        raise SandboxError(
            ErrorCode.workspace_invalid, f"The workspace {str(workspace)!r} is not a folder.", "Give a folder that exists."
        )
    return workspace


def _kept(limits: Limits) -> int:
    return min(limits.spill_bytes, int(limits.memory_bytes * KEPT_SHARE_OF_MEMORY))


class Kept(NamedTuple):
    """Whether the sandbox stays when the command is over, under which name, and which one there is already it is to be."""

    keep: bool = False
    name: str | None = None
    inside: str | None = None
    seconds: float = DEFAULT_KEEP_SECONDS
    take_over: bool = False

    @property
    def stays(self) -> bool:
        """Whether the sandbox is there when the command is over."""
        return self.keep or self.inside is not None


def sandbox_of(
    image: str, workspace: Path | None, network: str | None, memory: str, cpus: float, local: bool, *,
    allow: Sequence[str] = (), cache: Path | None = None, disk: str | None = None, profile: str = DEFAULT_PROFILE,
    runtime: str | None = None, kept: Kept = Kept(), services: Sequence[Service] = (), network_log: Path | None = None,
    report: Callable[[str], None] | None = None, pull: bool = False, timeout_seconds: float | None = None,
) -> GuestEnvironment:  # fmt: skip
    """The sandbox that the options ask for, not started yet. Raises SandboxError for options that are no good.

    ``report`` gets a line for each step of the start that takes time; standard error without it. ``timeout_seconds`` is that of
    commands that name none.
    """
    report = report or Progress()
    if kept.inside is not None:
        return kept_one(kept.inside, kept.take_over, network, allow, cache, services, network_log, report)
    from dataclasses import replace

    from sandbox.limits import Limits

    policy = policy_of(network or "none", allow)
    if local:
        asked_for = {"disk": disk, "runtime": runtime, "profile": None if profile == DEFAULT_PROFILE else profile}
        asked_for |= {"allow": next(iter(allow), None), "service": next((each.name for each in services), None)}
        asked_for |= {
            name: str(path) for name, path in (("cache", cache), ("network-log", network_log)) if path is not None
        }
        asked_for |= {"network": network if network == "open" else None}
        refuse_with_local(asked_for, kept)
    disk_bytes = None if disk is None else size_of(disk, "a disk")
    limits = Limits(memory_bytes=size_of(memory), cpus=cpus, disk_bytes=disk_bytes)
    if timeout_seconds is not None:
        limits = replace(limits, timeout_seconds=timeout_seconds)
    # A workspace that fits may be copied in, too.
    limits = replace(limits, transfer_bytes=max(limits.transfer_bytes, limits.workspace_bytes))
    if local:
        return _local(workspace, limits)
    from sandbox.docker.environment import DockerEnvironment

    log = connection_file(network_log, network or "none")
    made = DockerEnvironment(
        image=image, workspace=workspace, limits=limits, network=policy, report=report, profile=profile, runtime=runtime,
        keep=kept.keep, name=kept.name, keep_seconds=kept.seconds, cache=cache_in(cache, network or "none"),
        services=services, pull=pull,
    )  # fmt: skip
    made.on_connection = log
    return made


def _local(workspace: Path | None, limits: Limits) -> GuestEnvironment:
    from sandbox.local import LocalEnvironment

    sys.stderr.write("warning: --local runs on this host without isolation\n")
    return LocalEnvironment(workspace=workspace, limits=limits)


def size_of(text: str, what: str = "memory") -> int:
    """Bytes of a size such as 512m or 2g (powers of 1024). Raises SandboxError ``invalid_limits``."""
    from sandbox.errors import ErrorCode, SandboxError

    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SandboxError(
            ErrorCode.invalid_limits, f"{text!r} is not a valid size of {what}.", "Write it as 512m or 2g."
        )
    size = int(float(match.group(1)) * (1 << _UNITS[match.group(2).lower()]))
    if size < _LEAST_BYTES and not match.group(2):
        raise SandboxError(
            ErrorCode.invalid_limits, f"{text!r} is {size} bytes of {what}.", f"Did you mean {text.strip()}g?"
        )
    return size


def exit_code(answer: Envelope[RunResult]) -> int:
    """The exit status for the answer to a run, as shells have it; 125 where gamebox itself failed."""
    if answer.ok:
        return status_of(answer.result.exit_code, answer.result.signal)
    return {"timeout": 124, "program_not_found": 127, "program_not_executable": 126}.get(
        answer.code.value, _OWN_FAILURE
    )


def status_of(code: int | None, signal_name: str | None) -> int:
    """The status that a shell has for a command that ended with this exit code, or by this signal: 128+n."""
    from sandbox.operations.commands import shell_status

    return shell_status(code, signal_name) or 0


def say_error(error: SandboxError) -> None:
    """The error and its hint on standard error."""
    terminal().hide()
    _say("error", f"{message_for_cli(error.message)} ({error.code.value})")
    if hint := hint_for("cli", error.hint):
        _say("hint", hint)


def _say(label: str, text: str) -> None:
    """Write one labelled sentence on standard error; on a terminal, its further lines are indented."""
    from sandbox.text.invisible import visible  # it may hold what a sandbox or a log says

    line = f"{label}: {visible(text)}"
    if sys.stderr.isatty():
        from sandbox.text.wrapping import wrapped

        line = wrapped(line, terminal_columns(sys.stderr), rest=" " * (len(label) + 2))
    sys.stderr.write(f"{line}\n")


def bad_input(message: str, hint: str) -> SandboxError:
    """The error for an option that is no good."""
    from sandbox.errors import ErrorCode, SandboxError

    return SandboxError(ErrorCode.invalid_configuration, message, hint)


def variable_of(text: str) -> tuple[str, str]:
    """The variable of NAME=VALUE, or of NAME with its value here. Raises SandboxError where it has none."""
    name, given, value = text.partition("=")
    if not _VARIABLE.fullmatch(name) or "\0" in text:
        raise bad_input(
            f"--env {text!r} does not begin with a valid variable name.",
            "Write it as NAME=VALUE, or NAME to pass on your own value.",
        )
    if given:
        return name, value
    if name not in os.environ:
        raise bad_input(f"--env {name} has no value, and the variable is not set here.", f"Write --env {name}=VALUE.")
    return name, os.environ[name]


def print_json(data: Any) -> None:
    """Print ``data`` as one line on standard output; what is not Unicode, and on a terminal all but ASCII, is escaped."""
    text = json.dumps(data, ensure_ascii=sys.stdout.isatty())
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(data)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _pass_on(stream: str, data: bytes) -> None:
    """Output byte for byte, each stream on its own."""
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    target.buffer.write(data)
    target.flush()


def _print(answer: Envelope[RunResult]) -> None:
    """What is to be said besides the output, on standard error."""
    for notice in answer.notices:
        if notice.code not in _SAID_OTHERWISE:
            _say("notice", f"{notice.message} {notice.hint}".rstrip())
    if not answer.ok:
        _say("error", f"{answer.error} ({answer.code.value})")
        if answer.hint:
            _say("hint", answer.hint)


def _without_spill(answer: Envelope[RunResult]) -> Envelope[RunResult]:
    """The same without the file that holds the whole output: it is gone with the sandbox."""
    import dataclasses

    from sandbox.messages.faults import word_notice

    result: Any = answer.result
    if result is None or result.spill_path is None:
        return answer
    where = f"; all of it in {result.spill_path}"
    texts = {name: getattr(result, name).replace(where, "") for name in ("output", "stdout", "stderr")}
    cut = word_notice("output_cut", {"bytes": result.output_bytes})
    notices = tuple(cut if cut and n.code == "output_cut" else n for n in answer.notices)
    return dataclasses.replace(
        answer,
        result=result.model_copy(update={**texts, "spill_path": None, "spill_truncated": False}),
        notices=notices,
    )


def fail(error: SandboxError, command: str = "") -> NoReturn:
    """Print the error and exit: with 125 for commands that exit as another one did, with 2 for the others."""
    say_error(error)
    raise SystemExit(_OWN_FAILURE if command in _EXIT_AS_OTHERS else 2)
