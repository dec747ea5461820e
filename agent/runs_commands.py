"""What the commands ``gamebox runs`` do once their options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandbox.cli import print_json, say_error
from sandbox.errors import ErrorCode, SandboxError

from .show import Screen, clean, main_argument, thought_of
from .store import EventLog, RunRecord, StepRecord, Verdict, record_of, verify
from .store.log import default_path, not_found
from .store.verify import CANNOT_SHOW, verify_all

_COLUMNS = ("RUN", "BEGAN", "STATUS", "STEPS", "COST", "TASK")
_TASK_CHARS, _TEXT_CHARS = 60, 2000


def list_runs(log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs ls``."""
    if not (log or default_path()).exists():
        found: list[tuple[RunRecord, str]] = []
    else:
        with EventLog(log) as events:
            found = [(each, status_of(events, each)) for each in (record_of(events, run) for run in events.runs())]
    if as_json:
        print_json([_summary(each, status) for each, status in found])
        return 0
    rows = [
        (
            each.run,
            each.began[:19].replace("T", " "),
            status,
            str(len(each.steps)),
            _cost(each),
            _line(each.task, _TASK_CHARS),
        )
        for each, status in found
    ]
    _table(rows)
    return 0


def show_run(run: str, log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs show``."""
    with _existing(log) as events:
        record = record_of(events, run)
        status = status_of(events, record)
    if as_json:
        print_json({**_summary(record, status), "steps": [_step(step) for step in record.steps]})
        return 0
    screen = Screen(sys.stdout)
    screen.line(f"{record.run}  {status}  {record.task}", "bold")
    for step in record.steps:
        _show_step(screen, step)
    screen.line(f"\n{status}{f': {record.reason}' if record.reason else ''}", "bold")
    screen.line(f"{len(record.steps)} steps, {record.seconds:.1f} s, {record.usage.calls} model calls, {_cost(record)}")
    for child in record.children:
        screen.line(f"part of it: {child}")
    return 0


def verify_runs(run: str | None, head: str | None, log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs verify``; 1 where something is wrong."""
    with _existing(log) as events:
        verdicts = verify_all(events) if run is None else [verify(events, _named(events, run), head)]
        under_way = {v.run for v in verdicts if events.is_written(v.run)}
    if as_json:
        print_json([{**asdict(v), "intact": v.intact, "running": v.run in under_way} for v in verdicts])
    else:
        screen = Screen(sys.stdout)
        for verdict in verdicts:
            _show_verdict(screen, verdict, verdict.run in under_way)
        sys.stderr.write(f"{CANNOT_SHOW}\n")
    return 0 if all(v.intact for v in verdicts) else 1


def resume_run(run: str, log: Path | None, changes: Mapping[str, Any], *, fresh: bool, say: str, as_json: bool) -> int:
    """The command ``gamebox runs resume``; the exit code is that of ``gamebox agent``."""
    from .commands import show_outcome
    from .options import AgentOptions
    from .recorded_job import resume_recorded

    screen = Screen()
    with _existing(log) as events:
        record = record_of(events, run)
        if record.parent is not None:
            raise SandboxError(
                ErrorCode.run_not_resumable,
                f"The run {record.run} is a part of {record.parent}, and goes on with that.",
                f"Resume the whole: gamebox runs resume {record.parent}.",
            )
        options = AgentOptions.of_data(record.options, record.run).changed(changes)
        outcome = resume_recorded(options, record.run, events, screen, fresh=fresh, say=say)
    return show_outcome(outcome, screen, as_json=as_json)


def say_to(run: str, text: str, log: Path | None) -> int:
    """The command ``gamebox runs say``."""
    from .saying import say_to_run, text_given

    with _existing(log) as events:
        sys.stderr.write(f"{say_to_run(run, text_given(text), events)}\n")
    return 0


def follow_run(run: str, log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs show --follow``."""
    from .following import follow

    with _existing(log) as events:
        follow(events, run, Screen(sys.stdout), as_json=as_json)
    return 0


def remove_runs(runs: Sequence[str], log: Path | None) -> int:
    """The command ``gamebox runs rm``; 2 where one could not be removed."""
    refused = False
    with _existing(log) as events:
        for run in runs:
            try:
                sys.stdout.write(f"{_removed(events, events.found(run))}\n")
            except SandboxError as error:
                say_error(error)
                refused = True
    return 2 if refused else 0


def _removed(events: EventLog, run: str) -> str:
    from .recorded_job import forget_files, remove_sandbox_of_run

    with events.begin(run):  # nobody is at it
        record = record_of(events, run)
        if (
            record.options
            and not record.options.get("local")
            and (record.status in (None, "paused", "environment_lost"))
        ):
            try:
                remove_sandbox_of_run(run)
            except SandboxError as error:
                if error.code is not ErrorCode.engine_unavailable:  # without an engine there is no sandbox either
                    raise
        events.remove(run)
        forget_files(events, run)
    return run


def status_of(events: EventLog, record: RunRecord) -> str:
    """How it ended; of one that has not: running, or cut off where no process is at it any more."""
    return record.status or ("running" if events.is_written(record.run) else "cut off")


def _existing(log: Path | None) -> EventLog:
    path = log or default_path()
    if not path.exists():
        raise SandboxError(
            ErrorCode.log_unusable,
            f"There is no event log {path}.",
            "Name the one that runs were recorded in with --log FILE.",
        )
    return EventLog(path)


def _named(events: EventLog, run: str) -> str:
    """The run of that id, also one whose first event is not there any more."""
    try:
        return events.found(run)
    except SandboxError:
        if run in events.every_run():
            return run
        raise not_found(run) from None


def _summary(record: RunRecord, status: str) -> dict[str, Any]:
    return {
        "run": record.run, "parent": record.parent, "children": record.children, "task": record.task, "agent": record.agent,
        "status": status, "reason": record.reason, "began": record.began, "last": record.last, "steps": len(record.steps),
        "resumed": record.resumed, "seconds": round(record.seconds, 3), "usage": asdict(record.usage), "result": record.result,
        "connections": len(record.connections), "events": record.events,
    }  # fmt: skip


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "number": step.number, "at": step.at, "thought": thought_of(step.reply), "tool": step.tool, "args": step.args,
        "envelope": step.envelope, "ended": step.ended, "usage": asdict(step.usage), "seconds": step.seconds,
    }  # fmt: skip


def _show_step(screen: Screen, step: StepRecord) -> None:
    screen.line(f"\n[{step.number}] {_cut(thought_of(step.reply))}".rstrip(), "bold")
    if step.tool is not None:
        args = main_argument(step.args) if isinstance(step.args, dict) else str(step.args)
        screen.line(f"  → {step.tool} {args}".rstrip(), "cyan")
    if step.answered is not None:
        screen.line(f"    approval: {step.answered.verdict} {step.answered.reason}".rstrip(), "yellow")
    elif step.requested is not None:
        screen.line("    waits for an approval", "yellow")
    envelope = step.envelope
    if envelope is None:
        screen.line("    not answered" if step.started is not None else "    not carried out yet", "yellow")
        return
    failed = envelope.get("tool_executed") is not True
    told = f"{envelope.get('error')} ({envelope.get('code')})" if failed else _result(envelope.get("result"))
    screen.line("\n".join(f"    {line}" for line in _cut(told).split("\n")), "red" if failed else "dim")


def _result(result: Any) -> str:
    if isinstance(result, dict) and isinstance(result.get("output"), str):
        return str(result["output"])
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _show_verdict(screen: Screen, verdict: Verdict, running: bool) -> None:
    state = "intact" if verdict.intact else "CHANGED"
    screen.line(
        f"{verdict.run}  {state}  {verdict.events} events  head {verdict.head}", "green" if verdict.intact else "red"
    )
    for flaw in verdict.flaws:
        screen.line(f"  event {flaw.id}: {flaw.what}", "red")
    if not verdict.ended:
        why = "it is going on" if running else "it was cut off, or its end was removed"
        screen.line(f"  it has no end: {why}", "yellow")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*_COLUMNS, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(clean(text).replace("[", "\\[") for text in row))
        Console().print(table)
        return
    every = [_COLUMNS, *(tuple(map(clean, row)) for row in rows)]
    widths = [max(len(row[n]) for row in every) for n in range(len(_COLUMNS))]
    for row in every:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _cost(record: RunRecord) -> str:
    return "unknown" if record.usage.unpriced_calls else f"${record.usage.cost_usd:.4f}"


def _line(text: str, most: int) -> str:
    one = " ".join(clean(text).split())
    return one if len(one) <= most else f"{one[: most - 1]}…"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}…"
