"""The group ``gamebox image``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sandbox.cli.errors import bad_input, say, say_error
from sandbox.cli.status_line import Progress, terminal
from sandbox.cli.table import write_table

if TYPE_CHECKING:
    from sandbox.limits import Limits
    from sandbox.network.policy import Network

app = typer.Typer(
    name="image",
    help="Build images for sandboxes, list and remove them, and move them between machines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DAY_SECONDS = 86400.0
_COLUMNS = ("NAME", "ID", "KIND", "SIZE", "CREATED")
_NETWORK = (
    "none, open (all public hosts), or bridge (no rules). Without it the steps reach all public hosts, and the package sources of "
    "this host."
)
_ENV = "Variable for the commands of this build only, left out of the image: K=V, or K for its value here; may be repeated."
BUILD_EPILOG = """Examples:

  gamebox image build --tag app .

  gamebox run --image app -- python3 -m app

  gamebox image build --file docker/Dockerfile --arg VERSION=3 .

  INDEX_TOKEN=... gamebox image build --env INDEX_TOKEN --tag app .

  gamebox image build --network none --json . | jq -r .image
"""
LS_EPILOG = """Examples:

  gamebox image ls

  gamebox image ls --json | jq -r '.[].contents'
"""
RM_EPILOG = """Examples:

  gamebox image rm app team/app:2
"""
PRUNE_EPILOG = """Examples:

  gamebox image prune

  gamebox image prune --all
"""
EXPORT_EPILOG = """Examples:

  gamebox image export app app.tar.gz

  gamebox image export app - | ssh host.example.com 'cat >app.tar'
"""
IMPORT_EPILOG = """Examples:

  gamebox image import app.tar.gz

  gamebox image import app.tar.gz --name app:new

  gamebox image import base.tar.gz --name gamebox/base --replace
"""


@app.command(epilog=BUILD_EPILOG)
def build(
    context: Path = typer.Argument(Path(), metavar="[CONTEXT]", help="Folder of the files that the Dockerfile copies."),
    file: Path | None = typer.Option(None, "--file", "-f", help="The Dockerfile; Dockerfile in CONTEXT without it."),
    tag: str | None = typer.Option(None, "--tag", "-t", metavar="NAME", help="Name of the image, as in app or team/app:2."),
    arg: list[str] = typer.Option([], "--arg", metavar="K=V", help="Value of an ARG of the Dockerfile; may be repeated."),
    env: list[str] = typer.Option([], "--env", "-e", metavar="K=V", help=_ENV),
    network: str | None = typer.Option(None, help=_NETWORK),
    allow: list[str] = typer.Option(
        [], metavar="RULE", help="Host that the steps may reach, and no other but those of --network; may be repeated."
    ),
    ca_bundle: Path | None = typer.Option(
        None, metavar="FILE", help="File of certificates (PEM) that commands trust in addition to those of this host."
    ),
    packages: bool = typer.Option(
        False, "--packages", help="Let pip, uv and npm install from the package cache of this host (see gamebox run --help)."
    ),
    cache: Path | None = typer.Option(None, metavar="FOLDER", help="Another folder for --packages, which this implies."),
    memory: str | None = typer.Option(None, help="Memory limit of each step, as in 512m or 8g; 4g by default."),
    disk: str | None = typer.Option(None, help="How much one step may write, as in 20g; 16g by default."),
    pull: bool = typer.Option(False, "--pull", help="Pull the base image from its registry if it is not on the engine."),
    no_cache: bool = typer.Option(False, "--no-cache", help="Run every step, even those whose layers are cached."),
    as_json: bool = typer.Option(False, "--json", help="Print what was built as JSON."),
) -> None:
    """Build an image from a Dockerfile, each step in a sandbox, and print its name or id.

    Layers are kept: a step that was carried out before is not run again. Progress goes to standard error.
    """
    from sandbox.errors import SandboxError

    terminal().show("starting")
    from sandbox.cli.network_options import cache_of
    from sandbox.cli.sandbox_options import variable_of
    from sandbox.docker.local_images.image import Image

    from .progress import BuildProgress

    image = Image.from_dockerfile(file or context / "Dockerfile", context=context, arguments=_arguments(arg))
    shown = BuildProgress(len(image.steps))
    try:
        built = image.build(
            tag,
            on_log=shown,
            network=_network(network, allow),
            env=dict(variable_of(text) for text in env),
            ca_bundle=ca_bundle,
            cache=cache_of(packages, cache, network or "none"),
            limits=_limits(memory, disk),
            pull=pull,
            force=no_cache,
        )
    except SandboxError as error:
        shown.failed(error)
        raise
    shown.done()
    if as_json:
        _print_json({"image": built.id, "name": tag, "bytes": built.bytes, "added_bytes": built.added_bytes, "steps": shown.steps})
    else:
        typer.echo(tag or built.id)


@app.command("ls", epilog=LS_EPILOG)
def ls(as_json: bool = typer.Option(False, "--json", help="Print everything that is known about them, as JSON.")) -> None:
    """List the images that you built or imported, and Gamebox's own."""
    import dataclasses

    from sandbox.docker.local_images.stored import date, list_images
    from sandbox.text.wording import size

    found = list_images()
    if as_json:
        _print_json([dataclasses.asdict(each) for each in found])
        return
    rows = [(each.name, each.id.removeprefix("sha256:")[:12], each.kind, size(each.bytes), date(each.created)) for each in found]
    write_table(_COLUMNS, rows, spare=("CREATED", "ID"))


