"""Containers that were created and never started: the engine removes a sandbox by itself only once it has run.

They are left when their orchestrator dies between the two calls (some 50 ms), or when a create it gave up on is carried out later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading

import docker
import docker.errors

from sandbox.errors import SandboxError

from .container import BOOT_LABEL, HOST_LABEL, PID_LABEL
from .enforcement import boot_id
from .engine import translated
from .events import SANDBOX_LABEL

log = logging.getLogger(__name__)

_swept: set[int] = set()
_swept_lock = threading.Lock()


def sweep(client: docker.DockerClient) -> None:
    """Remove what dead orchestrators of this host left unstarted; once a process and engine. Another host's stay."""
    with _swept_lock:
        if id(client) in _swept:
            return
        _swept.add(id(client))
    labels = [SANDBOX_LABEL, f"{HOST_LABEL}={socket.gethostname()}", f"{BOOT_LABEL}={boot_id()}"]
    with contextlib.suppress(SandboxError), translated():
        for found in client.api.containers(all=True, filters={"status": "created", "label": labels}):
            if not _alive(found["Labels"].get(PID_LABEL, "")):
                log.info("removing %s, which its orchestrator left unstarted", found["Names"])
                with contextlib.suppress(docker.errors.NotFound):
                    client.api.remove_container(found["Id"], force=True, v=True)


def _alive(pid: str) -> bool:
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
