"""The only place of the service that speaks of Docker: start, attach and remove kept sandboxes. All calls here block."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sandbox.docker.container import removal
from sandbox.docker.container.disks import disk
from sandbox.docker.container.enforcement import boot_id
from sandbox.docker.engine.client import connect
from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.kept import inventory, kept, orphans, owners
from sandbox.docker.kept.labels import SERVICE_LABEL
from sandbox.docker.spec import SandboxSpec
from sandbox.environment.base import Environment
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.service.tenants.amounts import DiskRoom
from sandbox.state.fork import fork as start_forks

from .provision import Provision

log = logging.getLogger(__name__)


def prepared(spec: SandboxSpec, provision: Provision) -> tuple[DockerEnvironment, str]:
    """Return the environment for a new sandbox, not started, and the name of the container it will have. Raises SandboxError."""
    made = DockerEnvironment.from_spec(spec, provision.parts(spec))
    made.backend.labels = {SERVICE_LABEL: "1"}
    made.backend.root_image = str(provision.options.get("root_image", ""))
    made.backend.volumes = dict(provision.options.get("volumes", {}))
    made.backend.volume_bytes = provision.volume_bytes
    made.ceiling = provision.ceiling
    provision.give_secrets(made)
    return made, made.backend.name


def mark(environment: DockerEnvironment, service: str) -> None:
    """Have the container say whose it is: of the service with that id. Before it is started."""
    environment.backend.labels = {SERVICE_LABEL: service}


def attached(ident: str, spec: SandboxSpec, provision: Provision) -> DockerEnvironment:
    """Return the environment of a sandbox that runs, made by this service or the one before. Raises SandboxError."""
    found = kept.find(connect(), ident)
    # Its labels are as old as its container, which a pool may have made before anybody asked for it.
    found = replace(found, spec=replace(found.spec, limits=spec.limits))
    made = DockerEnvironment.attach_kept(
        found,
        network=spec.network,
        services=provision.services(spec),
        cache=provision.cache,
        ceiling=provision.ceiling,
    )
    provision.give_secrets(made)
    return made


def fork(source: Environment, made: Sequence[DockerEnvironment], checkpoint: str | None) -> None:
    """Start the environments with the files of another one's checkpoint, or its present ones. Raises SandboxError."""
    assert isinstance(source, DockerEnvironment)  # noqa: S101  # the fleet makes no other
    waiting = iter(made)
    answer = source.state.with_history(
        lambda history: start_forks(source.state, lambda: next(waiting), history, len(made), checkpoint), locked=False
    )
    answer.unwrap()


def remove(ident: str, *, may_appear: bool = False) -> bool:
    """End the sandbox in that container, if there is one; return whether it is known to be gone.

    ``may_appear`` says that the engine may be creating it still.
    """
    gone = removal.remove(ident, has_volumes=True, may_appear=may_appear)
    with contextlib.suppress(SandboxError):
        owners.forget(ident)
    return gone


def claim(ident: str) -> Callable[[], None]:
    """Be the owner of a paused sandbox without waking it; return what ends that. Raises SandboxError."""
    ownership = owners.claim(ident)
    return _do_nothing if ownership is None else ownership.release


def states() -> dict[str, str]:
    """Return the states of the engine's sandboxes by the names of their containers, and remove what it left of ended ones.

    Raises SandboxError.
    """
    orphans.sweep(connect())  # at most once a minute
    return {each.ident: each.status for each in listed()}


def listed() -> list[inventory.Listed]:
    """Return all sandboxes of the engine, also those of others. Raises SandboxError."""
    return inventory.sandboxes(connect(), every=True)


def loss(environment: Environment) -> SandboxUnavailableError | None:
    """Return why the sandbox cannot be used any more, or None if it can."""
    return environment.loss if isinstance(environment, DockerEnvironment) else None


def disk_room(idents: Collection[str]) -> DiskRoom | None:
    """Return the room on the engine's disk, and what the sandboxes in these containers have written there.

    None if this host does not see that disk. Raises SandboxError.
    """
    client = connect()
    found = disk.space(client)
    return None if found is None else DiskRoom(*found, disk.written_bytes(client, idents))


def boot() -> str:
    """Return the id of this boot of the host."""
    return boot_id()


def _do_nothing() -> None:
    """There is nothing to release."""
