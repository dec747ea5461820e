"""What a sandbox takes of its tenant's quota. Pure."""

from __future__ import annotations

from dataclasses import fields, replace

from sandbox.docker.container.profiles import find_profile
from sandbox.docker.spec import SandboxSpec
from sandbox.frozen import dataclass

MILLI = 1000


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one sandbox takes, or several together. Processors are counted in thousandths, so that sums stay exact."""

    sandboxes: int = 0
    memory_bytes: int = 0
    milli_cpus: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def paused(self) -> Amounts:
        """Return what it takes while it is paused: everything but processors."""
        return replace(self, milli_cpus=0)

    def stopped(self) -> Amounts:
        """Return what it takes while nothing of it is in memory: its place, and the disk that it will have again."""
        return replace(self, milli_cpus=0, memory_bytes=0)


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The disk on which the disks of sandboxes are: what is free of it, all of it, and what those sandboxes have written.

    What they have written is not free any more, and was promised to them: it counts once.
    """

    free_bytes: int
    total_bytes: int
    written_bytes: int = 0


def amounts_of(spec: SandboxSpec) -> Amounts:
    """Return what a sandbox made from the spec takes. Its disk is what is promised to it: it takes only what is written."""
    limits = find_profile(spec.profile).with_least_limits(spec.limits)
    files = 0 if limits.disk_in_memory else limits.files_bytes
    tmp = 0 if limits.tmp_in_memory else limits.tmp_place_bytes
    return Amounts(1, limits.memory_bytes, round(limits.cpus * MILLI), files + tmp)
