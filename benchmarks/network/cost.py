"""Processor seconds that each party of a transfer takes for a GB: steadier than its speed where others work beside."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks import machine
from benchmarks.measuring import Row


def cost(name: str, parties: Mapping[str, Sequence[int]], transfer: Callable[[], float], size: int, rounds: int) -> Row:
    """Return seconds per GB of every party and of all, medians of so many transfers of ``size`` bytes."""
    found: dict[str, list[float]] = {party: [] for party in parties}
    for _ in range(rounds):
        before = {party: machine.processor_ms(pids) for party, pids in parties.items()}
        transfer()
        for party, pids in parties.items():
            found[party].append((machine.processor_ms(pids) - before[party]) / 1000 / size * 1e9)
    medians = {party: statistics.median(taken) for party, taken in found.items()}
    return Row(name, {"p50": sum(medians.values()), **medians}, "s/GB")
