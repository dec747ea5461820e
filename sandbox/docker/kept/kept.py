"""Kept sandboxes on an engine: what their labels say, and how one is found again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import docker

from sandbox.docker.container.disks.disk import Disk
from sandbox.docker.engine import locks
from sandbox.docker.engine.client import translated
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.guest.protocol.reattach import TOKEN_BYTES
from sandbox.guest.protocol.wire import PROTOCOL
from sandbox.names import RULES, is_sandbox_name
from sandbox.network.policy import Network
from sandbox.network.rules import ascii_name
from sandbox.network.services.names import MOST_NAMES
from sandbox.readers import attach, phrased
from sandbox.text.wording import value_text

from . import labels as marks
from .labels import KEEP_LABEL, NAME_LABEL, SERVICE_LABEL

log = logging.getLogger(__name__)

# As many characters of an id as tell sandboxes apart in practice; docker shows 12.
LEAST_PREFIX = 4
# What a container is called that is a sandbox which can be used. Without being asked for these, Podman lists only the first.
IN_USE = ("running", "paused")
# The same with those that are about to be one. What has ended gives its name back.
LIVING = ("created", *IN_USE, "restarting")
# More than any clock counts.
MOST_SECONDS = 1 << 63


@dataclass(frozen=True)
class Kept:
    """What a process needs to serve a sandbox that another one made. The guest knows its hosts by the token.

    ``ident`` is the name of its container, ``container_id`` the engine's id ("" before it is created), ``service`` says that it
    belongs to a service. ``spec`` is without what
    holds on the host that made it alone. ``names`` are those that it knows for services of the host and the package cache.
    """

    ident: str
    token: bytes
    spec: SandboxSpec
    disk: Disk
    names: tuple[str, ...] = ()
    container_id: str = ""
    service: bool = False

    @property
    def called(self) -> str:
        """What a person calls it by: its name, else the beginning of the engine's id."""
        return self.spec.name or self.container_id[:12]

    @property
    def missing(self) -> tuple[str, ...]:
        """The options it was made with that only its maker knows."""
        return tuple(dict.fromkeys([*(["env"] if self.spec.env else []), *self.spec.beside]))

    def labels(self) -> dict[str, str]:
        """Return the labels that hold it. They cannot be seen from inside the sandbox."""
        from importlib.metadata import version  # takes 20 ms

        disk = self.disk
        fields = {
            "version": version("gamebox"),
            "protocol": PROTOCOL,
            "token": self.token.hex(),
            "seconds": self.spec.keep_seconds,
            "spec": self.spec.to_data(),
            "disk": {"kind": disk.kind, "places": disk.places, "watched": disk.watched, "why": disk.why},
            "names": self.names,
        }
        named = {} if self.spec.name is None else {NAME_LABEL: self.spec.name}
        return {KEEP_LABEL: json.dumps(fields), **named}


def new_token() -> bytes:
    """Return a token for a new sandbox."""
    return secrets.token_bytes(TOKEN_BYTES)


def is_removed_by(client: docker.DockerClient) -> bool:
    """Return whether the engine removes a kept sandbox when it ends. Raises SandboxError.

    Engines before 25 that leave containers running over their own restart (live-restore) end those that they are to remove: so
    there the remains of one that has ended wait for the next orchestrator (see ``orphans``).
    """
    with translated():
        return not client.info().get("LiveRestoreEnabled")


def check(seconds: float, name: str | None) -> None:
    """Raise SandboxError ``invalid_configuration`` for an invalid time or name."""
    if not 0 < seconds < MOST_SECONDS:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"keep_seconds={value_text(seconds)} is not a time to wait for an orchestrator.",
            "Give a positive number of seconds, as in 3600.0.",
        )
    if name is not None and not is_sandbox_name(name):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{name[:80]!r} is not a valid name for a sandbox.",
            f"A name consists of {RULES['sandbox']}.",
        )


@contextlib.contextmanager
def naming(client: docker.DockerClient, ident: str, name: str | None) -> Iterator[None]:
    """Create the container ``ident`` with that name within: of several at once, at most one gets it.

    Processes of this user and host take turns. To detect others, the name is looked up before and after the block: two that create
    at the very same moment may both be refused. Raises SandboxError ``invalid_configuration`` if a sandbox of that name is on the
    engine.
    """
    if name is None:
        yield
        return
    with locks.exclusive(f"names-{hashlib.sha256(name.encode()).hexdigest()[0]}"):  # 16 files for all names there are
        _check_name_is_free(client, name, ident)
        yield
        _check_name_is_free(client, name, ident)


