"""The post-mortem of a failed test, as text and JSON: operations of its sandbox, what runs in it, which files changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass
from sandbox.network.connections import Connection
from sandbox.operations.waiting import ListedCommand

from .inspection import LOOK_SECONDS, MOST_FILES, Changes, Snapshot, changes, processes, snapshot
from .recorded import Entry, Recorded, cut
from .services import ServiceLog, service_logs

LINE_CHARS = 1000
LOG_BYTES = 2000
MOST_CONNECTIONS = 20
_NEVER = Snapshot({}, {}, "no list was made when the test began")


@dataclass(frozen=True, slots=True)
class Background:
    """A command that was started in the background and the end of its output; ``state`` in words."""

    id: str
    command: str
    state: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """Everything known. ``gone`` says why the sandbox does not answer, ``earlier`` is the number of operations before the test."""

    test: str
    phase: str
    fixture: str
    about: dict[str, str]
    gone: str | None
    out_of_memory: tuple[str, ...]
    earlier: int
    forgotten: int
    entries: tuple[Entry, ...]
    background: tuple[Background, ...]
    services: tuple[ServiceLog, ...]
    processes: tuple[ListedCommand, ...]
    processes_problem: str | None
    refused: tuple[Connection, ...]
    files: Changes
    sizes: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the post-mortem as JSON-ready data."""
        return {**asdict(self), "processes": [command.model_dump(mode="json") for command in self.processes]}

    def to_text(self) -> str:
        """Return the post-mortem as text for a report."""
        lines = [f"{name}: {value}" for name, value in self.about.items()]
        lines += [f"THE SANDBOX IS GONE: {self.gone}"] if self.gone else []
        lines += [f"OUT OF MEMORY: {what}" for what in self.out_of_memory]
        earlier = f", {self.earlier} earlier in this sandbox" if self.earlier else ""
        forgotten = f", the first {self.forgotten} of them forgotten" if self.forgotten else ""
        lines.append(f"operations of this test ({len(self.entries) + self.forgotten}{forgotten}{earlier}):")
        lines += [line for entry in self.entries for line in _entry_lines(entry)]
        if self.background:
            lines.append("started in the background:")
            for command in self.background:
                lines += [f"  {command.id} {command.state}: {command.command}", *_indented(command.output)]
        if self.services:
            lines.append("side services:")
            for service in self.services:
                lines += [f"  {service.name} ({service.image}) {service.state}", *_indented(service.output)]
        if self.refused:
            lines += self._refused_lines()
        if self.gone is None:
            lines += [*self._process_lines(), *self._file_lines()]
        return "\n".join(_printable(line[:LINE_CHARS]) for line in lines)

    def _refused_lines(self) -> list[str]:
        """List the connections of all tests that used this sandbox: a connection does not say whose it was."""
        shown = self.refused[-MOST_CONNECTIONS:]
        last = f", the last {len(shown)}" if len(shown) < len(self.refused) else ""
        lines = [f"connections of this sandbox that were refused or failed ({len(self.refused)}{last}):"]
        return [*lines, *(f"  {c.host}:{c.port} {c.outcome}: {c.why}" for c in shown)]

    def _process_lines(self) -> list[str]:
        if self.processes_problem is not None:
            return [f"processes: not known, {self.processes_problem}"]
        count = sum(command.process_count for command in self.processes)
        lines = [f"processes ({count}):"] if count else ["processes: none"]
        return [*lines, *(f"  {line}" for command in self.processes for line in command.to_text().splitlines())]

    def _file_lines(self) -> list[str]:
        if self.files.problem is not None:
            return [f"file changes: not known, {self.files.problem}"]
        kinds = [("created", self.files.created), ("modified", self.files.modified), ("deleted", self.files.deleted)]
        found = [(kind, path) for kind, paths in kinds for path in paths]
        lines = [f"file changes in the workspace ({len(found)}):"] if found else ["file changes in the workspace: none"]
        for kind, path in found[:MOST_FILES]:
            size = "" if kind == "deleted" else f" ({self.sizes.get(path, 0)} bytes)"
            lines.append(f"  {kind} {path}{size}")
        return [*lines, f"  [and {len(found) - MOST_FILES} more]"] if len(found) > MOST_FILES else lines