@app.command("rm", epilog=RM_EPILOG)
def rm(names: list[str] = typer.Argument(..., metavar="NAME...", help="Names as gamebox image ls shows them.")) -> None:
    """Remove images, and print their names. Layers in the cache stay until gamebox image prune removes them."""
    from sandbox.docker.local_images.stored import remove_image
    from sandbox.errors import SandboxError

    failed = 0
    for name in names:
        try:
            remove_image(name)
        except SandboxError as error:
            say_error(error)
            failed += 1
        else:
            typer.echo(name)
    if failed:
        raise typer.Exit(2)


@app.command("prune", epilog=PRUNE_EPILOG)
def prune(
    every: bool = typer.Option(False, "--all", "-a", help="Whatever their age; a build that is under way may then fail."),
    as_json: bool = typer.Option(False, "--json", help="Print the freed bytes as JSON."),
) -> None:
    """Remove layers of builds that no named image needs and no build has used for a day, and print what that freed."""
    from sandbox.docker.local_images.stored import prune_images
    from sandbox.text.wording import size

    freed = prune_images(0.0 if every else DAY_SECONDS)
    if as_json:
        _print_json({"freed_bytes": freed})
    else:
        typer.echo(f"freed {size(freed)}")


@app.command("export", epilog=EXPORT_EPILOG)
def export(
    name: str = typer.Argument(..., help="Any image of the engine, by its name."),
    file: Path = typer.Argument(..., help="File to write, compressed if its name ends with .gz; - for standard output."),
    replace: bool = typer.Option(False, "--replace", help="Replace FILE if it exists."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Write an image to an archive that gamebox image import and docker load read, on a machine of the same kind."""
    from sandbox.docker.local_images.archives import export_file, export_image
    from sandbox.text.wording import size

    if str(file) == "-":
        if as_json or sys.stdout.isatty():
            what = "--json" if as_json else "a terminal"
            raise bad_input(f"An archive on standard output cannot go along with {what}.", "Name a file, or redirect the output.")
        export_image(name, sys.stdout.buffer)
        return
    progress = terminal()
    progress.show(f"exporting {name}")
    with export_file(file, replace=replace) as opened:
        written = export_image(name, opened)
    progress.hide()
    if as_json:
        _print_json({"file": str(file), "image": name, "bytes": written, "file_bytes": file.stat().st_size})
    else:
        say("exported", f"{name}, {size(written)}, to {file} ({size(file.stat().st_size)})")


@app.command("import", epilog=IMPORT_EPILOG)
def import_(
    file: Path = typer.Argument(..., help="What gamebox image export or docker save wrote, of one image."),
    name: str | None = typer.Option(None, help="Name for the image, instead of the one that the archive says."),
    replace: bool = typer.Option(False, "--replace", help="Replace the image that has the name now."),
    max_size: str = typer.Option("32g", metavar="SIZE", help="Refuse an archive that unpacks to more than this."),
    as_json: bool = typer.Option(False, "--json", help="Print what was imported as JSON."),
) -> None:
    """Make an image from an archive, even an untrusted one, and print its name.

    Everything in the archive is checked first, and nothing on the engine is replaced without --replace.
    """
    import dataclasses

    from sandbox.cli.sandbox_options import size_of
    from sandbox.docker.local_images.archives import import_image

    progress = Progress()
    try:
        done = import_image(file, name, replace=replace, most_bytes=size_of(max_size, "an archive"), report=progress)
    finally:
        progress.done()
    if done.left_out:
        say("note", f"not taken over, since sandboxes do not use it: {', '.join(done.left_out)}")
    if as_json:
        _print_json(dataclasses.asdict(done))
    else:
        typer.echo(done.name)


def _arguments(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given or not name:
            raise bad_input(f"--arg {text!r} has no value.", f"Write it as --arg {name or 'NAME'}=VALUE.")
        found[name] = value
    return found


def _print_json(value: object) -> None:
    from sandbox.cli.run import print_json

    print_json(value)


def _network(network: str | None, allow: list[str]) -> Network | None:
    from sandbox.cli.network_options import policy_of

    return policy_of(network or "none", allow) if allow or network is not None else None


def _limits(memory: str | None, disk: str | None) -> Limits:
    from dataclasses import replace

    from sandbox.cli.sandbox_options import size_of
    from sandbox.docker.local_images.building import own_limits

    limits = own_limits()
    if memory is not None:
        limits = replace(limits, memory_bytes=size_of(memory))
    if disk is not None:
        limits = replace(limits, disk_bytes=size_of(disk, "a disk"))
    return limits
