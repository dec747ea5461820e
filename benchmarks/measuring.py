"""Rows of figures: calls timed in turns with their baselines, and the goals that they meet or miss."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

DEFAULT_IMAGE = "gamebox/base"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Before each call: what the sandbox still does for the last one, once that was answered, must not slow its neighbour in turn.
PAUSE_SECONDS = 0.005
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Options:
    """What the command line asks of every group. ``out`` is where pictures go, if anywhere."""

    quick: bool = False
    image: str = DEFAULT_IMAGE
    out: Path | None = None
    sandboxes: int = 500
    rate: float = 200.0
    minutes: float = 10.0

    def rounds(self, full: int) -> int:
        """Return how often to measure: ``full``, or a tenth of it (at least 3) if it has to be quick."""
        return max(3, full // 10) if self.quick else full


@dataclass(frozen=True)
class Goal:
    """A bound for one value of a row (see ``Row.values``); meeting ``otherwise`` is enough."""

    value: str
    bound: float
    at_least: bool = False
    otherwise: Goal | None = None

    def is_met(self, values: Figures) -> bool | None:
        """Return whether the row meets the goal; None if the value was not measured."""
        found = values.get(self.value)
        own = None if found is None else found >= self.bound if self.at_least else found <= self.bound
        return own or (own if self.otherwise is None else self.otherwise.is_met(values))

    def __str__(self) -> str:
        text = f"{self.value} {'≥' if self.at_least else '≤'} {self.bound:g}"
        return text if self.otherwise is None else f"{text} or {self.otherwise}"


@dataclass(frozen=True)
class Row:
    """One line of the table. ``beside`` are the figures of the baseline; ``load`` is the machine's before and after."""

    name: str
    figures: Figures = field(default_factory=dict)
    unit: str = "ms"
    baseline: str = ""
    beside: Figures = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    note: str = ""
    load: tuple[float, float] | None = None

    @property
    def values(self) -> dict[str, float]:
        """The figures, and what follows from them: the ratio to the baseline, the difference, and how steady the row is."""
        found = dict(self.figures)
        if "p50" in found and self.beside.get("p50"):
            found["ratio"] = found["p50"] / self.beside["p50"]
            found["above baseline"] = found["p50"] - self.beside["p50"]
        if "p99" in found and found.get("p50"):
            found["p99 / p50"] = found["p99"] / found["p50"]
        if "p99" in found and self.beside.get("p99"):
            found["p99 / baseline's p99"] = found["p99"] / self.beside["p99"]
        return found

    def to_dict(self, group: str) -> dict[str, Any]:
        """Return the row as it is kept in JSON."""
        values = self.values
        return {
            "group": group, "name": self.name, "unit": self.unit,
            "figures": {name: round(value, 4) for name, value in self.figures.items()},
            "baseline": self.baseline, "beside": {name: round(value, 4) for name, value in self.beside.items()},
            "ratio": round(values["ratio"], 3) if "ratio" in values else None,
            "goals": [{"goal": str(goal), "met": goal.is_met(values)} for goal in self.goals],
            "note": self.note, "load": self.load,
        }  # fmt: skip


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median, percentiles as far as there are enough values for them, and the least."""
    ordered = sorted(values)
    found = {"p50": statistics.median(ordered)}
    for percent, least in ((95, 20), (99, 100)):
        if len(ordered) >= least:
            found[f"p{percent}"] = ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
    return {**found, "min": ordered[0], "rounds": len(ordered)}


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long ``call`` took."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def load() -> float:
    """Return the machine's load over the last minute."""
    return round(os.getloadavg()[0], 2)


class Turns:
    """The values of calls that took turns."""

    def __init__(self, taken: Mapping[str, Sequence[float]], load: tuple[float, float]) -> None:
        self.taken = taken
        self.load = load

    def row(self, call: str, baseline: str = "", *goals: Goal, name: str = "", unit: str = "ms", note: str = "") -> Row:
        """Return the row of a call beside that of its baseline."""
        beside = summary(self.taken[baseline]) if baseline else {}
        return Row(name or call, summary(self.taken[call]), unit, baseline, beside, goals, note, self.load)


def take_turns(
    calls: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1, pause_seconds: float = PAUSE_SECONDS
) -> Turns:
    """Ask each call for a value, ``rounds`` times in turns, so that all see the same machine; the first few are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    before = load()
    for turn in range(-warm_up, rounds):
        for name, call in calls.items():
            time.sleep(pause_seconds)
            value = call()
            if turn >= 0:
                taken[name].append(value)
    return Turns(taken, (before, load()))


def time_in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 3, pause_seconds: float = PAUSE_SECONDS
) -> Turns:
    """Take the time of calls in turns, in ms."""
    timed = {name: lambda c=call: milliseconds(c) for name, call in calls.items()}
    return take_turns(timed, rounds, warm_up, pause_seconds)


def named(row: Row, prefix: str) -> Row:
    """Return the row with a longer name."""
    return replace(row, name=f"{prefix}{row.name}")
