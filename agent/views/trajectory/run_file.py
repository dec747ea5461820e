"""A run in a file of its own: written by ``gamebox runs export --format json`` and ``gamebox batch``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from agent.core.budget import Usage
from agent.core.run import AgentRun
from agent.record.store.run_record import MAX_DEPTH, CallRecord, RunRecord, StepRecord, call_of
from sandbox.envelope import jsonable, now
from sandbox.errors import ErrorCode, SandboxError

FORMAT = "gamebox-run-1"
# A larger file holds no run that a person or a page could show.
MAX_FILE_BYTES = 256 << 20


def of_run(run: AgentRun, *, task: str, agent: str = "", model: str = "", ident: str = "") -> RunRecord:
    """Return the record of what ``Agent.execute`` returned. It knows the usage only for the whole run."""
    steps = [
        StepRecord.of(
            step.number,
            at=str((step.envelope or {}).get("timestamp", "")),
            thought=step.thought,
            tool=step.tool,
            args=jsonable(step.args),
            envelope=None if step.envelope is None else jsonable(step.envelope),
            seconds=step.seconds,
        )
        for step in run.steps
    ]
    return RunRecord(
        run=ident,
        task=task,
        agent=agent,
        options={"model": model},
        began=steps[0].at if steps and steps[0].at else now(),
        status=run.status.value,
        reason=run.reason,
        result=jsonable(run.result),
        usage=run.usage,
        seconds=run.seconds,
        steps=steps,
    )


def to_dict(run: RunRecord) -> dict[str, Any]:
    """Return the run as JSON-ready data, with its loaded subruns; ``from_dict`` reads it."""
    data = {
        "format": FORMAT,
        "run": run.run,
        "task": run.task,
        "agent": run.agent,
        "model": run.model,
        "parent": run.parent,
        "began": run.began,
        "status": run.status,
        "reason": run.reason,
        "result": run.result,
        "usage": asdict(run.usage),
        "seconds": run.seconds,
        "steps": [_step_data(step) for step in run.steps],
    }
    return {**jsonable(data), "children": [to_dict(each) for each in run.subruns]}


def _step_data(step: StepRecord) -> dict[str, Any]:
    data = {
        "number": step.number,
        "at": step.at,
        "thought": step.thought,
        **_call_data(step),
        "usage": asdict(step.usage) if step.usage_known else None,
        "seconds": step.seconds,
    }
    return {**data, "more_calls": [_call_data(call) for call in step.others]} if step.others else data


def _call_data(call: CallRecord) -> dict[str, Any]:
    return {
        "tool": call.tool,
        "args": call.args,
        "envelope": call.envelope,
        "carried": call.approved_args,
        "changes": call.changes,
        "shown": call.shown,
    }


def from_file(path: Path) -> RunRecord:
    """Read the run that ``--format json`` or ``gamebox batch`` wrote. Raises SandboxError ``invalid_configuration``."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{path} is not the file of a run: {error}.",
            "Give the id of a run, or a file that gamebox runs export --format json wrote.",
        ) from error


def from_dict(data: Any, depth: int = 0) -> RunRecord:
    """Return the run that ``to_dict`` made data of. Raises ValueError for any other data."""
    if not isinstance(data, Mapping) or data.get("format", FORMAT) != FORMAT or depth > MAX_DEPTH:
        raise ValueError(f"its format is not {FORMAT}")
    try:
        texts: dict[str, Any] = {name: _text(data[name]) for name in ("run", "task", "agent", "began", "reason")}
        return RunRecord(
            **texts,
            options={"model": _text(data["model"])},
            status=_optional_text(data["status"]),
            parent=_optional_text(data["parent"]),
            result=data["result"],
            usage=_usage(data["usage"]),
            seconds=float(data["seconds"]),
            steps=[_step(each) for each in data["steps"]],
            subruns=[from_dict(each, depth + 1) for each in data["children"]],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or invalid: {error}") from error


def _step(data: Any) -> StepRecord:
    number, usage = int(data["number"]), data["usage"]
    return StepRecord.of(
        number,
        at=_text(data["at"]),
        thought=_text(data["thought"]),
        usage=None if usage is None else _usage(usage),
        seconds=float(data["seconds"]),
        others=[call_of(number, index, "", **_call(each)) for index, each in enumerate(data.get("more_calls", ()), 1)],
        **_call(data),
    )


def _call(data: Any) -> dict[str, Any]:
    envelope = data["envelope"]
    if envelope is not None and not isinstance(envelope, Mapping):
        raise ValueError("an envelope is not an object")
    return {
        "tool": _optional_text(data["tool"]),
        "args": data["args"],
        "envelope": envelope,
        "approved_args": data.get("carried"),
        "changes": _text(data.get("changes", "")),
        "shown": _optional_text(data.get("shown")),
    }


def _usage(data: Any) -> Usage:
    if not isinstance(data, Mapping) or not all(isinstance(data.get(f.name, 0), int | float) for f in fields(Usage)):
        raise ValueError("a usage is not an object of numbers")
    return Usage(**{f.name: data.get(f.name, 0) for f in fields(Usage)})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not text")  # noqa: TRY004 - the fault of a file, not of a caller
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)
