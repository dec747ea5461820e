"""``gamebox runs export``, ``replay`` and ``diff``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sandbox.cli.errors import bad_input
from sandbox.cli.run import print_json
from sandbox.cli.sandbox_options import FLAGS
from sandbox.docker.spec import DEFAULT_CPUS, DEFAULT_IMAGE, DEFAULT_MEMORY
from sandbox.text.invisible import visible

from .help import LOG_HELP

if TYPE_CHECKING:
    from agent.record.store import RunRecord
    from agent.views.trajectory.comparison import Difference

RUN_HELP = "Id of a run, or a file with one (written by export --format json, or trajectory.json of gamebox batch)."
FORMATS = ("html", "atif", "mini", "shell", "json")


def add_to(runs: typer.Typer) -> None:
    """Add the commands to the group."""
    runs.command("export")(export)
    runs.command("replay")(replay)
    runs.command("diff")(diff)


def export(
    run: str = typer.Argument(..., help=RUN_HELP),
    form: str = typer.Option("html", "--format", help="html (a page to read), atif, mini, shell or json."),
    output: Path | None = typer.Option(None, "-o", "--output", help="File to write to, instead of standard output."),
    log: Path | None = typer.Option(None, metavar="FILE", help=LOG_HELP),
) -> None:
    """Write a run in another format."""
    if form not in FORMATS:
        raise bad_input(f"--format {form!r} is not known.", f"Use {', '.join(FORMATS)}.")
    from agent.views.trajectory.run_lookup import find

    text = exported(find(run, log), form)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise bad_input(f"{output} cannot be written: {error.strerror}.", "Name another file with -o.") from error


def exported(run: RunRecord, form: str) -> str:
    """Return the run as text in one of FORMATS."""
    import json
    from importlib.metadata import version

    from agent.views.trajectory.atif import atif
    from agent.views.trajectory.mini import mini
    from agent.views.trajectory.page import page
    from agent.views.trajectory.run_file import to_dict
    from agent.views.trajectory.shell_script import shell_script

    if form in ("html", "shell"):
        return page(run) if form == "html" else shell_script(run)
    ours = version("gamebox")
    data = {"atif": lambda: atif(run, ours), "mini": lambda: mini(run, ours), "json": lambda: to_dict(run)}[form]()
    return json.dumps(data, ensure_ascii=True, indent=1, allow_nan=False) + "\n"


def replay(
    run: str = typer.Argument(..., help=RUN_HELP),
    repo: Path | None = typer.Option(None, help="Folder to copy into the sandbox first."),
    image: str | None = typer.Option(None, help="Image of the sandbox, instead of the agent's own."),
    pull: bool = typer.Option(False, "--pull", help=FLAGS["pull"].help),
    memory: str = typer.Option(DEFAULT_MEMORY, help="Memory limit of the sandbox, as in 512m or 2g."),
    cpus: float = typer.Option(DEFAULT_CPUS, help="Number of processors the sandbox may use."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    agents: list[Path] = typer.Option(
        [], "--agents", metavar="DIR", help="Folder of additional agents; may be repeated."
    ),
    log: Path | None = typer.Option(None, metavar="FILE", help=LOG_HELP),
    yes: bool = typer.Option(
        False, "--yes", help="With --local: do not ask for confirmation, even if another user wrote the run."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the differences as JSON."),
) -> None:
    """Carry out the decisions of a run in a fresh sandbox, and show which results differ. Exit code 1: some do."""
    from agent.hub import default
    from agent.repo.inside import make_repository
    from agent.repo.scratch import scratch_folder
    from agent.views.trajectory.replay import replay as again
    from agent.views.trajectory.run_lookup import equip_from, find, is_own

    recorded = find(run, log)
    if local and not yes and not is_own(run, log):
        _confirm_local(recorded)
    hub, found = default(agents), []
    spec = hub.load(recorded.agent) if recorded.agent in hub.names() else None
    if spec is None:
        name = visible(recorded.agent, one_line=True)
        sys.stderr.write(f"the agent {name!r} was not found: only actions that other agents have are replayed\n")
    image = image or (spec.image if spec is not None else None) or DEFAULT_IMAGE
    with scratch_folder() as scratch, _sandbox(repo, scratch, image, memory, cpus, local, pull) as environment:
        if repo is not None and (problem := make_repository(environment)):
            sys.stderr.write(f"{problem}\n")
        for step, difference in again(recorded, environment, equip_from(hub)):
            tool = visible(step.tool or "no action", one_line=True)
            sys.stderr.write(f"step {step.number} {tool}: {'differs' if difference else 'the same'}\n")
            if difference is not None:
                found.append(difference)
    _tell(found, as_json)


def _confirm_local(run: RunRecord) -> None:
    from agent.views.screen import Screen

    from .confirm import confirm

    steps = f"{len(run.steps)} step{'' if len(run.steps) == 1 else 's'}"
    confirm(run.run or "of this file", [f"the commands of {steps}, on this host, without isolation"], Screen())


def _sandbox(repo: Path | None, scratch: Path, image: str, memory: str, cpus: float, local: bool, pull: bool) -> Any:
    from agent.job.commands import opener
    from agent.job.options import workspace_bytes
    from agent.repo.snapshot import take

    if repo is None:
        folder = scratch / "empty"
        folder.mkdir()
    else:
        folder = take(repo.absolute(), scratch / "before", None if local else workspace_bytes(memory)).copy
    return opener(image, memory=memory, cpus=cpus, local=local, pull=pull)(folder)


def diff(
    a: str = typer.Argument(..., help=RUN_HELP),
    b: str = typer.Argument(..., help="The other run."),
    log: Path | None = typer.Option(None, metavar="FILE", help=LOG_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the differences as JSON."),
) -> None:
    """Compare two runs step by step. Ids, times and durations do not count. Exit code 1: they differ."""
    from agent.views.trajectory.comparison import differences
    from agent.views.trajectory.run_lookup import find

    _tell(differences(find(a, log), find(b, log)), as_json)


def _tell(found: list[Difference], as_json: bool) -> None:
    from dataclasses import asdict

    from agent.views.screen import Screen

    if as_json:
        print_json({"same": not found, "differences": [asdict(each) for each in found]})
    else:
        screen = Screen(sys.stdout)
        for each in found:
            screen.line(_headline(each), "bold")
            for line in each.lines:
                screen.line(f"  {line}", {"+": "green", "-": "red"}.get(line[:1], ""))
        screen.line(f"{len(found)} difference{'' if len(found) == 1 else 's'}" if found else "no differences")
    raise typer.Exit(1 if found else 0)


def _headline(each: Difference) -> str:
    if each.kind == "only_a":
        return f"only in the first, step {each.step_a}: {each.what}"
    if each.kind == "only_b":
        return f"only in the second, step {each.step_b}: {each.what}"
    where = f"step {each.step_a}" if each.step_a == each.step_b else f"steps {each.step_a} and {each.step_b}"
    return f"{where}: a different answer to {each.what}" if each.kind == "answer" else "a different end"
