"""The result of processes: every command with its tree of processes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.messages.waiting import WaitingFor, state_of
from sandbox.text.wording import count_of, size

from .base import Result

State = Literal["running", "sleeping", "waiting for the disk", "stopped", "traced", "zombie", "idle", "other"]
# Ended commands that left nothing are named in a text, the latest so many.
MOST_ENDED_SHOWN = 8
LINE_CHARS = 160


class Port(BaseModel):
    """Something that a process can be reached at: ``address`` is an IP address, or the path of a unix socket (``port`` 0)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    protocol: Literal["tcp", "udp", "unix"]
    address: str = Field(default="", max_length=400)
    port: int = Field(default=0, ge=0, le=65535)

    def to_text(self) -> str:
        """As in "tcp 127.0.0.1:8000"."""
        if self.protocol == "unix":
            return f"unix {_line(self.address)}"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol} {host}:{self.port}"


class Process(BaseModel):
    """One process. ``parent`` is 0 for what stands directly below its command. ``command`` is its command line, cut.

    ``cpu_seconds`` is what it has used, ``cpu_percent`` its load lately (100 is one processor), ``memory_bytes`` is resident,
    shared pages included. ``listens`` is where it can be reached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    pid: int = Field(ge=1)
    parent: int = Field(default=0, ge=0)
    name: str = Field(default="", max_length=64)
    command: str = Field(default="", max_length=1000)
    state: State = "other"
    cpu_seconds: float = 0.0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    threads: int = 1
    age_seconds: float = 0.0
    listens: tuple[Port, ...] = ()

    def to_text(self) -> str:
        """One line about it."""
        facts = [self.state, f"cpu {self.cpu_percent:.0f} % ({self.cpu_seconds:.1f} s)", size(self.memory_bytes)]
        facts += [f"{self.threads} threads"] if self.threads > 1 else []
        facts += [f"listens on {port.to_text()}" for port in self.listens]
        return f"{self.pid} {_line(self.command or self.name)}  [{', '.join(facts)}]"


class ListedCommand(BaseModel):
    """A command and what is below it; parents stand before their children in ``processes``.

    ``process_count`` is how many there are, though not all may be shown. ``seconds`` is how long it runs, or ran.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str = Field(max_length=64)
    command: str = Field(default="", max_length=1000)
    session: str | None = Field(default=None, max_length=64)
    background: bool = False
    running: bool = False
    exit_code: int | None = None
    signal: str | None = Field(default=None, max_length=40)
    stop_reason: str | None = Field(default=None, max_length=40)
    seconds: float = 0.0
    output_bytes: int = 0
    waiting_for: WaitingFor | None = None
    process_count: int = 0
    processes: tuple[Process, ...] = ()

    def to_text(self) -> str:
        """Its state, its command line and its tree."""
        where = (
            "in the background" if self.background else f"in the session {_line(self.session)}" if self.session else ""
        )
        state = state_of(self.running, self.exit_code, self.signal, self.waiting_for, self.stop_reason)
        left = "" if self.running else f", {count_of(self.process_count, 'process')} left behind"
        parts = [f"{self.seconds:.1f} s", where, f"{self.output_bytes} bytes of output", state + left]
        lines = [f"{self.id} $ {_line(self.command)}", f"  [{', '.join(part for part in parts if part)}]"]
        depths: dict[int, int] = {}
        for process in self.processes:
            depth = depths[process.pid] = min(depths.get(process.parent, 0) + 1, 20)
            lines.append("  " * depth + process.to_text())
        if self.process_count > len(self.processes):
            more = f"; see them with processes(id={self.id!r})" if len(self.processes) < 100 else ""
            lines.append(f"  … and {self.process_count - len(self.processes)} more processes{more}")
        return "\n".join(lines)

    def in_short(self) -> str:
        """One line about a command that has ended and left nothing."""
        return f"{self.id} ({state_of(False, self.exit_code, self.signal, None, self.stop_reason)}): {_line(self.command)[:60]}"


class ProcessesResult(Result):
    """Every command: those that run, those that left processes behind, then those that ended, the latest first.

    ``more_commands`` ended ones are left out. The load is taken over ``sampled_seconds``. ``memory_bytes`` (what cannot be given
    back, files in memory included) and ``pids`` (threads count, and the guest's own) are those of the whole sandbox; they and
    their limits are None where nothing bounds it.
    """

    commands: tuple[ListedCommand, ...] = ()
    more_commands: int = 0
    sampled_seconds: float = 0.0
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    pids_limit: int | None = None

    def _words(self) -> str:
        """A tree for each command that has processes; the others in short."""
        live = [c for c in self.commands if c.running or c.process_count]
        ended = [c for c in self.commands if not (c.running or c.process_count)]
        lines = [command.to_text() for command in live] or ["No command is running."]
        if ended:
            lines.append("Ended, nothing of them is left:")
            lines += [f"  {command.in_short()}" for command in ended[:MOST_ENDED_SHOWN]]
            more = len(ended) - MOST_ENDED_SHOWN + self.more_commands
            lines += [f"  … and {more} more"] if more > 0 else []
        totals = []
        if self.memory_bytes is not None:
            totals.append(f"memory {_of(self.memory_bytes, self.memory_limit_bytes)}")
        if self.pids is not None:
            most = f" of {self.pids_limit}" if self.pids_limit is not None else ""
            totals.append(f"{self.pids}{most} processes and threads")
        lines += [f"[sandbox: {', '.join(totals)}]"] if totals else []
        return "\n".join(lines)


def _of(used: int, limit: int | None) -> str:
    return size(used) if limit is None else f"{size(used)} of {size(limit)}"


def _line(text: str | None) -> str:
    """A text that a command chose itself, in one line."""
    shown = "".join(char if char.isprintable() else " " for char in (text or ""))
    return shown if len(shown) <= LINE_CHARS else shown[: LINE_CHARS - 1] + "…"
