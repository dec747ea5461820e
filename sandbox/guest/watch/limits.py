"""Read back the limits that the kernel enforces for this sandbox."""

from __future__ import annotations

import os
import resource

from .. import kernel
from ..protocol.constants import BROWSER_PROGRAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CREATE_RULESET, _VERSION = 444, 1  # of Landlock
_CGROUP = "/sys/fs/cgroup"
# Paths below _CGROUP, of cgroup v1 and of v2.
_MEMORY = ("memory/memory.limit_in_bytes", "memory.max")
_WITH_SWAP, _SWAP = "memory/memory.memsw.limit_in_bytes", "memory.swap.max"
_PIDS = ("pids/pids.max", "pids.max")
_QUOTA, _PERIOD, _CPU_MAX = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "cpu.max"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read_enforced_limits(places: list[bytes]) -> dict[str, Any]:
    """Return the limits that the kernel enforces; one that is not set, or cannot be read, is left out.

    The sizes of the file systems of the folders ``places`` are included. Bytes are ints, cpus a float.
    """
    found: dict[str, Any] = {
        "memory_bytes": _number(*_MEMORY),
        "pids": _number(*_PIDS),
        "cpus": _cpus(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "file_bytes": resource.getrlimit(resource.RLIMIT_FSIZE)[1],
        "boot_id": _text(_BOOT_ID),
    }
    found["swap_bytes"] = _swap(found["memory_bytes"])
    found["places"] = sizes = {}
    for folder in places:
        try:
            state = os.statvfs(folder)
        except OSError:
            continue
        sizes[os.fsdecode(folder)] = state.f_blocks * state.f_frsize
    return {name: value for name, value in found.items() if value is not None}


def find_browser() -> dict[str, str]:
    """Return what the greeting says of the browser: {} without one; "confined" if the kernel can keep it from files by Landlock."""
    if not any(os.access(path, os.X_OK) for path in BROWSER_PROGRAMS):
        return {}
    try:
        has_landlock = kernel.syscall(_CREATE_RULESET, 0, 0, _VERSION) > 0
    except OSError:
        has_landlock = False
    return {"browser": "confined" if has_landlock else "unconfined"}


def _text(*paths: str) -> str | None:
    for path in paths:
        try:
            with open(os.path.join(_CGROUP, path), "rb") as file:
                return file.read(4096).decode("ascii", "replace").strip()
        except OSError:
            continue
    return None


def _number(*paths: str) -> int | None:
    text = _text(*paths) or ""
    return int(text) if text.isdigit() else None


def _cpus() -> float | None:
    quota, period = _text(_QUOTA), _text(_PERIOD)
    if quota is None or period is None:
        quota, _, period = (_text(_CPU_MAX) or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _swap(memory: int | None) -> int | None:
    """Return how much swap the sandbox may use in bytes; 0 if the machine has no swap, even if the kernel does not count it."""
    with_swap, counted = _number(_WITH_SWAP), _number(_SWAP)
    if with_swap is not None and memory is not None:
        return max(0, with_swap - memory)
    if counted is not None:
        return counted
    swaps = _text("/proc/swaps")
    return 0 if swaps is not None and "\n" not in swaps else None  # nothing but the heading
