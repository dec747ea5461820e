"""The quota of a tenant for which nobody has set one: a share of this host, so that no tenant can take all of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from sandbox.frozen import dataclass
from sandbox.limits import MIB, Limits

from .rules import Quota

# Where engines keep the disks of sandboxes, unless told otherwise. The engine is not asked: it may not answer at a start.
ENGINE_FOLDER = Path("/var/lib/docker")
# A share is never too small for so many sandboxes with default limits.
LEAST_SANDBOXES = 2
# What a sandbox costs the host beside its processes counts, too: so there is a bound for those with little memory.
SANDBOX_BYTES = 128 * MIB
# Those of which a tenant without a bound may take everything there is.
OF_HOST = ("sandboxes", "memory_bytes", "disk_bytes", "checkpoint_bytes")


@dataclass(frozen=True, slots=True)
class Host:
    """What this host has: memory, the disk of the engine and what of it is free, and the disk of the service's folder."""

    memory_bytes: int
    disk_bytes: int
    free_bytes: int
    data_bytes: int


def measure_host(data: Path) -> Host:
    """Return what this host has. ``data`` is the folder of the service, which may not exist yet."""
    place = next(each for each in (data.absolute(), *data.absolute().parents) if each.exists())
    engine = ENGINE_FOLDER if ENGINE_FOLDER.is_dir() else place
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk = shutil.disk_usage(engine)
    return Host(memory, disk.total, disk.free, shutil.disk_usage(place).total)


def share_of(host: Host, share: float, disk_factor: float, disk_bytes: int) -> dict[str, int]:
    """Return a quota by names: that share of the host, where ``disk_bytes`` is the disk of a sandbox whose request names none.

    A share of 0 bounds nothing.
    """
    if not share:
        return {}
    memory = max(int(host.memory_bytes * share), LEAST_SANDBOXES * Limits().memory_bytes)
    # A /tmp on the disk takes half as much again.
    disk = max(int(host.disk_bytes * disk_factor * share), LEAST_SANDBOXES * disk_bytes * 3 // 2)
    stored = min(int(host.data_bytes * share), Quota().checkpoint_bytes or host.data_bytes)
    return {
        "sandboxes": max(memory // SANDBOX_BYTES, LEAST_SANDBOXES),
        "memory_bytes": memory,
        "disk_bytes": disk,
        "checkpoint_bytes": stored,
    }


def unbounded(quota: Quota) -> list[str]:
    """Return the names of what a tenant with this quota may have all of."""
    found: dict[str, Any] = quota.model_dump()
    return [name for name in OF_HOST if found[name] is None]
