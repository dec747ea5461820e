"""Limits of a sandbox, which are enforced, with their defaults. Bytes are ints, seconds are floats."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Literal

from sandbox.frozen import dataclass
from sandbox.text.wording import value_text

from .errors import ErrorCode, SandboxError
from .readers import Hint, limit

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Folders in memory are charged to the sandbox's memory; beyond this share, full ones would leave no room for processes
# (seen: every new process of a container whose tmpfs outgrew its memory limit was killed).
WRITABLE_SHARE_OF_MEMORY = 0.75
DISK_BYTES = 16 * GIB
"""Workspace and home together if no ``disk_bytes`` is given: sparse files, which take only what is written."""


# More than any system counts in bytes, seconds or anything else.
_MOST = 1 << 63
# What a timer of a command can be set for: three years.
MOST_SECONDS = 1e8
# How long the guest may be silent in an operation without a deadline of its own. Files move at hundreds of MiB a second here.
SILENCE_SECONDS = 30.0
# An answer has room for no more output (64 MiB, of which 4 for everything else).
MOST_KEPT_BYTES = 60 * MIB

_OPTIONAL = frozenset(
    {
        "disk_bytes",
        "tmp_bytes",
        "shm_bytes",
        "cpu_seconds_per_command",
        "lifetime_seconds",
        "idle_seconds",
        "network_bytes",
        "network_silent_seconds",
    }
)


# Marks the limits that only a container has; the guest and the host keep the others, without a container as well.
_OF_CONTAINERS = {"of_containers": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may use. Every number must be positive.

    ``disk_bytes`` is the size of workspace and home together, half of it for each; None means 16 GiB, or less if the engine's
    disk has less room. It takes only what is written. ``disk="hard"`` refuses a sandbox whose disk the kernel cannot bound,
    ``"auto"`` accepts one whose use is measured instead, and ``"memory"`` keeps the files in memory: seven sixteenths of
    ``memory_bytes`` unless ``disk_bytes`` is given.

    ``tmp_bytes`` is the size of a /tmp in memory. None means that /tmp is on the disk, as large as the home; with
    ``disk="memory"`` it means an eighth of memory, at most 256 MiB. /var/tmp has a sixteenth of memory, at most 256 MiB;
    ``shm_bytes=None`` means a sixteenth, at most 64 MiB.

    ``cpu_seconds_per_command`` bounds the processor time of a command and everything it starts. The sandbox ends by itself
    ``lifetime_seconds`` after its start, or when nothing was done in it for ``idle_seconds``; None means no such limit.
    ``checkpoint_bytes`` bounds what the host keeps of the sandbox's files: those at the start, and checkpoints.

    ``network_bytes`` bounds the bytes of all connections under rules, both ways together, ``network_connections`` the number
    of connections at once, and ``network_questions`` how often ``Network.allow(ask=...)`` is called. A connection on which
    nothing came or went for ``network_silent_seconds`` is cut.

    A sandbox that hears nothing from its orchestrator for ``lease_seconds`` ends by itself: the orchestrator was stopped, or
    the engine ended without ending the sandbox.

    Raises SandboxError ``invalid_limits``, which names the field, its value and what is allowed.
    """

    memory_bytes: int = field(default=2 * GIB, metadata=_OF_CONTAINERS)
    cpus: float = field(default=2.0, metadata=_OF_CONTAINERS)
    pids: int = field(default=512, metadata=_OF_CONTAINERS)
    disk_bytes: int | None = field(default=None, metadata=_OF_CONTAINERS)
    disk: Literal["auto", "hard", "memory"] = field(default="auto", metadata=_OF_CONTAINERS)
    tmp_bytes: int | None = field(default=None, metadata=_OF_CONTAINERS)
    shm_bytes: int | None = field(default=None, metadata=_OF_CONTAINERS)
    open_files: int = field(default=4096, metadata=_OF_CONTAINERS)
    file_bytes: int = field(default=1 * GIB, metadata=_OF_CONTAINERS)
    spill_bytes: int = 64 * MIB
    read_bytes: int = 256 * KIB
    write_bytes: int = 8 * MIB
    transfer_bytes: int = 1 * GIB
    checkpoint_bytes: int = 4 * GIB
    timeout_seconds: float = 120.0
    max_timeout_seconds: float = 86400.0
    keep_output_bytes: int = 64 * KIB
    cpu_seconds_per_command: float | None = None
    background_commands: int = 32
    sessions: int = 16
    concurrent_actions: int = 64
    lifetime_seconds: float | None = None
    idle_seconds: float | None = 3600.0
    lease_seconds: float = 120.0
    network_bytes: int | None = field(default=None, metadata=_OF_CONTAINERS)
    network_connections: int = field(default=256, metadata=_OF_CONTAINERS)
    network_questions: int = field(default=64, metadata=_OF_CONTAINERS)
    network_silent_seconds: float | None = field(default=3600.0, metadata=_OF_CONTAINERS)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "disk" or (value is None and f.name in _OPTIONAL):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            fraction = f.name == "cpus" or "_seconds" in f.name
            if not number or not (fraction or isinstance(value, int)) or not 0 < value < float("inf"):
                _refuse(f.name, value, "it must be a positive " + ("number" if fraction else "whole number"))
            if value >= _MOST:
                _refuse(f.name, value, "it must be less than 2**63")
            if fraction:  # JSON has one kind of number; 60 and 60.0 would be two requests to a guest that compares them
                object.__setattr__(self, f.name, float(value))
        self._check_floors()
        self._check_places()

    def _check_floors(self) -> None:
        if self.memory_bytes < 32 * MIB:
            _refuse("memory_bytes", self.memory_bytes, "the guest needs at least 33554432 (32 MiB)")
        for name in ("timeout_seconds", "cpu_seconds_per_command"):
            if (value := getattr(self, name)) is not None and value > MOST_SECONDS:
                _refuse(name, value, f"at most {MOST_SECONDS:.0f} (three years)")
        if self.keep_output_bytes > MOST_KEPT_BYTES:
            _refuse("keep_output_bytes", self.keep_output_bytes, f"an answer has room for {MOST_KEPT_BYTES} (60 MiB)")
        if self.cpus < 0.01:
            _refuse("cpus", self.cpus, "an engine gives at least 0.01")
        if self.pids < 16:
            _refuse("pids", self.pids, "the guest needs at least 16")
        if self.network_connections > 256:
            _refuse("network_connections", self.network_connections, "at most 256")
        if self.lease_seconds < 1:
            _refuse("lease_seconds", self.lease_seconds, "a word takes some time to come through; at least 1")
        if self.open_files < 256:  # a shell's state has descriptor 199
            _refuse("open_files", self.open_files, "the guest needs at least 256")

    def _check_places(self) -> None:
        if self.disk not in ("auto", "hard", "memory"):
            _refuse("disk", self.disk, 'it must be "auto", "hard" or "memory"')
        in_memory = self.bytes_in_memory
        if in_memory > self.memory_bytes * WRITABLE_SHARE_OF_MEMORY:
            places = ["tmp_bytes", "shm_bytes", *(["disk_bytes"] if self.disk_in_memory else [])]
            name = max(places, key=lambda each: getattr(self, each) or 0)
            _refuse(
                name,
                getattr(self, name),
                f"the writable places that are kept in memory ({in_memory} bytes together) may take at most "
                f"three quarters of memory_bytes ({self.memory_bytes})",
            )

    @property
    def disk_in_memory(self) -> bool:
        """Whether workspace, home and /tmp are to be in memory."""
        return self.disk == "memory"

    @property
    def files_bytes(self) -> int:
        """Size of workspace and home together, in bytes."""
        if self.disk_bytes is not None:
            return self.disk_bytes
        return self.memory_bytes * 7 // 16 if self.disk_in_memory else DISK_BYTES

    @property
    def home_bytes(self) -> int:
        """Size of the home directory in bytes."""
        return self.files_bytes // 2

    @property
    def workspace_bytes(self) -> int:
        """Size of the workspace in bytes."""
        return self.files_bytes - self.home_bytes

    @property
    def tmp_in_memory(self) -> bool:
        """Whether /tmp is in memory."""
        return self.disk_in_memory or self.tmp_bytes is not None

    @property
    def tmp_place_bytes(self) -> int:
        """Size of /tmp in bytes."""
        return self.tmp_bytes or (min(256 * MIB, self.memory_bytes // 8) if self.disk_in_memory else self.home_bytes)

    @property
    def var_tmp_place_bytes(self) -> int:
        """Size of /var/tmp in bytes. It is always in memory."""
        return min(256 * MIB, self.memory_bytes // 16)

    @property
    def shm_place_bytes(self) -> int:
        """Size of /dev/shm in bytes."""
        return self.shm_bytes or min(64 * MIB, self.memory_bytes // 16)

    @property
    def most_kept_bytes(self) -> int:
        """The largest ``keep_output_bytes`` that a command may be run with."""
        return min(self.spill_bytes, MOST_KEPT_BYTES)

    @property
    def spill_place_bytes(self) -> int:
        """Size in bytes of the folder for spilled output: room for one full spill and a little more."""
        return min(self.spill_bytes + 2 * MIB, self.memory_bytes // 16)

    @property
    def bytes_in_memory(self) -> int:
        """Size in bytes of all writable folders in memory together."""
        files = self.files_bytes if self.disk_in_memory else 0
        tmp = self.tmp_place_bytes if self.tmp_in_memory else 0
        return files + tmp + self.var_tmp_place_bytes + self.shm_place_bytes + self.spill_place_bytes


def _refuse(name: str, value: object, why: str) -> None:
    raise SandboxError(
        ErrorCode.invalid_limits, f"Limits({name}={value_text(value)}) is not allowed: {why}.", _another(name)
    )


def _another(name: str) -> Hint:
    return Hint(f"Give another {name}.", f"Give another {limit(name).cli}.")
