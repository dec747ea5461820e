"""The operations that wait for something, and that look at everything that runs."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.limits import SILENCE_SECONDS
from sandbox.messages.waiting import state_of
from sandbox.messages.waiting_for import WaitingFor
from sandbox.text.plain_text import plain
from sandbox.text.wording import count_of, size

from .base import Excerpt, Id, Request
from .table import operation

CONDITIONS = ("port", "log", "file", "exit")


class WaitForResult(Excerpt):
    """The awaited ``condition``, and how the wait ended.

    Of a log: ``line`` is the line that matched, without escape codes, ``groups`` the pattern's groups (each cut to 200 characters,
    [] for plain text), and bytes ``offset`` to ``next_offset`` of the output are that line. Of a port: ``address`` is where it is
    open. Of a file: ``path``. With an id, the state of that command; ``last_output`` is the end of its output (at most 4 KiB) in
    a failure and at its exit.
    """

    condition: Literal["port", "log", "file", "exit"]
    waited_seconds: float = 0.0
    address: str = Field(default="", max_length=64)
    path: str = ""
    line: str = ""
    groups: tuple[str | None, ...] = ()
    offset: int = 0
    next_offset: int = 0
    id: str = ""
    running: bool = False
    exit_code: int | None = None
    signal: str | None = None
    stop_reason: str | None = Field(default=None, max_length=40)
    left_running: int = 0
    last_output: str = ""

    def _words(self) -> str:
        """Return what was found and the end of the output, then one line with the state."""
        seen = {"port": f"open at {self.address}", "file": f"{self.path} is there", "log": self.line, "exit": ""}
        is_so = {"port": self.address, "file": self.path, "log": self.next_offset, "exit": False}
        notes = []
        if self.id:
            state = state_of(self.running, self.exit_code, self.signal, None, self.stop_reason)
            notes.append(f"{self.id}: {state}")
        if self.left_running:
            notes.append(f"{count_of(self.left_running, 'process')} left running")
        shown = [seen[self.condition] if is_so[self.condition] else "", plain(self.last_output).rstrip("\n")]
        return "\n".join([*(part for part in shown if part), *([f"[{'; '.join(notes)}]"] if notes else [])])


@operation(
    "wait_for",
    WaitForResult,
    repeatable=True,
    ordered=True,
    waits=True,
    positional=(),
    method_notes="The failures ``not_ready`` and ``command_ended`` have the last output in their result.",
)
class WaitFor(Request):
    """Wait until a condition holds, and answer as soon as it does: give exactly one of port, log, file, exit.

    port: a server listens on that TCP port of the sandbox. log: a line of the output of the command id matches, in what it has
    printed already or prints later. file: it exists (with contains: and that text is in it). exit: the command id has ended.
    With an id, the wait ends at once if that command ends first. After timeout_seconds, the failure not_ready shows the last
    output.
    """

    id: Id | None = Field(None, description="Id of the command to watch; required with log and exit.")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port to wait for.")
    host: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="With port: IP address at which it must be open, if not the sandbox's own.",
    )
    log: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Regular expression (Python's) for a line of output to wait for.",
    )
    literal: bool = Field(False, description="With log: look for it as plain text.")
    offset: int = Field(0, description="With log: byte of the output to start at; from the end if negative.")
    file: str | None = Field(None, min_length=1, max_length=4096, description="Path of a file to wait for.")
    contains: str | None = Field(
        None, min_length=1, max_length=4096, description="With file: text that the file must contain."
    )
    exit: bool = Field(False, description="Wait for the end of the command.")
    timeout_seconds: float = Field(30, gt=0, le=86400, description="Maximum number of seconds to wait.")

    def problem(self) -> str | None:
        given = [name for name in CONDITIONS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            return f"give exactly one of port, log, file, exit, not {' and '.join(given) or 'none'}"
        if given[0] in ("log", "exit") and self.id is None:
            return f"{given[0]} needs the id of a command"
        for name, needed in (("host", "port"), ("literal", "log"), ("offset", "log"), ("contains", "file")):
            if getattr(self, name) and needed not in given:
                return f"{name} is for {needed}"
        if self.log is not None and ("\n" in self.log or "\0" in self.log):
            return "log is matched with single lines: it can have no line end and no NUL character"
        known = self.host in (None, "localhost") or self.address() is not None
        return None if known else f"host {self.host!r} is not an IP address"

    def guest_arguments(self) -> dict[str, Any]:
        return {**super().guest_arguments(), "host": self.address()}

    def silence_seconds(self) -> float:
        return SILENCE_SECONDS + self.timeout_seconds

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {**fields, "last_output": blob.decode("utf-8", "replace")}

    def address(self) -> str | None:
        """Return ``host`` as an IP address, or None if it is this machine itself or is not an address."""
        try:
            return None if self.host in (None, "localhost") else str(ip_address(str(self.host)))
        except ValueError:
            return None


State = Literal["running", "sleeping", "waiting for the disk", "stopped", "traced", "zombie", "idle", "other"]
# How many of the ended commands that left nothing a text names: the latest.
MOST_ENDED_SHOWN = 8
LINE_CHARS = 160


class Port(BaseModel):
    """Where a process listens: ``address`` is an IP address, or the path of a unix socket (with ``port`` 0)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    protocol: Literal["tcp", "udp", "unix"]
    address: str = Field(default="", max_length=400)
    port: int = Field(default=0, ge=0, le=65535)

    def to_text(self) -> str:
        """Return a text such as "tcp 127.0.0.1:8000"."""
        if self.protocol == "unix":
            return f"unix {_line(self.address)}"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol} {host}:{self.port}"


class Process(BaseModel):
    """One process. ``parent`` is 0 if the command itself started it. ``command`` is its command line, truncated.

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
        """Return one line about it."""
        facts = [self.state, f"cpu {self.cpu_percent:.0f} % ({self.cpu_seconds:.1f} s)", size(self.memory_bytes)]
        facts += [f"{self.threads} threads"] if self.threads > 1 else []
        facts += [f"listens on {port.to_text()}" for port in self.listens]
        return f"{self.pid} {_line(self.command or self.name)}  [{', '.join(facts)}]"


class ListedCommand(BaseModel):
    """A command and its processes; parents stand before their children in ``processes``.

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
        """Return its command line, its state and its tree of processes."""
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
        """Return one line about a command that has ended and left nothing."""
        return f"{self.id} ({state_of(False, self.exit_code, self.signal, None, self.stop_reason)}): {_line(self.command)[:60]}"


class ProcessesResult(Excerpt):
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
        """Return a tree for each command that has processes, then the others in short."""
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


@operation("processes", ProcessesResult, repeatable=True, positional=("id",))
class Processes(Request):
    """Show the commands of the sandbox and the processes of each as a tree: what runs, what was left behind, what it uses.

    Each process is listed with its CPU time and load, memory, and the ports it listens on; then follows what the whole sandbox
    uses. Commands that have ended and left nothing running get one line each.
    """

    id: Id | None = Field(None, description="Show only this command.")


def _of(used: int, limit: int | None) -> str:
    return size(used) if limit is None else f"{size(used)} of {size(limit)}"


def _line(text: str | None) -> str:
    """Return a text that a command chose itself as one line of at most 160 characters."""
    shown = "".join(char if char.isprintable() else " " for char in (text or ""))
    return shown if len(shown) <= LINE_CHARS else shown[: LINE_CHARS - 1] + "…"
