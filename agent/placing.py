"""Which step of a run began which of its parts: delegated runs, and those that a check of the end has made."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar


class Step(Protocol):
    """What is asked of a step."""

    @property
    def number(self) -> int: ...
    @property
    def at(self) -> str: ...
    @property
    def tool(self) -> str | None: ...
    @property
    def envelope(self) -> Mapping[str, Any] | None: ...


class Part(Protocol):
    """What is asked of a part; ``began`` is ISO 8601, or no time at all."""

    @property
    def run(self) -> str: ...
    @property
    def began(self) -> str: ...


AnyPart = TypeVar("AnyPart", bound=Part)


def placed(steps: Sequence[Step], parts: Sequence[AnyPart]) -> dict[int | None, list[AnyPart]]:
    """The parts by the number of the step that began them, in their order; under None those of which that is not known.

    A step is known by its answer, which names the run; else by the times; else by the order of the delegations.
    """
    found: dict[int | None, list[AnyPart]] = {}
    named = {_named(step): step.number for step in steps}
    times = sorted((at, step.number) for step in steps if (at := time_of(step.at)) is not None)
    delegations = [step.number for step in steps if is_delegation(step)]
    for part in parts:
        step = named.get(part.run) if part.run else None
        began = time_of(part.began)
        if step is None and began is not None:
            before = bisect_right(times, (began, float("inf")))
            step = times[before - 1][1] if before else None
        if step is None:
            step = next((number for number in delegations if number not in found), None)
        found.setdefault(step, []).append(part)
    return found


def is_delegation(step: Step) -> bool:
    """Whether the step began another run, as far as its answer tells."""
    return step.tool == "delegate" and step.envelope is not None and step.envelope.get("code") != "invalid_arguments"


def time_of(text: str) -> float | None:
    """Seconds since 1970 of a time in ISO 8601, in UTC where it names no zone; None for what is none."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _named(step: Step) -> str | None:
    result = step.envelope.get("result") if step.envelope is not None else None
    run = result.get("run_id") if isinstance(result, Mapping) else None
    return run if isinstance(run, str) else None
