"""Sandboxes that their orchestrator left behind.

The engine removes a sandbox by itself once it has run and ended, and it ends with its pipe, or with its lease. Left are those
that were created and never started (their orchestrator died between the two calls, some 50 ms, or gave up on a create that was
carried out later), and those that cannot end: paused ones, for example.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref

import docker
import docker.errors

from sandbox.errors import SandboxError

from .container import BOOT_LABEL, HOST_LABEL, OWNER_LABEL, owner
from .enforcement import boot_id
from .engine import translated
from .events import SANDBOX_LABEL

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0

_swept: weakref.WeakKeyDictionary[docker.DockerClient, float] = weakref.WeakKeyDictionary()
_swept_lock = threading.Lock()


def sweep(client: docker.DockerClient) -> None:
    """Remove what dead orchestrators of this host left; at most once a minute for a process and engine.

    Nothing else is touched: neither what is another host's, nor what is of a process that cannot be seen from here (in
    another namespace of process ids, as in a container), nor what does not carry OWNER_LABEL.
    """
    now = time.monotonic()
    with _swept_lock:
        if now - _swept.get(client, -SWEEP_SECONDS) < SWEEP_SECONDS:
            return
        _swept[client] = now
    labels = [SANDBOX_LABEL, OWNER_LABEL, f"{HOST_LABEL}={socket.gethostname()}", f"{BOOT_LABEL}={boot_id()}"]
    with contextlib.suppress(SandboxError), translated():
        for found in client.api.containers(all=True, filters={"label": labels}):
            if _is_dead(found["Labels"][OWNER_LABEL]):
                log.info("removing %s, which its orchestrator left behind", found["Names"])
                with contextlib.suppress(docker.errors.NotFound):
                    client.api.remove_container(found["Id"], force=True, v=True)


def _is_dead(owned_by: str) -> bool:
    """Whether the process ended for sure; where that cannot be told from here, it counts as alive."""
    here = owner(os.getpid()).partition("/")[0]
    where, _, rest = owned_by.partition("/")
    pid = rest.partition("/")[0]
    return bool(here) and where == here and pid.isdigit() and owner(int(pid)) != owned_by
