"""What dead orchestrators leave on an engine and nothing else ends.

A sandbox that runs ends with its orchestrator, and a kept one after its keep_seconds. What remains are containers that were
created and never started (their orchestrator died between the two calls, some 50 ms, or gave up on a create that was carried out
later), paused ones, in which nothing runs that could end them, and kept ones that ended on an engine with live-restore (see
``kept.is_removed_by``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from typing import Any

import docker
import docker.errors

from sandbox.errors import SandboxError

from . import owners
from .container import BOOT_LABEL, HOST_LABEL, PID_LABEL
from .enforcement import boot_id
from .engine import translated
from .events import SANDBOX_LABEL
from .kept import KEEP_LABEL, kept_of

log = logging.getLogger(__name__)

# Over its keep_seconds, until a paused kept sandbox is woken to end by itself.
MARGIN_SECONDS = 300.0
_swept: set[int] = set()
_swept_lock = threading.Lock()


def sweep(client: docker.DockerClient) -> None:
    """Remove what dead orchestrators of this host left unstarted or paused; once a process and engine. Another host's stay.

    A kept one is never removed: paused and without an owner for longer than its keep_seconds, it is woken, and its guest ends
    it unless it has a host after all.
    """
    with _swept_lock:
        if id(client) in _swept:
            return
        _swept.add(id(client))
    labels = [SANDBOX_LABEL, f"{HOST_LABEL}={socket.gethostname()}", f"{BOOT_LABEL}={boot_id()}"]
    with contextlib.suppress(SandboxError), translated():
        filters = {"status": ["created", "paused"], "label": labels}
        for found in client.api.containers(all=True, filters=filters):
            with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
                _tidy(client, found)
        ended = {"status": ["exited", "dead"], "label": [KEEP_LABEL, f"{HOST_LABEL}={socket.gethostname()}"]}
        for found in client.api.containers(all=True, filters=ended):
            with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
                client.api.remove_container(found["Id"], force=True, v=True)
    with contextlib.suppress(SandboxError):
        owners.forget_old()


def _tidy(client: docker.DockerClient, found: dict[str, Any]) -> None:
    if KEEP_LABEL in found["Labels"] and found["State"] == "paused":
        kept = kept_of(found)
        alone = owners.ownerless_seconds(kept.ident)
        if alone is not None and alone > kept.seconds + MARGIN_SECONDS:
            log.info("waking %s, which was left paused", found["Names"])
            client.api.unpause(found["Id"])
    elif not alive(found["Labels"].get(PID_LABEL, "")):
        log.info("removing %s, which its orchestrator left %s", found["Names"], found["State"])
        client.api.remove_container(found["Id"], force=True, v=True)


def alive(pid: str) -> bool:
    """Whether there is such a process; one whose number was taken by another counts as alive, until that ends."""
    if not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
