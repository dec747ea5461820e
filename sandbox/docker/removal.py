"""Removing a container for certain."""

from __future__ import annotations

import contextlib
import logging
import time

import docker
import docker.errors

from sandbox.errors import ErrorCode, SandboxError

from .engine import translated

log = logging.getLogger(__name__)

GONE_SECONDS = 10.0
# A create whose answer was not awaited shows up within this (seen: 20 ms, more on a busy engine).
CREATE_SECONDS = 2.0


def remove(client: docker.DockerClient, name: str, *, may_appear: bool = False) -> None:
    """Remove the container, by its name: a create that timed out or was interrupted may be carried out all the same.

    ``may_appear`` waits for that. What the engine refuses is logged.
    """
    now = time.monotonic()
    deadline, created_by = now + GONE_SECONDS, now + (CREATE_SECONDS if may_appear else 0)
    while time.monotonic() < deadline:
        try:
            with translated():
                client.api.remove_container(name, force=True, v=True)
        except SandboxError as error:
            if isinstance(error.__cause__, docker.errors.NotFound):
                if time.monotonic() >= created_by:
                    return
                time.sleep(0.05)
                continue
            if error.code is not ErrorCode.engine_error:
                log.warning("could not remove sandbox %s: %s", name, error)
                return
            with contextlib.suppress(docker.errors.APIError):  # a paused one cannot be killed by every engine
                client.api.unpause(name)
            time.sleep(0.005)  # its removal is under way
        else:
            return
