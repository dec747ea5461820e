"""The command ``gamebox serve``: sandboxes over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .errors import bad_input

if TYPE_CHECKING:
    from sandbox.service.settings import Settings

SERVE_EPILOG = """Examples:

  gamebox serve

  gamebox serve --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem
"""


def serve(
    host: str | None = typer.Option(None, "--host", help="Address to listen on; 127.0.0.1 by default."),
    port: int | None = typer.Option(None, "--port", help="Port to listen on; 8080 by default, 0 takes a free one."),
    data: Path | None = typer.Option(None, "--data", metavar="DIR", help="Folder of the store and the first key."),
    config: Path | None = typer.Option(
        None, "--config", metavar="FILE", help="Settings in TOML; service.toml in the data folder by default."
    ),
    tls_cert: Path | None = typer.Option(None, "--tls-cert", metavar="FILE", help="Certificate for TLS, in PEM."),
    tls_key: Path | None = typer.Option(None, "--tls-key", metavar="FILE", help="Private key for TLS, in PEM."),
    behind_proxy: str | None = typer.Option(
        None, "--behind-proxy", metavar="CIDR", help="Networks of the proxies that speak TLS for the service."
    ),
    stop_all: bool = typer.Option(False, "--stop-all", help="End all sandboxes when the service ends."),
    check: bool = typer.Option(False, "--check", help="Say what a service can keep up on this host, and do not start it."),
) -> None:
    """Serve sandboxes over HTTP, until SIGTERM. They go on running meanwhile, and the next service finds them again."""
    try:
        from sandbox.service import server
        from sandbox.service.settings import read_settings
    except ImportError as error:
        raise bad_input(
            f"gamebox serve needs the extra 'server': {error}.", "Install it: pip install 'gamebox[server]'."
        ) from error
    flags = {
        "host": host,
        "port": port,
        "data": data,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "behind_proxy": behind_proxy,
        "stop_all": stop_all or None,
    }
    settings = read_settings(flags, config)
    if check:
        _check(settings)
    else:
        server.serve(settings, server.say_started)


def _check(settings: Settings) -> None:
    from sandbox.service.check import examine

    findings = examine(settings)
    for each in findings:
        sys.stdout.write(f"{each.state:8}{each.name}: {each.text}\n")
    if any(each.state == "fails" for each in findings):
        raise typer.Exit(1)
