"""The operation on the sandbox as a whole."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sandbox.text.wording import duration, one_line, size

from .base import Host, Request
from .result import Result
from .table import operation

LARGEST = (1 << 63) - 1
Count = Annotated[int, Field(ge=0, le=LARGEST)]
CommandId = Annotated[str, Field(max_length=64)]


class PlaceUsage(BaseModel):
    """A file system that commands may write to; sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str = Field(max_length=4096)
    free_bytes: Count
    size_bytes: Count


class UsageResult(Result):
    """What the kernel counts for the sandbox as a whole; None if it does not tell, or if there is no such limit.

    ``memory_used_bytes`` is what could not be given back: memory of processes, and files that are kept in memory. ``processes``
    counts threads as well, the guest's own dozen included. ``running`` are the ids of the commands that run.
    ``lifetime_left_seconds`` and ``idle_left_seconds`` are when the sandbox ends by itself. The orchestrator counts
    the network under rules: bytes out of the sandbox and into it, and connections that ended or were refused.
    """

    uptime_seconds: float = 0.0
    cpu_seconds: float | None = None
    memory_used_bytes: Count | None = None
    memory_peak_bytes: Count | None = None
    memory_limit_bytes: Count | None = None
    processes: Count | None = None
    process_limit: Count | None = None
    places: tuple[PlaceUsage, ...] = Field((), max_length=16)
    running: tuple[CommandId, ...] = Field((), max_length=64)
    lifetime_left_seconds: float | None = None
    idle_left_seconds: float | None = None
    network_sent_bytes: Count = 0
    network_received_bytes: Count = 0
    network_limit_bytes: Count | None = None
    connections: Count = 0

    def _words(self) -> str:
        """Return one line for each thing that can run out, always in the same order."""
        lines = []
        if self.memory_used_bytes is not None and self.memory_limit_bytes is not None:
            free = max(0, self.memory_limit_bytes - self.memory_used_bytes)
            lines.append(f"memory: {size(free)} of {size(self.memory_limit_bytes)} left")
        lines += [f"{one_line(p.path)}: {size(p.free_bytes)} of {size(p.size_bytes)} left" for p in self.places]
        if self.processes is not None and self.process_limit is not None:
            lines.append(f"processes: {max(0, self.process_limit - self.processes)} of {self.process_limit} left")
        if self.network_limit_bytes is not None:
            free = max(0, self.network_limit_bytes - self.network_sent_bytes - self.network_received_bytes)
            lines.append(f"network: {size(free)} of {size(self.network_limit_bytes)} left")
        if self.lifetime_left_seconds is not None:
            lines.append(f"time: {duration(self.lifetime_left_seconds)} until this sandbox ends")
        lines.append(f"running: {', '.join(map(one_line, self.running)) or 'no command'}")
        return "\n".join(lines)


@operation(
    "usage", UsageResult, repeatable=True, method_notes="Asking does not count as work (see ``Limits.idle_seconds``)."
)
class Usage(Request):
    """Show what is left of the sandbox: memory, disk space, processes, time; and which commands run."""

    def completed(self, result: Any, host: Host) -> Any:
        """See the base class; the guest does not see the network, which the host carries."""
        return result.model_copy(update=dict(host.network_usage()))
