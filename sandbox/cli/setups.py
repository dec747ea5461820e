"""The group ``gamebox setups``: what ``--setup`` has installed and keeps."""

from __future__ import annotations

import sys

import typer

from .errors import bad_input
from .table import write_table

app = typer.Typer(
    name="setups",
    help="List and remove what --setup has installed.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
LS_EPILOG = """Examples:

  gamebox setups ls

  gamebox setups ls --json
"""
RM_EPILOG = """Examples:

  gamebox setups rm 3f2a9c04b1d2e3f405162738

  gamebox setups rm --all
"""
_COLUMNS = ("NAME", "COMMAND", "SIZE", "LAST USED")


@app.command("ls", epilog=LS_EPILOG)
def ls(as_json: bool = typer.Option(False, "--json", help="Print everything that is known about them, as JSON.")) -> None:
    """List what --setup has installed, the last used first."""
    import dataclasses

    from sandbox.docker.local_images.setups import COMMAND_LABEL, list_setups
    from sandbox.docker.local_images.stored import date
    from sandbox.text.wording import one_line, size

    found = list_setups()
    if as_json:
        from .run import print_json

        print_json([{**dataclasses.asdict(each), "labels": dict(each.labels)} for each in found])
        return
    rows = [
        (name, one_line(dict(each.labels).get(COMMAND_LABEL, ""))[:60], size(each.added_bytes), date(each.used))
        for each in found
        for name in each.names
    ]
    write_table(_COLUMNS, rows, spare=("LAST USED",))


@app.command("rm", epilog=RM_EPILOG)
def rm(
    names: list[str] = typer.Argument(None, metavar="[NAME...]", help="Names as gamebox setups ls shows them."),
    every: bool = typer.Option(False, "--all", help="Remove all of them."),
) -> None:
    """Remove set-ups, and print their names. The next --setup installs again."""
    from sandbox.docker.local_images.setups import list_setups, remove_setup

    if bool(names) == every:
        raise bad_input("gamebox setups rm needs names, or --all.", "See the names with: gamebox setups ls.")
    missing = []
    for name in [each for listed in list_setups() for each in listed.names] if every else names:
        if remove_setup(name):
            sys.stdout.write(f"{name}\n")
        else:
            missing.append(name)
    if missing:
        raise bad_input(f"There is no set-up {missing[0]!r:.100}.", "See the names with: gamebox setups ls.")
