"""The commands ``gamebox exec``, ``cp`` and ``logs``, which work in a kept sandbox."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from sandbox.text.invisible import visible

from .errors import bad_input
from .network_options import attach_kept
from .run import carry_out, print_json, running
from .sandbox_options import FLAGS, variable_of
from .status_line import progress

if TYPE_CHECKING:
    from sandbox.environment.sandboxed import SandboxedEnvironment

SANDBOX_HELP = "Id or name of a kept sandbox, as gamebox ls shows it."
EXEC_EPILOG = """Examples:

  gamebox exec work -- git status

  gamebox exec work --session build -- cd src

  gamebox exec work --session build -- make

  tar c src | gamebox exec -i work -- tar x
"""
CP_EPILOG = """Examples:

  gamebox cp ./mylib work:mylib

  gamebox cp work:/workspace/report.html .

  gamebox cp work:report.json - | jq .
"""
LOGS_EPILOG = """Examples:

  gamebox logs work

  gamebox logs work c3 --follow

  gamebox logs work c3 --tail 20
"""


def exec_(
    sandbox: str = typer.Argument(..., metavar="SANDBOX", help=SANDBOX_HELP),
    command: list[str] = typer.Argument(..., metavar="COMMAND", help="The program and its arguments."),
    session: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Run it as shell text in this session, which keeps folder and variables for the next exec.",
    ),
    cwd: str | None = typer.Option(None, metavar="FOLDER", help="Folder in the sandbox to run in."),
    timeout: float = typer.Option(
        120.0, metavar="SECONDS", help="Seconds after which the command and everything it started are killed."
    ),
    env: list[str] = typer.Option([], "--env", "-e", metavar="K=V", help="Environment variable; may be repeated."),
    stdin: bool = typer.Option(False, "--stdin", "-i", help="Pass standard input on to the command."),
    network: str | None = typer.Option(None, metavar="MODE", help=FLAGS["network"].help),
    allow: list[str] = typer.Option([], "--allow", metavar="RULE", help=FLAGS["allow"].help),
    take_over: bool = typer.Option(False, "--take-over", help="Take the sandbox from a process that is using it."),
    as_json: bool = typer.Option(False, "--json", help="Print the envelope as JSON."),
) -> None:
    """Run a command in a kept sandbox. Exits with its status; 124 after a timeout, 125 if gamebox itself failed."""
    args: dict[str, Any] = {"env": dict(variable_of(text) for text in env), "timeout_seconds": timeout, "cwd": cwd}
    if session is None:
        args |= {"argv": command, "session": None}
    else:  # several words are a program and its arguments, a single one may be any shell text
        args |= {"command": command[0] if len(command) == 1 else shlex.join(command), "session": session}
    with progress() as report:
        asked = attach_kept(sandbox, take_over, network, allow, None, (), None, report)
        with running(asked, timeout) as env_:
            report.done()
            carry_out(env_, args, as_json=as_json, stdin=stdin, stays=True)


def cp(
    source: str = typer.Argument(..., metavar="SOURCE", help="PATH on this host, or SANDBOX:PATH."),
    target: str = typer.Argument(
        ..., metavar="TARGET", help="PATH on this host, SANDBOX:PATH, or - for standard output."
    ),
    force: bool = typer.Option(False, "--force", "-f", help="Replace an existing file on this host."),
) -> None:
    """Copy a file or a folder into a kept sandbox, or out of it. If the target is an existing folder, the copy goes into it."""
    there, here = _remote(source), _remote(target)
    if (there is None) == (here is None):
        what = "Both are paths on this host" if there is None else "Both are in a sandbox"
        raise bad_input(
            f"{what}: {source!r} and {target!r}.", "Write one of them as SANDBOX:PATH, as in: gamebox cp work:out.txt ."
        )
    if here is not None:
        _copy_in(Path(source), here)
    elif there is not None:
        _copy_out(there, target, force)


def logs(
    sandbox: str = typer.Argument(..., metavar="SANDBOX", help=SANDBOX_HELP),
    command: str | None = typer.Argument(
        None, metavar="[ID]", help="Id of the command; not needed if there is only one."
    ),
    follow: bool = typer.Option(False, "--follow", "-f", help="Keep printing until the command ends."),
    tail: int | None = typer.Option(None, "--tail", metavar="N", help="Print only the last N lines."),
    as_json: bool = typer.Option(False, "--json", help="Print the answer as JSON."),
) -> None:
    """Print the output of a background command in a kept sandbox; without ID, list the commands if there are several."""
    if follow and (as_json or tail is not None):
        raise bad_input(
            f"--follow cannot be combined with {'--json' if as_json else '--tail'}.", "Leave one of them out."
        )
    with _attached(sandbox) as env:
        chosen = command or _only_command(env, sandbox)
        if follow:
            _follow(env, chosen)
            return
        answer = env.logs(chosen, tail_lines=tail, max_bytes=env.limits.keep_output_bytes)
        if as_json:
            print_json(answer.to_dict())
            return
        sys.stdout.buffer.write(answer.unwrap().content_bytes)
        sys.stdout.flush()


class _InSandbox(NamedTuple):
    sandbox: str
    path: str


def _remote(text: str) -> _InSandbox | None:
    """Return SANDBOX and PATH of "SANDBOX:PATH", None for a path of this host, which has a slash before any colon."""
    name, colon, path = text.partition(":")
    return _InSandbox(name, path or ".") if colon and name and "/" not in name else None


@contextmanager
def _attached(sandbox: str) -> Iterator[SandboxedEnvironment]:
    with progress() as report:
        asked = attach_kept(sandbox, False, None, (), None, (), None, report)
        with running(asked) as env:
            report.done()
            yield env


def _copy_in(source: Path, target: _InSandbox) -> None:
    if not source.exists():
        raise bad_input(f"{str(source)!r} does not exist on this host.", "Give the path of a file or a folder.")
    with _attached(target.sandbox) as env:
        path = target.path
        if path.endswith("/") or env.list(path, depth=1, max_entries=1).ok:  # a folder: copy into it
            path = f"{path.rstrip('/')}/{source.resolve().name}"
        result = env.upload(source, path).unwrap()
        sys.stderr.write(
            f"copied {result.files} {'file' if result.files == 1 else 'files'} to {target.sandbox}:{path}\n"
        )


def _copy_out(source: _InSandbox, target: str, force: bool) -> None:
    name = Path(source.path).name or "workspace"
    to = Path(target)
    if target != "-":
        to = to / name if to.is_dir() else to
        if to.exists() and not (force and to.is_file()):
            hint = (
                "Add --force to replace it, or give another target."
                if to.is_file()
                else "Give another target, or remove it."
            )
            raise bad_input(f"{str(to)!r} exists on this host.", hint)
    with _attached(source.sandbox) as env:
        if target == "-":
            content = env.download(source.path).unwrap().content
            sys.stdout.buffer.write(content or b"")
            sys.stdout.flush()
            return
        result = _downloaded(env, source.path, to)
    for path in result.skipped:
        sys.stderr.write(f"skipped: {visible(path, one_line=True)}\n")
    sys.stderr.write(f"copied {result.files} {'file' if result.files == 1 else 'files'} to {to}\n")


def _downloaded(env: SandboxedEnvironment, path: str, to: Path) -> Any:
    """Download beside ``to`` and rename, so that a failure leaves an existing file unchanged."""
    if not to.exists():
        return env.download(path, to).unwrap()
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as folder:
        result = env.download(path, Path(folder) / to.name).unwrap()
        (Path(folder) / to.name).replace(to)
    return result


def _only_command(env: SandboxedEnvironment, sandbox: str) -> str:
    found = env.processes().unwrap().commands
    if len(found) == 1:
        return found[0].id
    if not found:
        raise bad_input(f"No background command has run in {sandbox}.", "List the sandboxes with: gamebox ls.")
    for each in found:
        sys.stderr.write(
            f"{each.id}  {'running' if each.running else 'ended'}  {visible(each.command, one_line=True)}\n"
        )
    raise bad_input(f"{sandbox} has {len(found)} commands.", f"Name one, as in: gamebox logs {sandbox} {found[0].id}.")


def _follow(env: SandboxedEnvironment, command: str) -> None:
    for chunk in env.follow(command):
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
