"""List the sandboxes on an engine, of all users and hosts, for ``gamebox ls`` and ``gamebox rm``."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterable
from typing import Any, Literal

import docker

from sandbox.docker.container import removal
from sandbox.docker.container.create import BOOT_LABEL, HOST_LABEL, IMAGE_LABEL, OWNER_LABEL
from sandbox.docker.container.enforcement import boot_id
from sandbox.docker.engine.client import translated
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.guest.protocol.wire import PROTOCOL

from . import labels as marks
from . import owners, waiting
from .kept import IN_USE, matches
from .labels import NAME_LABEL, SERVICE_LABEL
from .orphans import is_dead

log = logging.getLogger(__name__)

State = Literal["owned", "waiting", "detached", "elsewhere", "orphaned"]


@dataclass(frozen=True, slots=True)
class Listed:
    """One sandbox. ``state``: owned by a living process of this host; waiting in a pool of such a process; detached (kept,
    without owner); elsewhere (its owner is of another host or user, if there is one); orphaned (its owner is dead, and it is
    about to end, or was never started).

    ``status`` is the engine's word (running, paused, created). ``deadline_left_seconds`` is how long a detached one waits for an
    orchestrator, as far as that is known here; ``ident`` the name of its container. ``here`` says that this host made it, at this
    boot: one that is elsewhere is then another user's of this host (whose files on it are not ours). ``service`` says that it
    belongs to a service, which may not run at the moment, and ``of_service`` to which. ``made_by`` is the version
    of Gamebox that made a kept one, ``protocol`` what its guest speaks.
    """

    id: str
    ident: str
    name: str | None
    image: str
    kept: bool
    status: str
    state: State
    owner_pid: int | None
    owner_host: str
    since: float | None
    deadline_left_seconds: float | None
    age_seconds: float
    here: bool
    service: bool = False
    of_service: str = ""
    made_by: str = ""
    protocol: int = PROTOCOL

    @property
    def others(self) -> str:
        """The owner of a sandbox that is elsewhere, in words."""
        return "another user of this host" if self.here else self.owner_host or "another host"


def sandboxes(client: docker.DockerClient, *, every: bool = False) -> list[Listed]:
    """Return the sandboxes that run or are paused, newest first; with ``every`` all of them. Raises SandboxError.

    A container that carries our labels, but whose name is not the one they give, is left out.
    """
    with translated():
        states = {} if every else {"status": list(IN_USE)}
        found = client.api.containers(all=True, filters={"label": SANDBOX_LABEL, **states})
    ours = []
    for each in found:
        ident = marks.ident(each)
        if ident is None:
            log.info("passing over %s: its labels are not those of a sandbox", each["Id"][:12])
        else:
            ours.append(_listed(each, ident))
    return ours


def chosen(listed: Iterable[Listed], containers: Iterable[str]) -> list[Listed]:
    """Return the sandboxes with these ids, id prefixes or names. Raises SandboxError: sandbox_not_found, invalid_configuration."""
    known = list(listed)
    picked = []
    for wanted in containers:
        found = [each for each in known if _is(each, wanted)]
        if not found:
            raise SandboxError(
                ErrorCode.sandbox_not_found, f"There is no sandbox {wanted!r} on this engine.", "See gamebox ls --all."
            )
        if len(found) > 1:
            several = ", ".join(each.id[:12] for each in found)
            raise SandboxError(
                ErrorCode.invalid_configuration, f"{wanted!r} may be any of {several}.", "Give more of the id."
            )
        picked += found
    return picked


def remove(sandbox: Listed, *, force: bool = False) -> None:
    """End a sandbox. Raises SandboxError ``sandbox_owned`` for one in use, unless ``force``, and as the engine does."""
    if sandbox.service and not force:
        raise SandboxError(
            ErrorCode.sandbox_owned,
            f"The sandbox {sandbox.id[:12]} belongs to a service (gamebox serve).",
            "Delete it there, or end it all the same with --force.",
        )
    if sandbox.state in ("owned", "waiting", "elsewhere") and not force:
        owner = f"process {sandbox.owner_pid} on {sandbox.owner_host}" if sandbox.owner_pid else sandbox.others
        raise SandboxError(
            ErrorCode.sandbox_owned,
            f"The sandbox {sandbox.name or sandbox.id[:12]} is in use by {owner}, as far as can be seen from here.",
            "Close it there, or end it all the same with --force.",
        )
    removal.remove(sandbox.ident, container_id=sandbox.id)
    with contextlib.suppress(SandboxError):
        owners.forget(sandbox.ident)


def _is(listed: Listed, wanted: str) -> bool:
    labels = {SANDBOX_LABEL: listed.ident, **({NAME_LABEL: listed.name} if listed.name else {})}
    return matches({"Id": listed.id, "Names": [f"/{listed.ident}"], "Labels": labels}, wanted)


def _listed(found: dict[str, Any], ident: str) -> Listed:
    fields = marks.keep(found)
    kept = fields is not None
    host = marks.text(found, HOST_LABEL)
    here = host == socket.gethostname() and marks.text(found, BOOT_LABEL) == boot_id()
    made = marks.started(found) or float(found.get("Created") or time.time())
    owner = owners.owner_of(ident) if kept else None
    left = None
    pid: int | None = None
    since: float | None = made
    state: State
    if owner is not None:
        held: State = "waiting" if waiting.waits(ident) else "owned"
        state = held if owner.alive else "detached"
        pid, host = (owner.pid if owner.alive else None), owner.host
        since = owner.since if owner.alive else owner.detached
        alone = None if owner.alive else owners.ownerless_seconds(ident)
        left = None if alone is None else max(0.0, (marks.keep_seconds(found) or 0.0) - alone)
    elif kept or not here:
        state = "elsewhere"
    else:
        pid = marks.pid(found)
        state = "waiting" if waiting.waits(ident) else "owned"
        state = "orphaned" if is_dead(marks.text(found, OWNER_LABEL)) else state
    return Listed(
        id=found["Id"],
        ident=ident,
        name=marks.name(found),
        image=marks.text(found, IMAGE_LABEL) or found["Image"],
        kept=kept,
        status=found["State"],
        state=state,
        owner_pid=pid,
        owner_host=host,
        since=since,
        deadline_left_seconds=left,
        age_seconds=time.time() - made,
        here=here,
        service=bool(marks.text(found, SERVICE_LABEL)),
        of_service=marks.text(found, SERVICE_LABEL)[:64],
        made_by=marks.made_by(fields or {}),
        protocol=PROTOCOL if fields is None else marks.protocol(fields),
    )