def collect(
    test: str,
    phase: str,
    fixture: str,
    env: Recorded,
    before: Snapshot | None,
    earlier: int,
    begun: Mapping[str, int] | None = None,
) -> PostMortem:
    """Return the post-mortem of ``env``, with the operations after its first ``earlier`` ones.

    ``before`` are the files at the beginning of the test, ``begun`` are the lengths of the logs of shared services then (see
    ``services.offsets``). A sandbox that does not answer is given up after 7 s.
    """
    entries = env.record.since(earlier)
    gone = _gone(env)
    listed, problem = ((), gone) if gone else processes(env)
    after = Snapshot({}, {}, gone) if gone else snapshot(env)
    return PostMortem(
        test=test,
        phase=phase,
        fixture=fixture,
        about=_about(env),
        gone=gone,
        out_of_memory=_out_of_memory(entries),
        earlier=earlier,
        forgotten=env.record.count - earlier - len(entries),
        entries=entries,
        background=() if gone else tuple(_background(env, e) for e in env.record.since(0) if e.background and e.id),
        services=service_logs(env, begun or {}),
        processes=listed,
        processes_problem=problem,
        refused=tuple(one for one in env.connections if one.outcome != "allowed"),
        files=changes(before or _NEVER, after),
        sizes=after.sizes,
    )


def save(found: PostMortem, folder: Path) -> Path:
    """Write the post-mortem into ``folder``, as a JSON file named after the test; return its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9.\-]+", "_", found.test)[-120:].strip("_.")
    # Two tests may have names that differ only in what was replaced.
    digest = hashlib.sha256(found.test.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    path = folder / f"{name}-{digest}-{found.fixture}-{found.phase}.json"
    path.write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    return path


def _gone(env: Recorded) -> str | None:
    if not env.started:
        return "it was closed, or did not start"
    with env.unrecorded():
        answer = env.execute("run", {"command": ":", "session": None, "cwd": "/", "timeout_seconds": LOOK_SECONDS})
    if answer.ok or answer.code not in (ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed):
        return None
    return answer.error


def _about(env: Recorded) -> dict[str, str]:
    return {name: text for name, text in env.describe().items() if name in ("sandbox", "network", "limits")}


def _out_of_memory(entries: Sequence[Entry]) -> tuple[str, ...]:
    killed = [f"[{e.number}] {e.subject} was killed for memory" for e in entries if e.oom_killed]
    noticed = [
        f"[{e.number}] {n}" for e in entries for n in e.notices if n.startswith("out_of_memory") and not e.oom_killed
    ]
    return (*killed, *noticed)


def _background(env: Recorded, entry: Entry) -> Background:
    command = entry.id or ""
    with env.unrecorded():
        state = answered(env.logs, command, max_bytes=1)
        if not state.ok:
            return Background(command, entry.subject, f"not known ({state.error})", "")
        end = answered(env.logs, command, offset=max(0, state.result.total_bytes - LOG_BYTES), max_bytes=LOG_BYTES)
    logs = state.result
    words = (
        "running"
        if logs.running
        else f"killed by {logs.signal}"
        if logs.signal
        else f"ended with exit code {logs.exit_code}"
    )
    left = f", {logs.left_running} processes left running" if logs.left_running and not logs.running else ""
    return Background(command, entry.subject, words + left, end.result.content if end.ok else "")


def _entry_lines(entry: Entry) -> list[str]:
    if entry.error:
        ended = entry.error
    elif entry.running:
        ended = f"in the background as {entry.id}"
    elif entry.signal:
        ended = f"killed by {entry.signal}"
    else:
        ended = "ok" if entry.exit_code is None else f"exit code {entry.exit_code}"
    ended += ", out of memory" if entry.oom_killed else ""
    first, *further = entry.subject.splitlines() or [""]
    head = f"  [{entry.number}] at {entry.at_seconds:.3f} s, {entry.duration_ms:.0f} ms: {entry.operation} {first}"
    lines = [head, *_indented("\n".join(further)), f"    -> {ended}"] if further else [f"{head} -> {ended}"]
    return [*lines, *(f"    ! {notice}" for notice in entry.notices), *_indented(cut(entry.output))]


def _printable(line: str) -> str:
    """Escape what a terminal would interpret or a report cannot contain: a sandbox may print anything."""
    shown = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
    return shown.encode("utf-8", "backslashreplace").decode()


def _indented(text: str) -> list[str]:
    return [f"    | {line}" for line in text.splitlines()]
