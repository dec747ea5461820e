"""What clients of a service need to know: printed by ``gamebox serve --print-env``, and by a start with TLS of its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import bad_input

if TYPE_CHECKING:
    from sandbox.service.settings import Settings

CLIENTS = ("e2b", "gamebox")


def print_variables(client: str, settings: Settings) -> None:
    """Print the variables of a client on standard output, for a shell to read; what is missing, on standard error."""
    from sandbox.service import addresses
    from sandbox.service.tls.local import local_tls, resolving_hint, unresolved_name
    from sandbox.service.wire.e2b import variables as e2b

    if client not in CLIENTS:
        raise bad_input(f"--print-env is {client!r:.40}, and only {' and '.join(CLIENTS)} are known.", "Give --print-env e2b.")
    missing = unresolved_name(settings) if settings.is_encrypted and client == "e2b" else None
    if client == "e2b":
        found, key = e2b.variables(settings, resolves=missing is None), "E2B_API_KEY"
    else:
        found, key = addresses.variables(settings), "GAMEBOX_API_KEY"
    sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in found.items())
    if key not in found:
        why = f"the service has made no key in {settings.data} yet"
        sys.stderr.write(f"{key} is missing: {why}. Start it, or set a key of your own.\n")
    if settings.tls_local and not local_tls(settings.data).authority.exists():
        sys.stderr.write(f"The service has made no certificate in {settings.data} yet. Start it.\n")
    if missing is not None:
        what = "get_host() returns names that this host cannot find"
        sys.stderr.write(f"{missing} does not resolve, so {what}. {resolving_hint(settings.domain)}\n")


def start_message(settings: Settings) -> Callable[[str, Path | None], None]:
    """Return what tells on standard error that a service has started, and how its clients trust it."""
    from sandbox.service import server
    from sandbox.service.tls.local import resolving_hint, unresolved_name
    from sandbox.service.wire.e2b.variables import variables

    if settings.log_format == "json":
        return server.log_started
    if not settings.tls_local:
        return server.say_started
    missing = unresolved_name(settings)  # now, for it may take seconds in which the service would answer nobody

    def tell(url: str, key: Path | None) -> None:
        found = variables(settings, int(url.rpartition(":")[2]), resolves=missing is None)
        lines = ["Its certificate is that of its own authority. Programs trust it, and find it, with:"]
        lines += [f"  export {name}={shlex.quote(value)}" for name, value in found.items() if name != "E2B_API_KEY"]
        if missing is not None:
            lines.append(f"{missing} does not resolve on this host. {resolving_hint(settings.domain)}")
        server.say_started(url, key, lines)

    return tell
