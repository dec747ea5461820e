"""The commands ``gamebox ls`` and ``gamebox rm``: list and remove the sandboxes on the engine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from sandbox.text.wording import one_line

from .errors import bad_input, say_error
from .remote import REMOTE_HELP, list_remote, remote_row, remove_remote, wants_service
from .run import print_json
from .table import write_table

if TYPE_CHECKING:
    from sandbox.docker.kept.inventory import Listed

LS_EPILOG = """Examples:

  gamebox ls

  gamebox ls --json --all
"""
RM_EPILOG = """Examples:

  gamebox rm 3f2a9c work

  gamebox rm --detached
"""
_COLUMNS = ("ID", "NAME", "IMAGE", "STATE", "AGE")


def ls(
    as_json: bool = typer.Option(False, "--json", help="Print everything that is known about them, as JSON."),
    every: bool = typer.Option(False, "--all", "-a", help="Include sandboxes that were created but are not running."),
    remote: bool = typer.Option(False, "--remote", help=REMOTE_HELP),
) -> None:
    """List the sandboxes on the engine, both kept ones and those in use by a process."""
    import dataclasses

    if wants_service(remote):
        listed = list_remote(every=every)
        if as_json:
            print_json([each.data for each in listed])
        else:
            write_table(_COLUMNS, [remote_row(each, _time) for each in listed], spare=("AGE", "IMAGE"))
        return

    from sandbox.docker.engine.client import connect
    from sandbox.docker.kept.inventory import sandboxes

    found = sandboxes(connect(), every=every)
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    write_table(_COLUMNS, [_row(each) for each in found], spare=("AGE", "IMAGE"))


def rm(
    ids: list[str] | None = typer.Argument(None, metavar="[ID...]", help="Ids, the beginnings of ids, or names."),
    detached: bool = typer.Option(False, "--detached", help="Remove all kept sandboxes that no process is using."),
    all_mine: bool = typer.Option(
        False, "--all-mine", help="Remove all kept sandboxes that were last used by this user on this host."
    ),
    force: bool = typer.Option(False, "--force", "-f", help="Remove sandboxes even if a process is using them."),
    remote: bool = typer.Option(False, "--remote", help=REMOTE_HELP),
) -> None:
    """Remove sandboxes and everything in them, and print their ids. One that a process is using needs --force."""
    from sandbox.docker.engine.client import connect
    from sandbox.docker.kept.inventory import chosen, remove, sandboxes
    from sandbox.errors import SandboxError

    if not (ids or detached or all_mine):
        raise bad_input(
            "No sandbox was named.", "Give ids or names as gamebox ls shows them, --detached or --all-mine."
        )
    if wants_service(remote):
        if detached or all_mine:
            raise bad_input("--detached and --all-mine are for the engine of this host.", "Give ids or names.")
        if not remove_remote(ids or ()):
            raise typer.Exit(2)
        return
    client = connect()
    listed = sandboxes(client, every=True)
    wanted = chosen(listed, ids or ())
    wanted += [each for each in listed if detached and each.state == "detached" and not each.service and each not in wanted]
    mine = ("owned", "detached")
    wanted += [
        each
        for each in listed
        if all_mine and each.kept and each.state in mine and not each.service and each not in wanted
    ]
    refused = False
    for each in wanted:
        try:
            remove(each, force=force)
        except SandboxError as error:
            say_error(error)
            refused = True
        else:
            sys.stdout.write(f"{each.id[:12]}\n")
    if refused:
        raise typer.Exit(2)


def _row(listed: Listed) -> tuple[str, ...]:
    row = (listed.id[:12], listed.name or "-", listed.image[:40], _state(listed), _time(listed.age_seconds))
    return tuple(one_line(text) for text in row)  # anybody may have written the labels


def _state(listed: Listed) -> str:
    paused = "" if listed.status == "running" else f"{listed.status}, "
    if listed.service:
        process = f" (pid {listed.owner_pid})" if listed.state in ("owned", "waiting") else ""
        return f"{paused}of a service{process}{', waits in its pool' if listed.state == 'waiting' else ''}"
    if listed.state == "owned":
        return f"{paused}owned by pid {listed.owner_pid}"
    if listed.state == "waiting":
        return f"{paused}waits in a pool of pid {listed.owner_pid}"
    if listed.state == "elsewhere":
        return f"{paused}of {listed.others}"
    if listed.state == "orphaned":
        return f"{paused}its pid {listed.owner_pid} is dead"
    left = listed.deadline_left_seconds
    return f"{paused}detached" + ("" if left is None else f", {_time(left)} left")


def _time(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
