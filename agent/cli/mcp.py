"""The command ``gamebox mcp``: a sandbox for an MCP client, and signing in to MCP servers at addresses.

Nothing heavy is imported before it is run.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import typer

from sandbox.cli.mcp import EXAMPLES, serve

from .help import HelpfulGroup

EPILOG = f"""{EXAMPLES}
  gamebox mcp login https://tracker.example.com/mcp

  gamebox mcp login https://tracker.example.com/mcp --authorization-server https://login.example.com

  gamebox mcp logout https://tracker.example.com/mcp
"""
app = typer.Typer(
    cls=HelpfulGroup,
    help="Serve a sandbox to an MCP client over standard input and output; or sign in to MCP servers that agents use.",
    epilog=EPILOG,
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_URL = typer.Argument(..., metavar="ADDRESS", help="Address of the server, as for --mcp NAME=ADDRESS.")
_SERVERS = typer.Option(
    [],
    "--authorization-server",
    metavar="ADDRESS",
    help="Another address to which the server may send this host to sign in; on a terminal you are asked for it. May be repeated.",
)


def _serve(ctx: typer.Context, **options: Any) -> None:
    """Serve, unless a command was given."""
    if ctx.invoked_subcommand is None:
        serve(ctx=ctx, **options)


_serve.__signature__ = inspect.signature(serve)  # type: ignore[attr-defined]
_serve.__annotations__ = dict(serve.__annotations__)
app.callback(invoke_without_command=True)(_serve)


@app.command("login")
def login(url: str = _URL, authorization_server: list[str] = _SERVERS) -> None:
    """Sign in to a server with a browser (OAuth). Its tokens stay on this host, and runs that use the server use them."""
    from agent.mcp.declaration import check_address, require_sdk
    from agent.record.store.signing import state_folder

    require_sdk()
    for address in (url, *authorization_server):
        check_address("gamebox mcp login", "NAME", address)
    from agent.mcp.oauth import sign_in

    sign_in(state_folder(), url, browser=_open, agree=_agree, origins=authorization_server)
    sys.stderr.write(f"signed in to {url}\n")


@app.command("logout")
def logout(url: str = _URL) -> None:
    """Remove the tokens of a server from this host. Exit code 0: removed, 1: there were none."""
    from agent.mcp.token_file import token_file
    from agent.record.store.signing import state_folder

    path = token_file(state_folder(), url)
    existed = path.exists()
    path.unlink(missing_ok=True)
    sys.stderr.write(f"signed out of {url}\n" if existed else f"there are no tokens for {url}\n")
    raise typer.Exit(0 if existed else 1)


def _open(address: str) -> None:
    """Show the address, and open it in a browser if there is a display: one for terminals would take this terminal over."""
    import webbrowser

    from sandbox.text.invisible import visible

    sys.stderr.write(f"Sign in at: {visible(address, one_line=True)}\n")
    sys.stderr.flush()
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        try:
            webbrowser.open(address)
        except webbrowser.Error:
            pass  # the user opens it


def _agree(origin: str) -> bool:
    """Ask the user on a terminal whether ``origin`` may be called; without one the answer is no."""
    if not sys.stdin.isatty():
        return False
    from sandbox.text.invisible import visible

    sys.stderr.write(f"The server sends this host to {visible(origin, one_line=True)} to sign in. Continue? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
