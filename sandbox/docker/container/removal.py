"""Removing a container for certain."""

from __future__ import annotations

import contextlib
import logging
import time

import docker.errors
import tenacity

from sandbox.docker.engine.client import connect, translated
from sandbox.docker.kept.labels import is_ident
from sandbox.errors import ErrorCode, SandboxError

from .disk import remove_left

log = logging.getLogger(__name__)

GONE_SECONDS = 10
# A create whose answer was not awaited shows up within this (seen: 20 ms, more on a busy engine).
CREATE_SECONDS = 2.0


def remove(name: str, *, container_id: str = "", may_appear: bool = False, has_volumes: bool = False) -> None:
    """Remove the container, by its name: a create that timed out or was interrupted may be carried out all the same.

    ``container_id`` is better than the name where it is known. ``may_appear`` waits for that create; ``has_volumes`` looks
    whether somebody else removed it without its volumes. What the engine refuses is logged. Raises ValueError for a name that is
    none of ours: it would reach the engine as part of a path.
    """
    if not is_ident(name):
        raise ValueError(f"{name!r} is no name of a sandbox")
    created_by = time.monotonic() + (CREATE_SECONDS if may_appear else 0)
    again = tenacity.Retrying(
        stop=tenacity.stop_after_delay(GONE_SECONDS),
        wait=tenacity.wait_exponential(multiplier=0.005, max=0.5),  # most removals that are under way take 20 ms
        retry=tenacity.retry_if_exception_type(_NotGoneError),
    )
    try:
        again(_try_to_remove, container_id or name, created_by)
    except tenacity.RetryError:
        log.warning("could not remove sandbox %s within %d s", name, GONE_SECONDS)
    except SandboxError as error:
        log.warning("could not remove sandbox %s, which ends by itself: %s", name, error)
        return
    if has_volumes:
        with contextlib.suppress(SandboxError):
            remove_left(connect(GONE_SECONDS), name)


class _NotGoneError(Exception):
    """The container is there, or may still appear."""


def _try_to_remove(target: str, created_by: float) -> None:
    """Remove it if it is there. Raises _NotGoneError where another try is worth it, SandboxError where none is."""
    try:
        with translated():
            connect(GONE_SECONDS).api.remove_container(target, force=True, v=True)
    except SandboxError as error:
        if isinstance(error.__cause__, docker.errors.NotFound):
            if time.monotonic() >= created_by:
                return
        elif error.code is ErrorCode.engine_error:  # its removal is under way, or it is paused
            with contextlib.suppress(SandboxError), translated():  # a paused one cannot be killed by every engine
                connect(GONE_SECONDS).api.unpause(target)
        else:
            raise
        raise _NotGoneError from error
