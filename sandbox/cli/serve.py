"""The command ``gamebox serve``: sandboxes over HTTP, and its backups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .errors import bad_input
from .service_variables import print_variables, start_message

if TYPE_CHECKING:
    from sandbox.service.settings import Settings

EPILOG = """Examples:

  gamebox serve

  gamebox serve --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem

  gamebox serve --tls-local         ports are at https://8000-ID.sandboxes.localhost:8080

  eval "$(gamebox serve --tls-local --print-env e2b)"

  gamebox serve backup /var/backups/gamebox.tar
"""
BACKUP_EPILOG = """Examples:

  gamebox serve backup /var/backups/gamebox.tar

  gamebox serve backup everything.tar --checkpoints --secrets
"""
RESTORE_EPILOG = """Examples:

  gamebox serve restore /var/backups/gamebox.tar

  gamebox serve restore gamebox.tar --data /var/lib/gamebox --remove-unknown
"""
ROTATE_EPILOG = """Examples:

  gamebox serve rotate-secret-key

  gamebox serve rotate-secret-key --data /var/lib/gamebox --old-key /var/backups/secret.key.before
"""
_DATA = typer.Option(None, "--data", metavar="DIR", help="Folder of the service: its store and its first key.")
_CONFIG = typer.Option(
    None, "--config", metavar="FILE", help="File of settings in TOML; by default service.toml in the folder of the service."
)

app = typer.Typer(
    name="serve",
    epilog=EPILOG,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Serve sandboxes over HTTP until SIGTERM. The sandboxes then keep running, and the next service finds them again.",
)


@app.callback()
def serve(
    ctx: typer.Context,
    host: str | None = typer.Option(None, "--host", help="Address to listen on; 127.0.0.1 by default."),
    port: int | None = typer.Option(None, "--port", help="Port to listen on; 8080 by default, 0 takes a free one."),
    data: Path | None = _DATA,
    config: Path | None = _CONFIG,
    tls_cert: Path | None = typer.Option(None, "--tls-cert", metavar="FILE", help="Certificate for TLS, in PEM."),
    tls_key: Path | None = typer.Option(None, "--tls-key", metavar="FILE", help="Private key for TLS, in PEM."),
    tls_local: bool = typer.Option(
        False, "--tls-local", help="Make a certificate for TLS, signed by an authority of its own that clients have to trust."
    ),
    domain: str | None = typer.Option(
        None, "--domain", metavar="NAME", help="Ports of sandboxes are at {port}-{id}.NAME; sandboxes.localhost with --tls-local."
    ),
    behind_proxy: str | None = typer.Option(
        None, "--behind-proxy", metavar="CIDR", help="Networks of the proxies that terminate TLS for it, separated by commas."
    ),
    log_format: str | None = typer.Option(
        None, "--log-format", metavar="FORMAT", help="How the log is written to standard error: text or json."
    ),
    metrics_listen: str | None = typer.Option(
        None, "--metrics-listen", metavar="HOST:PORT", help="Serve /metrics at this address, too, without a key."
    ),
    stop_all: bool = typer.Option(False, "--stop-all", help="End all sandboxes when the service ends."),
    drain: bool = typer.Option(
        False, "--drain", help="Create no more sandboxes, and exit when the existing ones have ended."
    ),
    check: bool = typer.Option(False, "--check", help="Say what works on this host and what does not, and exit."),
    print_env: str | None = typer.Option(
        None, "--print-env", metavar="CLIENT", help="Print the variables with which clients find it, for e2b or gamebox, and exit."
    ),
) -> None:
    """Serve sandboxes over HTTP until SIGTERM. The sandboxes then keep running, and the next service finds them again."""
    flags = {
        "host": host,
        "port": port,
        "data": data,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_local": tls_local or None,
        "domain": domain,
        "behind_proxy": behind_proxy,
        "log_format": log_format,
        "metrics_listen": metrics_listen,
        "stop_all": stop_all or None,
        "drain": drain or None,
    }
    if ctx.invoked_subcommand is not None:
        ctx.obj = ({name: value for name, value in flags.items() if value is not None}, config)
        return
    settings = _settings(flags, config)
    if check:
        _check(settings)
        return
    if print_env is not None:
        print_variables(print_env, settings)
        return
    from sandbox.service import server

    server.serve(settings, start_message(settings))


@app.command(epilog=BACKUP_EPILOG)
def backup(
    ctx: typer.Context,
    file: Path = typer.Argument(..., metavar="FILE", help="The tar to write. Only its owner can read it."),
    data: Path | None = _DATA,
    checkpoints: bool = typer.Option(False, "--checkpoints", help="Include the files of checkpoints, which may be large."),
    secrets: bool = typer.Option(
        False, "--secrets", help="Include admin.key, and secret.key, which decrypts the tenants' secrets in the store."
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it exists."),
) -> None:
    """Back up the store of a service, and what the options include. The service may be running."""
    settings = _settings_of(ctx, data)
    from sandbox.service.operators.backup import write_backup

    for line in write_backup(settings.data, file, checkpoints=checkpoints, secrets=secrets, force=force):
        sys.stdout.write(f"{line}\n")


@app.command(epilog=RESTORE_EPILOG)
def restore(
    ctx: typer.Context,
    file: Path = typer.Argument(..., metavar="FILE", help="A backup that gamebox serve backup wrote."),
    data: Path | None = _DATA,
    remove_unknown: bool = typer.Option(
        False, "--remove-unknown", help="Remove the sandboxes of this service that are not in the backup."
    ),
    secret_key: Path | None = typer.Option(
        None, "--secret-key", metavar="FILE", help="The secret.key of then, if it was rotated since and is not in the backup."
    ),
) -> None:
    """Replace the store of a stopped service with a backup, and compare it with the engine."""
    settings = _settings_of(ctx, data)
    from sandbox.service.operators.restore import restore_backup

    for line in restore_backup(settings.data, file, remove_unknown=remove_unknown, secret_key=secret_key):
        sys.stdout.write(f"{line}\n")


@app.command(name="rotate-secret-key", epilog=ROTATE_EPILOG)
def rotate_secret_key(
    ctx: typer.Context,
    data: Path | None = _DATA,
    old_key: Path | None = typer.Option(
        None, "--old-key", metavar="FILE", help="Keep the present key in FILE: backups that were made before need it."
    ),
) -> None:
    """Replace secret.key of a stopped service, and encrypt the tenants' secrets with the new one. Sandboxes keep running."""
    settings = _settings_of(ctx, data)
    from sandbox.service.operators import rotation

    for line in rotation.rotate_secret_key(settings.data, old_key):
        sys.stdout.write(f"{line}\n")


def _settings_of(ctx: typer.Context, data: Path | None) -> Settings:
    flags, config = ctx.obj
    return _settings({**flags, **({} if data is None else {"data": data})}, config)


def _settings(flags: dict[str, Any], config: Path | None) -> Settings:
    try:
        from sandbox.service import server  # noqa: F401
        from sandbox.service.settings import read_settings
    except ImportError as error:
        raise bad_input(
            f"gamebox serve needs the extra 'server': {error}.", "Install it: pip install 'gamebox[server]'."
        ) from error
    return read_settings(flags, config)


def _check(settings: Settings) -> None:
    from sandbox.service.check import examine

    findings = examine(settings)
    for each in findings:
        sys.stdout.write(f"{each.state:8}{each.name}: {each.text}\n")
    if any(each.state == "fails" for each in findings):
        raise typer.Exit(1)
