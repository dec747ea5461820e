"""The command ``gamebox run``: one command in a fresh sandbox."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from .errors import OWN_FAILURE, bad_input, envelope_for_cli, say
from .remote import id_of
from .sandbox_options import Kept, refuse_with_in, sandbox_of, variable_of, with_sandbox_options
from .status_line import progress

if TYPE_CHECKING:
    from sandbox.envelope import Envelope
    from sandbox.environment.sandboxed import SandboxedEnvironment
    from sandbox.limits import Limits
    from sandbox.operations import RunResult

# With --json the sandbox is gone when the output is printed, so all of it must be kept; the guest keeps it in the sandbox's memory,
# and this share of that does not harm the command.
KEPT_SHARE_OF_MEMORY = 1 / 32
# Notices that do not apply here: all of the output was printed, byte for byte.
_NOT_APPLICABLE = {"output_cut", "output_not_text"}
IN_HELP = "Run in the kept sandbox with this id or name; pass --network and --allow again, since it does not keep them."
USER_HELP = "User of the image to run as, if the profile allows it: a name or a number."

_PORTS = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
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

  gamebox run --packages -- pip install rich

  gamebox run --workspace . --setup "pip install -r requirements.txt" \\
    -- python3 -m pytest -q

  gamebox run --allow example.com --network-log log.jsonl \\
    -- curl -sS https://example.com/

  gamebox run --disk 20g --runtime runsc -- ./build.sh

  gamebox run --forward 8000 --timeout 3600 \\
    -- python3 -m http.server 8000

  gamebox run --keep --name work -- git init

  GAMEBOX_URL=https://sandboxes.example.com GAMEBOX_API_KEY=... \
    gamebox run -- uname -a

  gamebox exec work -- git status
"""


@with_sandbox_options()
def run(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="COMMAND", help="The program and its arguments."),
    timeout: float = typer.Option(120.0, help="Seconds after which the command and everything it started are killed."),
    user: str | None = typer.Option(None, help=USER_HELP),
    stdin: bool = typer.Option(False, "--stdin", "-i", help="Pass standard input on to the command."),
    as_json: bool = typer.Option(False, "--json", help="Print the envelope as JSON."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    inside: str | None = typer.Option(None, "--in", metavar="ID", help=IN_HELP),
    forward: list[str] = typer.Option(
        [],
        "--forward",
        metavar="PORT",
        help="While the command runs, make a port of the sandbox available on this host's loopback, as in 8000 or 9000:8000.",
    ),
    take_over: bool = typer.Option(
        False, "--take-over", help="With --in: take the sandbox from a process that is using it."
    ),
    **asked: Any,
) -> None:
    """Run a command in a fresh sandbox, or in a kept one, and show its output as it comes.

    Exits with the command's own status: 128+n after signal n, 124 after a timeout; 125 if gamebox itself failed.
    """
    ports = _ports_of(forward)
    # For the command only: a kept sandbox does not keep them.
    variables = dict(variable_of(text) for text in asked.pop("env"))
    args = {"argv": command, "env": variables, "timeout_seconds": timeout, "user": user}
    kept = Kept.taken_from(asked, inside, take_over)
    refuse_with_in(ctx, kept)
    workspace = asked.pop("workspace")
    with progress() as report:
        sandbox_asked = sandbox_of(
            {**asked, "workspace": None if local else workspace}, local=local, kept=kept, report=report
        )
        with running(sandbox_asked, timeout) as sandbox:
            report.done()
            if local and workspace is not None:  # LocalEnvironment would work in the folder itself
                sandbox.upload(_folder(workspace), ".").unwrap()
            if kept.keep:
                sys.stderr.write(f"kept: {id_of(sandbox)}\n")
            _forward_ports(sandbox, ports)
            carry_out(sandbox, args, as_json=as_json, stdin=stdin, stays=kept.stays)


def _ports_of(specs: Sequence[str]) -> list[tuple[int, int]]:
    """Return (port of the sandbox, port of the host or 0) for each "PORT" or "HOST_PORT:PORT". Raises SandboxError."""
    found = []
    for spec in specs:
        match = _PORTS.fullmatch(spec)
        if match is None or not 0 < int(match[2]) < 65536 or int(match[1] or 0) > 65535:
            raise bad_input(
                f"--forward {spec!r} does not name a port.",
                "Write it as 8000, or as 9000:8000 for port 9000 on this host.",
            )
        found.append((int(match[2]), int(match[1] or 0)))
    return found


