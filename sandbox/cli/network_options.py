"""The options of ``gamebox run`` and ``gamebox agent`` that say what network a sandbox has."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import bad_input
from .remote import attach_remote, wants_service

if TYPE_CHECKING:
    from sandbox.environment.sandboxed import SandboxedEnvironment
    from sandbox.network.connections import ConnectionFile
    from sandbox.network.policy import Network
    from sandbox.network.services.service import Service
    from sandbox.packages.cache import PackageCache

_HEADER = re.compile(r"([^:=]+):([^:=]+)=(?:(.* ))?([A-Za-z_][A-Za-z0-9_]*)")


def services_of(services: Sequence[str], headers: Sequence[str], environ: Mapping[str, str]) -> tuple[Service, ...]:
    """Return the services of ``--service`` and ``--service-header``, with secrets from ``environ``. Raises SandboxError."""
    from sandbox.network.services.service import Service

    upstreams: dict[str, str] = {}
    for text in services:
        name, given, upstream = text.partition("=")
        if not given or name in upstreams:
            what = "is given twice" if name in upstreams else "has no upstream"
            raise bad_input(f"--service {name!r} {what}.", "Write each once, as in llm=https://api.example.com.")
        upstreams[name] = upstream
    added: dict[str, dict[str, str]] = {name: {} for name in upstreams}
    for text in headers:
        found = _HEADER.fullmatch(text)
        before = text.partition("=")[0]  # what follows may be the secret itself
        if found is None or found[1] not in added:
            what = (
                "is not of the form NAME:HEADER=VARIABLE"
                if found is None
                else f"names {found[1]!r}, which is not a --service"
            )
            raise bad_input(f"--service-header {before!r} {what}.", "Write it as in llm:X-Api-Key=API_KEY.")
        if not environ.get(found[4]):
            raise bad_input(
                f"--service-header {before!r} names an environment variable that is not set here.",
                "Set it to the secret and give its name: other users can see what is on a command line.",
            )
        added[found[1]][found[2]] = (found[3] or "") + environ[found[4]]
    return tuple(Service(name, upstream, headers=added[name]) for name, upstream in upstreams.items())


def connection_file(path: Path | None, network: str) -> ConnectionFile | None:
    """Return the file of ``--network-log``. Raises SandboxError."""
    from sandbox.network.connections import ConnectionFile

    if path is None:
        return None
    if network == "bridge":
        raise bad_input(
            f"--network-log {path} has no effect with --network bridge: connections are not visible.", "Leave one out."
        )
    return ConnectionFile(path, lambda line: _warn(f"warning: {line}\n"))


def _warn(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def policy_of(network: str, allow: Sequence[str]) -> Network:
    """Return the policy of ``--network`` and ``--allow``. Raises SandboxError for invalid ones."""
    from sandbox.network.policy import Network

    if network == "open":
        return Network.open(*allow)
    if network == "bridge":
        if allow:
            raise bad_input(f"--allow {allow[0]} has no effect with --network bridge.", "Leave one of them out.")
        return Network.bridge()
    if network != "none":
        raise bad_input(f"--network {network!r} is not known.", "Use none, open or bridge.")
    return Network.allow(*allow) if allow else Network.none()


def cache_of(packages: bool, folder: Path | None, network: str = "none") -> PackageCache | None:
    """Return the package cache of ``--packages`` and ``--cache``, for the indexes that this host uses. Raises SandboxError."""
    from sandbox.packages.cache import PackageCache, user_folder

    if folder is None and not packages:
        return None
    if network == "bridge":
        option = "--packages" if folder is None else f"--cache {folder}"
        raise bad_input(f"{option} has no effect with --network bridge.", "Leave one of them out.")
    hosts = tuple(os.environ.get("GAMEBOX_PACKAGE_HOSTS", "").split())
    return PackageCache(user_folder() if folder is None else folder, private_hosts=hosts)


def attach_kept(
    known: str,
    take_over: bool,
    network: str | None,
    allow: Sequence[str],
    cache: PackageCache | None,
    services: Sequence[Service],
    network_log: Path | None,
    report: Callable[[str], None],
    remote: bool | None = None,
) -> SandboxedEnvironment:
    """Return the kept sandbox with the id or name ``known``, with these options for its network. Raises SandboxError.

    With ``remote``, or if a service is named in the environment, it is one of the service's.
    """
    if wants_service() if remote is None else remote:
        if cache is not None:
            why = f"--packages has no effect in {known}: the service decides that when a sandbox is made."
            raise bad_input(why, "Leave it out, or make a sandbox with --packages.")
        return attach_remote(known, network, allow, connection_file(network_log, network or "none"))
    from sandbox.docker.environment import DockerEnvironment

    rules = policy_of(network or "none", allow) if allow or network is not None else None
    log = connection_file(network_log, network or "none")
    found = DockerEnvironment.attach(
        known,
        take_over=take_over,
        network=rules,
        cache=cache,
        services=services or None,
        report=report,
    )
    if log is not None and found.network.mode == "bridge":
        found.close()
        raise bad_input(
            f"--network-log {network_log} has no effect in {known}, whose bridge hides connections.", "Leave it out."
        )
    found.on_connection = log
    return found
