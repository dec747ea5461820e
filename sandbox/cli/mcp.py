"""The server of ``gamebox mcp``: a sandbox for the client that started it, over standard input and output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import bad_input
from .remote import id_of
from .run import IN_HELP
from .sandbox_options import Kept, refuse_with_in, sandbox_of, with_sandbox_options

if TYPE_CHECKING:
    from sandbox.aio import AsyncEnvironment

EXAMPLES = """Examples:

  gamebox mcp --workspace . --network none

  gamebox mcp --image python:3.12-slim --pull --allow packages.example.com

  gamebox mcp --workspace . --patch changes.patch --ask

  gamebox mcp --tools run,read,write,edit,browse,forward

  GAMEBOX_URL=https://sandboxes.example.com GAMEBOX_API_KEY=... \\
    gamebox mcp

  claude mcp add gamebox -- gamebox mcp --workspace .
"""


@with_sandbox_options(helps={"workspace": "Folder to copy in; nothing is written back to it, see --patch."})
def serve(
    ctx: typer.Context,
    tools: str = typer.Option(
        "",
        "--tools",
        metavar="NAMES",
        help="Tools to offer instead of the usual ten, separated by commas; browser names those for work on web pages.",
    ),
    ask: bool = typer.Option(False, "--ask", help="Have the client ask its user before each call that may change something."),
    idle: float | None = typer.Option(
        None, "--idle", metavar="SECONDS", help="End the sandbox after this time without a call; the next call starts another."
    ),
    patch: Path | None = typer.Option(
        None, "--patch", metavar="FILE", help="Write the changes of the workspace to this new file at the end, for git apply."
    ),
    inside: str | None = typer.Option(None, "--in", metavar="ID", help=IN_HELP),
    take_over: bool = typer.Option(False, "--take-over", help="With --in: take the sandbox from a process that is using it."),
    **asked: Any,
) -> None:
    """Serve a sandbox to an MCP client over standard input and output, until the client closes them."""
    try:
        from sandbox.mcp.place import OwnSandbox
        from sandbox.mcp.stdio import serve as serve_client
        from sandbox.mcp.tools import chosen_tools
    except ImportError as error:
        raise bad_input(f"gamebox mcp needs the extra 'mcp': {error}.", "Install it: pip install 'gamebox[mcp]'.") from error
    kept = Kept.taken_from(asked, inside, take_over)
    refuse_with_in(ctx, kept)
    if idle is not None and not 1 <= idle < float("inf"):
        raise bad_input(f"--idle {idle:g} is less than a second, or not a number.", "Give the number of seconds.")
    if patch is not None and patch.exists():
        raise bad_input(f"{str(patch)!r} exists on this host.", "Give --patch a new file.")
    offered = chosen_tools([each.strip() for each in tools.split(",") if each.strip()])
    make: Callable[[], Any] = lambda: sandbox_of(asked, kept=kept, report=_report)  # noqa: E731
    if inside is None:
        make().close()  # options that cannot be used are refused at once, and not in the answer to the first call
    place = OwnSandbox(
        make,
        is_replaceable=not kept.stays,
        after_start=_say_kept if kept.keep else lambda _: None,
        before_end=None if patch is None else _writing(patch),
    )
    if sys.stdin.isatty():
        _report("This is for an MCP client, which starts it and sends it messages of MCP. To leave, press Ctrl-D.")
    serve_client(place, offered, asks=ask, idle_seconds=idle)


def _say_kept(sandbox: Any) -> None:
    _report(f"kept: {id_of(sandbox)}")


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _writing(patch: Path) -> Callable[[AsyncEnvironment], Any]:
    """Return what writes the changes of a sandbox to a file; if there were several sandboxes, those after the first to more."""

    async def write(env: AsyncEnvironment) -> None:
        path, number = patch, 1
        while path.exists():
            number += 1
            path = patch.with_name(f"{patch.stem}-{number}{patch.suffix}")
        answer = await env.export_patch(to=path)
        _report(f"changes: {path}" if answer.ok else f"the changes were not written: {answer.error}")

    return write

