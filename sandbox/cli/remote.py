"""Commands that work in sandboxes of a service: which do, what they ask of it, and what it lists."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sandbox.docker.spec import Flag
from sandbox.text.wording import one_line

from .errors import bad_input, say_error

if TYPE_CHECKING:
    from sandbox.client.environment import RemoteEnvironment
    from sandbox.client.listing import RemoteSandbox
    from sandbox.environment.sandboxed import SandboxedEnvironment
    from sandbox.network.connections import Connection

URL = "GAMEBOX_URL"
REMOTE_HELP = "Use the service at GAMEBOX_URL, with the key in GAMEBOX_API_KEY; so does every command while GAMEBOX_URL is set."
REMOTE = Flag("remote", REMOTE_HELP, bool, False)
# What a service gives a sandbox that asks for nothing.
LEAST_LIFE_SECONDS = 3600.0
# Options that say something to a service; the others are of this host's engine, network or files.
_OF_SERVICES = frozenset(
    {
        "image",
        "network",
        "allow",
        "network_log",
        "packages",
        "memory",
        "cpus",
        "disk",
        "workspace",
        "env",
        "ca_bundle",
        "profile",
        "read_root",
        "keep",
        "keep_seconds",
        "name",
        "remote",
    }
)


def wants_service(remote: object = False) -> bool:
    """Return whether a command is to use a service: it was asked to (``--remote``), or one is named in the environment."""
    return bool(remote) or bool(os.environ.get(URL))


def refuse_with_service(values: Mapping[str, Any], flags: Mapping[str, Flag]) -> None:
    """Raise SandboxError for an option that has no effect with a service."""
    for name, flag in flags.items():
        if name not in _OF_SERVICES and values[name] not in (None, flag.default, [], ()):
            raise bad_input(
                f"--{flag.name} has no effect in a sandbox of a service.",
                f"Leave out --{flag.name}, or {'--remote' if values['remote'] else f'unset {URL}'}.",
            )


def remote_sandbox(
    asked: Mapping[str, Any], *, name: str | None, keep_seconds: float | None, log: Callable[[Connection], None] | None
) -> SandboxedEnvironment:
    """Return a new sandbox of the service with these arguments, not started; it is kept if it has ``keep_seconds``.

    It then ends when nothing was done in it for that long. ``log`` gets its connections. Raises SandboxError.
    """
    from sandbox.client.environment import RemoteEnvironment
    from sandbox.client.listing import NAME

    kept: dict[str, Any] = {}
    if keep_seconds is not None:
        life = max(keep_seconds, LEAST_LIFE_SECONDS)
        kept = {"keep": True, "idle_seconds": keep_seconds, "time_to_live_seconds": life, "renew": True}
    made = RemoteEnvironment(**asked, **kept, metadata=None if name is None else {NAME: name})
    made.on_connection = log
    return _as_sandboxed(made)


def attach_remote(
    known: str, network: str | None, allow: Sequence[str], log: Callable[[Connection], None] | None
) -> SandboxedEnvironment:
    """Return the sandbox of the service with this id or name; its network stays, unless rules are given.

    ``log`` gets its connections. Raises SandboxError.
    """
    from sandbox.client.environment import RemoteEnvironment
    from sandbox.client.http.service import Service
    from sandbox.client.listing import find_sandbox

    from .network_options import policy_of

    service = Service()
    try:
        ident = find_sandbox(service, known).id
    finally:
        service.close()
    found = RemoteEnvironment.attach(ident, renew=True)
    found.on_connection = log
    if allow or network is not None:
        try:
            found.network = policy_of(network or "none", allow)
        except BaseException:
            found.close()
            raise
    return _as_sandboxed(found)


def _as_sandboxed(environment: RemoteEnvironment) -> SandboxedEnvironment:
    """Return it as what commands take: it has the methods that they use."""
    return cast("SandboxedEnvironment", environment)


def id_of(sandbox: SandboxedEnvironment) -> str:
    """Return what a person calls a started sandbox."""
    remote = getattr(sandbox, "id", None)
    return sandbox.container_id[:12] if remote is None else str(remote)  # type: ignore[attr-defined]


def list_remote(*, every: bool) -> list[RemoteSandbox]:
    """Return the sandboxes of the service, with ``every`` also those that are over. Raises SandboxError."""
    from sandbox.client.http.service import Service
    from sandbox.client.listing import list_sandboxes

    service = Service()
    try:
        return [each for each in list_sandboxes(service) if every or not each.is_over]
    finally:
        service.close()


def remove_remote(ids: Sequence[str]) -> bool:
    """Delete sandboxes of the service and print their ids; return whether all of them were."""
    from sandbox.client.http.service import Service
    from sandbox.client.listing import delete_sandbox, find_sandbox
    from sandbox.errors import SandboxError

    service, all_of_them = Service(), True
    try:
        for known in ids:
            try:
                ident = find_sandbox(service, known).id
                delete_sandbox(service, ident)
            except SandboxError as error:
                say_error(error)
                all_of_them = False
            else:
                sys.stdout.write(f"{ident}\n")
    finally:
        service.close()
    return all_of_them


def remote_row(listed: RemoteSandbox, written: Any) -> tuple[str, ...]:
    """Return a sandbox as a row of ``gamebox ls``; ``written`` writes a time."""
    state = listed.state if listed.is_over else f"{listed.state}, {written(listed.left_seconds)} left"
    row = (listed.id, listed.name or "-", listed.image[:40], state, written(listed.age_seconds))
    return tuple(one_line(text) for text in row)
