"""Which step of a run began which of its subruns: delegated runs, and those that check the result."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime

from agent.record.store.run_record import CallRecord, RunRecord


def subruns_by_step(run: RunRecord) -> dict[int | None, list[RunRecord]]:
    """Return the loaded subruns by the number of the step that began them, in their order; under None if that is not known.

    An answer that has the id of a subrun decides; else the times; else the order of the delegations.
    """
    found: dict[int | None, list[RunRecord]] = {}
    named = {_run_id(call): step.number for step in run.steps for call in step.calls}
    times = sorted((at, step.number) for step in run.steps if (at := time_of(step.at)) is not None)
    delegations = [step.number for step in run.steps if any(is_delegation(call) for call in step.calls)]
    for subrun in run.subruns:
        number = named.get(subrun.run) if subrun.run else None
        began = time_of(subrun.began)
        if number is None and began is not None:
            before = bisect_right(times, (began, float("inf")))
            number = times[before - 1][1] if before else None
        if number is None:
            number = next((each for each in delegations if each not in found), None)
        found.setdefault(number, []).append(subrun)
    return found


def is_delegation(call: CallRecord) -> bool:
    """Return whether the call began another run, as far as its answer says."""
    return call.tool == "delegate" and call.envelope is not None and call.envelope.get("code") != "invalid_arguments"


def time_of(text: str) -> float | None:
    """Return the seconds since 1970 of a time in ISO 8601, in UTC if it has no zone; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _run_id(call: CallRecord) -> str | None:
    result: Mapping[str, object] = call.result
    run = result.get("run_id")
    return run if isinstance(run, str) else None
