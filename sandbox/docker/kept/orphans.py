"""Remove sandboxes that orchestrators left behind on an engine and that do not end by themselves.

The engine removes a sandbox by itself once it has run and ended, and it ends with its pipe, or with its lease; a kept one ends
after its keep_seconds. Left are those that were created and never started (their orchestrator died between the two calls, some
50 ms, or gave up on a create that was carried out later), those that cannot end (paused ones, for example), and kept ones that
ended on an engine with live-restore (see ``kept.is_removed_by``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import docker
import docker.errors

from sandbox.docker.container.create import BOOT_LABEL, HOST_LABEL, OWNER_LABEL, owner
from sandbox.docker.container.disks.disk import remove_unused_volumes
from sandbox.docker.container.enforcement import boot_id
from sandbox.docker.engine.client import is_missing, translated
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.errors import SandboxError
from sandbox.interrupts import Shield

from . import labels as marks
from . import owners
from .labels import KEEP_LABEL

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
# Over its keep_seconds, until a paused kept sandbox is woken to end by itself.
MARGIN_SECONDS = 300.0
_TURN_SECONDS = 0.05
_ENDED = ("exited", "dead")

_swept: weakref.WeakKeyDictionary[docker.DockerClient, float] = weakref.WeakKeyDictionary()
_swept_lock = threading.Lock()


def sweep(client: docker.DockerClient) -> None:
    """Remove what dead orchestrators of this host left; at most once a minute for a process and engine.

    Does not touch the containers of other hosts, those of processes that are not visible from here (in another namespace of
    process ids, as in a container), those with neither OWNER_LABEL nor KEEP_LABEL (an empty label counts as missing), and those
    whose name is not the one in their labels. Never removes a kept sandbox that has run: if it was paused and without an owner for
    longer than its keep_seconds, it is resumed, and its guest ends it unless a host attaches.
    """
    if _is_due(client):
        _sweep(client)


def sweep_beside(client: docker.DockerClient) -> Callable[[], None]:
    """Sweep in a thread, see ``sweep``, while the engine starts a container. Returns a function that waits for the end."""
    if not _is_due(client):
        return _do_nothing
    done = threading.Event()

    def work() -> None:
        try:
            _sweep(client)
        finally:
            done.set()

    with Shield():  # the start of a thread waits for an Event
        threading.Thread(target=work, name="gamebox-sweep", daemon=True).start()

    def wait() -> None:
        while not done.is_set():
            with Shield():
                done.wait(_TURN_SECONDS)

    return wait


def _do_nothing() -> None:
    """There is nothing to wait for."""


def _is_due(client: docker.DockerClient) -> bool:
    now = time.monotonic()
    with _swept_lock:
        if now - _swept.get(client, -SWEEP_SECONDS) < SWEEP_SECONDS:
            return False
        _swept[client] = now
    return True


def _sweep(client: docker.DockerClient) -> None:
    here = f"{HOST_LABEL}={socket.gethostname()}"
    mine = [SANDBOX_LABEL, here, f"{BOOT_LABEL}={boot_id()}"]
    with contextlib.suppress(SandboxError), translated():
        for found in client.api.containers(all=True, filters={"label": [*mine, OWNER_LABEL]}):
            if is_dead(marks.text(found, OWNER_LABEL)):
                _apart(client, found, _remove)
        waiting = {"status": ["created", "paused"], "label": [*mine, KEEP_LABEL]}
        for found in client.api.containers(all=True, filters=waiting):
            _apart(client, found, _tidy)
        for found in client.api.containers(all=True, filters={"label": [KEEP_LABEL, here]}):
            # Not by a filter: Podman refuses one with a state that it does not know.
            if found["State"] in _ENDED and marks.keep(found) is not None:
                _apart(client, found, _remove)
    with contextlib.suppress(SandboxError):
        remove_unused_volumes(client)
    with contextlib.suppress(SandboxError):
        owners.forget_old()


def _apart(
    client: docker.DockerClient, found: dict[str, Any], act: Callable[[docker.DockerClient, dict[str, Any]], None]
) -> None:
    """Call ``act`` on one container; an error is logged and stops neither the others nor the start of a sandbox."""
    if marks.ident(found) is None:
        log.info("passing over %s: its labels are not those of a sandbox", found["Id"][:12])
        return
    try:
        with translated():
            act(client, found)
    except (SandboxError, ValueError, TypeError, OSError) as error:
        log.info("could not tidy %s: %s", found["Id"][:12], error)


def _remove(client: docker.DockerClient, found: dict[str, Any]) -> None:
    log.info("removing %s, which its orchestrator left behind", found["Names"])
    try:
        client.api.remove_container(found["Id"], force=True, v=True)
    except docker.errors.APIError as error:
        if is_missing(error):
            return
        with contextlib.suppress(docker.errors.APIError):  # Podman cannot kill a paused one at once
            client.api.unpause(found["Id"])
        try:
            client.api.remove_container(found["Id"], force=True, v=True)
        except docker.errors.APIError as again:
            if not is_missing(again):
                raise


def _tidy(client: docker.DockerClient, found: dict[str, Any]) -> None:
    """Remove a kept sandbox that never ran, or wake one that was left paused."""
    seconds = marks.keep_seconds(found)
    if seconds is None:
        return
    alone = owners.ownerless_seconds(marks.ident(found) or "")
    if found["State"] == "created" and alone is not None:
        _remove(client, found)
    elif found["State"] == "paused" and alone is not None and alone > seconds + MARGIN_SECONDS:
        log.info("waking %s, which was left paused", found["Names"])
        with contextlib.suppress(docker.errors.NotFound):
            client.api.unpause(found["Id"])


def is_dead(owned_by: str) -> bool:
    """Return whether the process of an OWNER_LABEL has ended; False if that cannot be seen from here."""
    where, _, rest = owned_by.partition("/")
    pid = marks.number(rest.partition("/")[0])
    try:
        here = owner(os.getpid()).partition("/")[0]
        return bool(here) and where == here and pid is not None and owner(pid) != owned_by
    except OSError:
        return False