def _check_name_is_free(client: docker.DockerClient, name: str, ident: str) -> None:
    with translated():
        listed = client.api.containers(all=True, filters={"label": f"{NAME_LABEL}={name}"})
    taken = [each for each in listed if each["State"] in LIVING and marks.ident(each) not in (None, ident)]
    if taken:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"There is a sandbox {name!r} already ({taken[0]['Id'][:12]}).",
            phrased(f"Use it with {{how}}, end it with `gamebox rm {name}`, or take another name.", how=attach(name)),
        )


def find(client: docker.DockerClient, id_or_name: str) -> Kept:
    """Find the kept sandbox with that name, id or prefix of an id.

    Raises SandboxError: sandbox_not_found, invalid_configuration where several are meant or one is of another version.
    """
    with translated():
        listed = client.api.containers(all=True, filters={"label": SANDBOX_LABEL, "status": list(IN_USE)})
    found = [each for each in listed if matches(each, id_or_name)]
    kept = [each for each in found if marks.text(each, KEEP_LABEL)]
    if not kept:
        raise _not_found(id_or_name, [each["Id"][:12] for each in found])
    if len(kept) > 1:
        several = ", ".join(each["Id"][:12] for each in kept)
        raise SandboxError(
            ErrorCode.invalid_configuration, f"{id_or_name!r} may be any of {several}.", "Give more of the id."
        )
    return read_kept(kept[0])


def matches(listed: dict[str, Any], id_or_name: str) -> bool:
    """Return whether a container of the engine's list is a sandbox with that id, prefix of an id, or name."""
    ident = marks.ident(listed)
    if ident is None:
        return False
    if id_or_name in (marks.name(listed), ident):
        return True
    return len(id_or_name) >= LEAST_PREFIX and listed["Id"].startswith(id_or_name)


def read_kept(listed: dict[str, Any]) -> Kept:
    """Read a kept sandbox from the labels of a container. Raises SandboxError ``invalid_configuration``."""
    ident, fields = marks.ident(listed), marks.keep(listed)
    try:
        if ident is None or fields is None:
            raise ValueError("its labels cannot be read")
        if marks.protocol(fields) != PROTOCOL:
            raise ValueError(f"its guest speaks protocol {marks.protocol(fields)}, and this version {PROTOCOL}")
        spec = SandboxSpec.from_data(fields["spec"])
        disk = fields["disk"]
        return Kept(
            ident=ident,
            token=bytes.fromhex(fields["token"]),
            # Anybody may have written it: it must not choose a folder, a file or an address of this host.
            spec=dataclasses.replace(
                spec.without_host(),
                beside=spec.beside,
                keep=True,
                keep_seconds=_seconds(listed),
                name=marks.name(listed),
            ),
            disk=Disk(
                disk["kind"], tuple((p, s) for p, s in disk["places"]), watched=tuple(disk["watched"]), why=disk["why"]
            ),
            names=_names(fields["names"]),
            container_id=listed["Id"],
            service=bool(marks.text(listed, SERVICE_LABEL)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SandboxError) as error:
        made_by = marks.made_by(fields or {})
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The sandbox {listed['Id'][:12]} was made by another version of gamebox "
            f"({made_by}; {type(error).__name__}: {error}).",
            "Attach to it with that version, or end it with gamebox rm.",
        ) from error


def network_of(found: Kept, asked: Network | None) -> Network:
    """Return the policy for an attached sandbox. Raises SandboxError ``invalid_configuration`` if its interfaces do not fit."""
    if asked is None:
        return found.spec.network
    if "bridge" in (asked.mode, found.spec.network.mode) and asked.mode != found.spec.network.mode:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The sandbox was made with {'the' if found.spec.network.mode == 'bridge' else 'no'} bridge, which cannot be changed.",
            "Leave out network, or make another sandbox.",
        )
    return asked


def _names(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or len(given) > MOST_NAMES or any(ascii_name(str(name)) != name for name in given):
        raise ValueError("names")
    return tuple(given)


def _seconds(listed: dict[str, Any]) -> float:
    seconds = marks.keep_seconds(listed)
    if seconds is None:
        raise ValueError("seconds")
    return seconds


def _not_found(id_or_name: str, ordinary: list[str]) -> SandboxError:
    if ordinary:
        return SandboxError(
            ErrorCode.sandbox_not_found,
            f"The sandbox {ordinary[0]} is not kept: it belongs to the process that started it.",
            "Make a sandbox with DockerEnvironment(keep=True) to attach to it later.",
        )
    return SandboxError(
        ErrorCode.sandbox_not_found,
        f"There is no kept sandbox {id_or_name!r} on this engine.",
        "List the kept sandboxes with gamebox ls. One that no program used for its keep_seconds, or that was idle, has ended.",
    )
