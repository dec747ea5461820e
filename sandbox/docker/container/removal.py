"""Remove a container, whatever state it is in."""

from __future__ import annotations

import contextlib
import logging
import time

from sandbox.docker.engine.client import connect, is_missing, translated
from sandbox.docker.engine.retries import retry_engine
from sandbox.docker.kept.labels import is_ident
from sandbox.errors import ErrorCode, SandboxError

from .disks.disk import remove_volumes

log = logging.getLogger(__name__)

GONE_SECONDS = 10
# How long a create without an answer may take to show up (seen: 20 ms, more on a busy engine).
CREATE_SECONDS = 2.0


def remove(
    name: str,
    *,
    container_id: str = "",
    may_appear: bool = False,
    has_volumes: bool = False,
    address: str | None = None,
) -> bool:
    """Remove the container by its name, since a create that timed out or was interrupted may still be carried out.

    Returns whether it is known to be gone.
    ``container_id`` is used instead if it is known. ``may_appear`` waits for such a create. ``has_volumes`` also removes volumes
    that somebody else left when removing the container. ``address`` is the engine's, by default that of the one in use now. A
    refusal of the engine is logged. Raises ValueError for a name that is not one of ours: it would become part of a URL.
    """
    if not is_ident(name):
        raise ValueError(f"{name!r} is not the name of a sandbox")
    created_by = time.monotonic() + (CREATE_SECONDS if may_appear else 0)
    policy = retry_engine(GONE_SECONDS, lambda error: isinstance(error, _NotGoneError))
    try:
        policy(_try_to_remove, container_id or name, created_by, address)
    except _NotGoneError:
        log.warning("could not remove sandbox %s within %d s", name, GONE_SECONDS)
        return False
    except SandboxError as error:
        log.warning("could not remove sandbox %s, which ends by itself: %s", name, error)
        return False
    if has_volumes:
        with contextlib.suppress(SandboxError):
            remove_volumes(connect(GONE_SECONDS, address), name)
    return True


class _NotGoneError(Exception):
    """The container exists or may still appear."""


def _try_to_remove(target: str, created_by: float, address: str | None) -> None:
    """Remove the container if it exists. Raises _NotGoneError if another attempt may help, SandboxError if none does."""
    try:
        with translated():
            connect(GONE_SECONDS, address).api.remove_container(target, force=True, v=True)
    except SandboxError as error:
        if is_missing(error.__cause__):
            if time.monotonic() >= created_by:
                return
        elif error.code is ErrorCode.engine_error:  # its removal is under way, or it is paused
            with contextlib.suppress(SandboxError), translated():  # not every engine can kill a paused one
                connect(GONE_SECONDS, address).api.unpause(target)
        else:
            raise
        raise _NotGoneError from error
