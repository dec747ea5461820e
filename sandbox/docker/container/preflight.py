"""Compare what is asked with what the engine has: the workspace with its disk, memory and processors with those of its host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import docker

from sandbox.docker.engine.client import describe
from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.readers import limit, phrased
from sandbox.text.wording import size
from sandbox.transfers import folders

BLOCK = 4096


def check_workspace(folder: Path, room_bytes: int) -> None:
    """Raise SandboxError ``no_space`` for a folder of the host that a workspace of ``room_bytes`` cannot hold."""
    needed = 0
    with contextlib.suppress(OSError, SandboxError):  # what cannot be read is reported when it is copied
        for entry in folders.walk(folder):
            if not entry.is_dir(follow_symlinks=False):
                needed += -(-entry.stat(follow_symlinks=False).st_size // BLOCK) * BLOCK
    if needed > room_bytes:
        raise workspace_too_large(folder, room_bytes, needed)


def workspace_too_large(folder: Path, room_bytes: int, needed: int | None = None) -> SandboxError:
    """Return the error for a workspace that does not fit; ``needed`` is its size in bytes, if known."""
    takes = "does" if needed is None else f"takes {size(needed)} and does"
    return SandboxError(
        ErrorCode.no_space,
        f"The workspace {str(folder)!r} {takes} not fit into the sandbox's workspace of {size(room_bytes)}.",
        phrased("Raise {disk} (the workspace has half of it), or copy less.", disk=limit("disk_bytes")),
    )


def check_host(client: docker.DockerClient, limits: Limits) -> None:
    """Raise SandboxError ``invalid_limits`` for more memory or processors than the engine's host has.

    The defaults may always be asked for. The engine is asked only where this host has less: it is nearly always the same one.
    """
    least, memory = Limits(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if limits.memory_bytes <= max(memory, least.memory_bytes) and limits.cpus <= max(os.cpu_count() or 0, least.cpus):
        return
    there = describe(client)
    if limits.memory_bytes > max(there.memory_bytes, least.memory_bytes):
        raise SandboxError(
            ErrorCode.invalid_limits,
            f"A memory limit of {size(limits.memory_bytes)} is more than the engine's host has ({size(there.memory_bytes)}).",
            phrased(f"Set {{memory}} to at most {there.memory_bytes}.", memory=limit("memory_bytes")),
        )
    if limits.cpus > max(there.cpus, least.cpus):
        raise SandboxError(
            ErrorCode.invalid_limits,
            f"A limit of {limits.cpus:g} processors is more than the engine's host has ({there.cpus}).",
            phrased(f"Set {{cpus}} to at most {there.cpus}.", cpus=limit("cpus")),
        )