def _forward_ports(sandbox: SandboxedEnvironment, ports: Sequence[tuple[int, int]]) -> None:
    """Forward the ports, and say on standard error where each is. Raises SandboxError."""
    for port, host_port in ports:
        sys.stderr.write(f"port {port}: {sandbox.forward(port, host_port).unwrap().url}\n")
        sys.stderr.flush()


def carry_out(
    sandbox: SandboxedEnvironment, args: dict[str, Any], *, as_json: bool, stdin: bool, stays: bool
) -> NoReturn:
    """Run the command of ``args``, show its output, and exit with its status. ``stays``: the sandbox outlives this process."""
    from sandbox.operations import HostArguments
    from sandbox.pipe.watching import Watch

    args = {**args, "stdin": sys.stdin.buffer.read() if stdin else None}
    args["keep_output_bytes"] = _kept_output_bytes(sandbox.limits) if as_json else 0
    watch = None if as_json else Watch(on_bytes=_pass_on)
    answer: Envelope[RunResult] = envelope_for_cli(sandbox.execute("run", HostArguments(args), watch=watch))
    if as_json:
        print_json(_json_of(answer, sandbox, stays))
    else:
        _print(answer)
    raise typer.Exit(exit_code(answer))


def _json_of(answer: Envelope[RunResult], sandbox: SandboxedEnvironment, stays: bool) -> dict[str, Any]:
    """Return the answer as JSON-ready data, with the id of a sandbox that stays."""
    if not stays:
        return _without_spill(answer).to_dict()
    return {**answer.to_dict(), "sandbox_id": id_of(sandbox)}


@contextmanager
def running(sandbox: SandboxedEnvironment, timeout: float | None = None) -> Iterator[SandboxedEnvironment]:
    """Start the sandbox for the block, and close it in any case. Raises SandboxError, first of all for an invalid timeout."""
    from sandbox.interrupts import ignore_interrupts, interrupt_on_termination

    most = sandbox.limits.max_timeout_seconds
    if timeout is not None and not 0 < timeout <= most:  # refuses nan, too
        raise bad_input(
            f"--timeout {timeout:g} is not between 0 and {most:g}.",
            "Give the number of seconds that the command may take.",
        )
    with interrupt_on_termination():
        try:
            yield sandbox.start()
        finally:
            with ignore_interrupts():
                sandbox.close()


def _folder(workspace: Path) -> Path:
    if not workspace.is_dir():
        from sandbox.errors import ErrorCode, SandboxError

        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The workspace {str(workspace)!r} is not a folder.",
            "Give a folder that exists.",
        )
    return workspace


def _kept_output_bytes(limits: Limits) -> int:
    return min(limits.most_kept_bytes, int(limits.memory_bytes * KEPT_SHARE_OF_MEMORY))


def exit_code(answer: Envelope[RunResult]) -> int:
    """Return the exit status for the answer to a run, as shells do, or 125 if gamebox itself failed."""
    if answer.ok:
        return status_of(answer.result.exit_code, answer.result.signal)
    return {"timeout": 124, "program_not_found": 127, "program_not_executable": 126}.get(answer.code.value, OWN_FAILURE)


def status_of(code: int | None, signal_name: str | None) -> int:
    """Return a shell's status for a command that ended with this exit code, or by this signal: 128+n."""
    from sandbox.operations.commands import shell_status

    return shell_status(code, signal_name) or 0


def print_json(data: Any) -> None:
    """Print ``data`` as one line on standard output, escaping invalid Unicode, and everything but ASCII on a terminal."""
    text = json.dumps(data, ensure_ascii=sys.stdout.isatty())
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(data)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _pass_on(stream: str, data: bytes) -> None:
    """Write output byte for byte to the same stream of this process."""
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    target.buffer.write(data)
    target.flush()


def _print(answer: Envelope[RunResult]) -> None:
    """Print notices, the error and its hint on standard error."""
    for notice in answer.notices:
        if notice.code not in _NOT_APPLICABLE:
            say("notice", f"{notice.message} {notice.hint}".rstrip())
    if not answer.ok:
        say("error", f"{answer.error} ({answer.code.value})")
        if answer.hint:
            say("hint", answer.hint)


def _without_spill(answer: Envelope[RunResult]) -> Envelope[RunResult]:
    """Return the answer without the path of the file with the whole output, which is gone with the sandbox."""
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
