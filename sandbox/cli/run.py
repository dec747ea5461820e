"""The command ``gamebox run``: one command in a fresh sandbox."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from sandbox.docker.spec import DEFAULT_KEEP_SECONDS
from sandbox.messages.command_line import envelope_for_cli

from .conflicts import refuse_with_in
from .errors import OWN_FAILURE, bad_input, say
from .sandbox_options import Kept, sandbox_of, variable_of, with_sandbox_options
from .status_line import progress

if TYPE_CHECKING:
    from sandbox.envelope import Envelope
    from sandbox.environment.sandboxed import SandboxedEnvironment
    from sandbox.limits import Limits
    from sandbox.operations import RunResult

# With --json the sandbox is gone when the output is printed, so all of it has to be kept; the guest keeps it in the sandbox's
# memory, and this share of that is no harm to the command.
KEPT_SHARE_OF_MEMORY = 1 / 32
# Notices that mean nothing here: what was printed are the very bytes, and all of them.
_SAID_OTHERWISE = {"output_cut", "output_not_text"}
IN_HELP = "Run in the kept sandbox with this id or name; it does not keep --network and --allow, so give them again."
USER_HELP = "User of the image to run as, if the profile allows it: a name or a number."

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
    from .forward import forward as forwarded
    from .forward import ports_of

    ports = ports_of(forward)
    variables = dict(
        variable_of(text) for text in asked.pop("env")
    )  # of the command alone: a kept sandbox does not have them
    args = {"argv": command, "env": variables, "timeout_seconds": timeout, "user": user}
    keep, name, seconds = asked.pop("keep"), asked.pop("name"), asked.pop("keep_seconds")
    kept = Kept(
        keep or name is not None or seconds is not None,
        name,
        inside,
        DEFAULT_KEEP_SECONDS if seconds is None else seconds,
        take_over,
    )
    refuse_with_in(ctx, kept)
    workspace = asked.pop("workspace")
    with progress() as report:
        sandbox_asked = sandbox_of(
            {**asked, "workspace": None if local else workspace}, local=local, kept=kept, report=report
        )
        with opened(sandbox_asked, timeout) as sandbox:
            report.done()
            if local and workspace is not None:  # LocalEnvironment would work in the folder itself
                sandbox.upload(_folder(workspace), ".").unwrap()
            if kept.keep:
                sys.stderr.write(f"kept: {sandbox.container_id[:12]}\n")  # type: ignore[attr-defined]
            forwarded(sandbox, ports)
            carry_out(sandbox, args, as_json=as_json, stdin=stdin, stays=kept.stays)


def carry_out(
    sandbox: SandboxedEnvironment, args: dict[str, Any], *, as_json: bool, stdin: bool, stays: bool
) -> NoReturn:
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


def _json_of(answer: Envelope[RunResult], sandbox: SandboxedEnvironment, stays: bool) -> dict[str, Any]:
    """The JSON of the answer, with the id of a sandbox that stays."""
    if not stays:
        return _without_spill(answer).to_dict()
    return {**answer.to_dict(), "sandbox_id": sandbox.container_id[:12]}  # type: ignore[attr-defined]


@contextmanager
def opened(sandbox: SandboxedEnvironment, timeout: float | None = None) -> Iterator[SandboxedEnvironment]:
    """Start the sandbox, and close it whatever happens. Raises SandboxError before that for a timeout it cannot keep."""
    from sandbox.interrupts import terminated_like_interrupted, uninterrupted

    most = sandbox.limits.max_timeout_seconds
    if timeout is not None and not 0 < timeout <= most:  # refuses nan, too
        raise bad_input(
            f"--timeout {timeout:g} is not between 0 and {most:g}.",
            "Give the number of seconds that the command may take.",
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
            ErrorCode.workspace_invalid,
            f"The workspace {str(workspace)!r} is not a folder.",
            "Give a folder that exists.",
        )
    return workspace


def _kept(limits: Limits) -> int:
    return min(limits.spill_bytes, int(limits.memory_bytes * KEPT_SHARE_OF_MEMORY))


def exit_code(answer: Envelope[RunResult]) -> int:
    """The exit status for the answer to a run, as shells have it; 125 where gamebox itself failed."""
    if answer.ok:
        return status_of(answer.result.exit_code, answer.result.signal)
    return {"timeout": 124, "program_not_found": 127, "program_not_executable": 126}.get(answer.code.value, OWN_FAILURE)


def status_of(code: int | None, signal_name: str | None) -> int:
    """The status that a shell has for a command that ended with this exit code, or by this signal: 128+n."""
    from sandbox.operations.commands import shell_status

    return shell_status(code, signal_name) or 0


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
            say("notice", f"{notice.message} {notice.hint}".rstrip())
    if not answer.ok:
        say("error", f"{answer.error} ({answer.code.value})")
        if answer.hint:
            say("hint", answer.hint)


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
