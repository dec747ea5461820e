"""Recorded runs from where they are: a run that has just ended, a file, or the event log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from agent.budget import Usage
from agent.events import ActionStarted, FilesChanged
from agent.run import AgentRun
from sandbox.envelope import jsonable, now
from sandbox.errors import ErrorCode, SandboxError

from .recorded import FORMAT, RecordedRun, RecordedStep

# A file of a run that is larger is none that a person or a page could show.
MOST_FILE_BYTES = 256 << 20
MOST_DEEP = 20


class LoggedStep(Protocol):
    """A step as the event log tells it."""

    number: int
    at: str
    usage: Usage
    seconds: float
    started: ActionStarted | None
    changed: FilesChanged | None

    @property
    def tool(self) -> str | None: ...
    @property
    def args(self) -> Any: ...
    @property
    def thought(self) -> str: ...
    @property
    def shown(self) -> str | None: ...
    @property
    def envelope(self) -> Mapping[str, Any] | None: ...


class LoggedRun(Protocol):
    """A run as the event log tells it; ``children`` are ids."""

    run: str
    parent: str | None
    began: str
    task: str
    agent: str
    options: dict[str, Any]
    status: str | None
    reason: str
    result: Any
    usage: Usage
    seconds: float
    children: list[str]

    @property
    def steps(self) -> Sequence[LoggedStep]: ...


def of_run(run: AgentRun, *, task: str, agent: str = "", model: str = "", ident: str = "") -> RecordedRun:
    """What ``Agent.execute`` answered. The usage is known for the whole alone."""
    steps = tuple(
        RecordedStep(
            number=s.number,
            at=str((s.envelope or {}).get("timestamp", "")),
            thought=s.thought,
            tool=s.tool,
            args=jsonable(s.args),
            envelope=None if s.envelope is None else jsonable(s.envelope),
            seconds=s.seconds,
        )
        for s in run.steps
    )
    began = steps[0].at if steps and steps[0].at else now()
    return RecordedRun(
        run=ident, task=task, agent=agent, model=model, began=began, status=run.status.value, reason=run.reason,
        result=jsonable(run.result), usage=run.usage, seconds=run.seconds, steps=steps,
    )  # fmt: skip


def of_record(record: LoggedRun, child: Callable[[str], LoggedRun], depth: int = 0) -> RecordedRun:
    """The run as the event log has it; ``child`` finds one of its parts."""
    steps = tuple(
        RecordedStep(
            number=s.number,
            at=s.at,
            thought=s.thought,
            tool=s.tool,
            args=jsonable(s.args),
            envelope=s.envelope,
            usage=s.usage,
            seconds=s.seconds,
            carried=None if s.started is None or s.started.args == s.args else jsonable(s.started.args),
            changes=_changes(s.changed),
            shown=s.shown,
        )
        for s in record.steps
    )
    inner = [child(ident) for ident in record.children] if depth < MOST_DEEP else []
    return RecordedRun(
        run=record.run, parent=record.parent, task=record.task, agent=record.agent, model=str(record.options.get("model") or ""),
        began=record.began, status=record.status, reason=record.reason, result=record.result, usage=record.usage,
        seconds=record.seconds, steps=steps, children=tuple(of_record(each, child, depth + 1) for each in inner),
    )  # fmt: skip


def _changes(event: FilesChanged | None) -> str:
    if event is None:
        return ""
    return "\n".join([event.patch.rstrip("\n"), *(f"[not in this diff: {each}]" for each in event.left_out)]).strip(
        "\n"
    )


def from_file(path: Path) -> RecordedRun:
    """The run that ``--format json`` or ``gamebox batch`` wrote. Raises SandboxError ``invalid_configuration``."""
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ValueError(f"it is larger than {MOST_FILE_BYTES >> 20} MiB")
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{path} holds no recorded run: {error}.",
            "Give the id of a run, or a file that gamebox runs export --format json wrote.",
        ) from error


def from_dict(data: Any, depth: int = 0) -> RecordedRun:
    """The run that ``to_dict`` gave. Raises ValueError for what is none."""
    if not isinstance(data, Mapping) or data.get("format", FORMAT) != FORMAT or depth > MOST_DEEP:
        raise ValueError(f"it is not of the format {FORMAT}")
    try:
        steps = tuple(_step(each) for each in data["steps"])
        children = tuple(from_dict(each, depth + 1) for each in data["children"])
        texts = {name: _text(data[name]) for name in ("run", "task", "agent", "model", "began", "reason")}
        status, parent = data["status"], data["parent"]
        return RecordedRun(
            **texts, status=None if status is None else _text(status), parent=None if parent is None else _text(parent),
            result=data["result"], usage=_usage(data["usage"]), seconds=float(data["seconds"]), steps=steps, children=children,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or no good: {error}") from error


def _step(data: Any) -> RecordedStep:
    envelope, usage = data["envelope"], data["usage"]
    if envelope is not None and not isinstance(envelope, Mapping):
        raise ValueError("an envelope is no object")
    return RecordedStep(
        number=int(data["number"]), at=_text(data["at"]), thought=_text(data["thought"]),
        tool=None if data["tool"] is None else _text(data["tool"]), args=data["args"], envelope=envelope,
        usage=None if usage is None else _usage(usage), seconds=float(data["seconds"]), carried=data.get("carried"),
        changes=_text(data.get("changes", "")), shown=None if data.get("shown") is None else _text(data["shown"]),
    )  # fmt: skip


def _usage(data: Any) -> Usage:
    if not isinstance(data, Mapping) or not all(isinstance(data.get(f.name, 0), int | float) for f in fields(Usage)):
        raise ValueError("a usage is no object of numbers")
    return Usage(**{f.name: data.get(f.name, 0) for f in fields(Usage)})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")  # noqa: TRY004 - of a file, not of a caller
    return value
