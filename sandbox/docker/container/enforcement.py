"""Compare the limits that the guest reads back from its kernel with those that were asked for; word the engine's refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.text.wording import value_text

from .disks.disk import Disk

PAGE = 4096
_HINT = "Use an engine whose cgroup driver enforces limits; a rootless engine needs cgroup v2 with delegation."
_RLIMITS = {"7": "open_files", "1": "file_bytes", "RLIMIT_NOFILE": "open_files", "RLIMIT_FSIZE": "file_bytes"}
_REFUSALS = (
    (re.compile(r"(?:rlimit type |(?=RLIMIT_))(\w+)"), ""),
    (re.compile(r"[Rr]ange of CPUs"), "cpus"),
    (re.compile(r"[Mm]inimum memory limit"), "memory_bytes"),
    (re.compile(r"write [^:]*pids\.max"), "pids"),
)


def check(limits: Limits, disk: Disk, places: Mapping[str, int], facts: Mapping[str, object]) -> None:
    """Check that every limit and the filter of system calls are enforced. Raises SandboxError ``limit_not_enforced`` for the first
    that is not.

    ``places`` maps further places to their sizes in bytes. ``facts`` is the guest's HELLO.
    """
    if facts.get("filtered", True) is not True:  # an older guest, as a service may still have, does not say
        raise SandboxError(
            ErrorCode.limit_not_enforced,
            f"The guest has no filter of system calls for the machine of this engine ({value_text(facts.get('machine'))}).",
            "Use an engine on x86_64 or aarch64.",
        )
    asked: dict[str, float] = {
        "memory_bytes": limits.memory_bytes,
        "swap_bytes": 0,
        "pids": limits.pids,
        "cpus": limits.cpus,
        "open_files": limits.open_files,
        "file_bytes": limits.file_bytes,
    }
    for name, most in asked.items():
        _compare(name, most, facts.get(name), 0.005 * most if name == "cpus" else 0)
    sizes = facts.get("places")
    found = sizes if isinstance(sizes, Mapping) else {}
    bounded = dict(places)
    bounded.update((path, size) for path, size in disk.places if disk.kind != "volume" or path in disk.in_memory)
    for path, size in bounded.items():
        _compare(f"the size of {path}", size, found.get(path), PAGE)  # tmpfs counts in pages
    if disk.kind == "ext4" and facts.get("boot_id") != boot_id():
        raise SandboxError(
            ErrorCode.limit_not_enforced,
            "The sandbox's disk was made on this host, and the sandbox runs on another one.",
            'Speak to the engine of this host, or take disk="auto" and fewer disk_bytes.',
        )


def boot_id() -> str:
    """Return the id of this boot of the kernel, or ""."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def refusal(error: SandboxError, limits: Limits) -> SandboxError:
    """Return the engine's refusal of a container as an error that names the limit it is about, or ``error`` itself."""
    for pattern, name in _REFUSALS:
        if found := pattern.search(error.message):
            limit = name or _RLIMITS.get(found.group(1), "")
            if limit:
                return SandboxError(
                    ErrorCode.invalid_limits,
                    f"The engine's host does not allow {limit}={getattr(limits, limit)}: {error.message}",
                    f"Give {'more' if limit == 'memory_bytes' else 'a smaller'} {limit}.",
                )
    return error


def _compare(name: str, asked: float, found: object, tolerance: float) -> None:
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if number and 0 <= found <= asked + tolerance:  # type: ignore[operator]
        return
    what = f"it set {found:g}" if isinstance(found, float) else f"it set {found}"
    raise SandboxError(
        ErrorCode.limit_not_enforced, f"The engine does not enforce {name}={asked:.15g} ({what}).", _HINT
    )
