"""Many sandboxes: commands in eight at once, and hundreds that live for minutes under a steady rate of commands."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from benchmarks import machine
from benchmarks.measuring import MIB, Goal, Options, Row, load, summary, take_turns
from sandbox import DockerEnvironment, Limits

from .commands import bare_bash

SANDBOXES, COMMANDS = 8, 50
SMALL = Limits(memory_bytes=128 * MIB, pids=64)
# How many calls are under way at once, and how many sandboxes are made at once.
CALLERS, STARTERS = 64, 8
# Seconds at a rate before the bare processes have their turn, theirs, and of each try of the search.
SLICE, BARE_SLICE, TRY = 30.0, 10.0, 10.0
TOO_LATE_MS = 200.0
STOP_RATE = 10_000.0


@contextmanager
def started(image: str, count: int) -> Iterator[list[DockerEnvironment]]:
    """Start sandboxes, several at once, and close them all in the end, until they are gone."""
    with ThreadPoolExecutor(STARTERS) as pool:
        made = [DockerEnvironment(image, limits=SMALL) for _ in range(count)]
        try:
            list(pool.map(DockerEnvironment.start, made))
            yield made
        finally:
            list(pool.map(lambda env: env.close(wait=True), made))


def crowd(options: Options) -> Iterator[Row]:
    """Measure 8 sandboxes x 50 commands, a thread for each, beside as many threads that run bare processes."""

    def rate(calls: Sequence[Callable[[], object]]) -> float:
        def repeat(call: Callable[[], object]) -> None:
            for _ in range(COMMANDS):
                call()

        began = time.perf_counter()
        with ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(repeat, calls))
        return len(calls) * COMMANDS / (time.perf_counter() - began)

    with started(options.image, SANDBOXES) as envs:
        bare, ours = f"{SANDBOXES} threads, bare processes", f"{SANDBOXES} sandboxes x {COMMANDS} commands"
        runs = [lambda env=env: env.run("true").unwrap() for env in envs]
        turns = take_turns({bare: lambda: rate([bare_bash] * SANDBOXES), ours: lambda: rate(runs)}, options.rounds(7))
        yield turns.row(ours, bare, Goal("ratio", 0.6, at_least=True), unit="1/s")


@dataclass
class Stretch:
    """What came of calls at a steady rate: ms from when each was due until it was answered, and those that failed."""

    taken: list[float] = field(default_factory=list)
    lost: int = 0

    def add(self, other: Stretch) -> None:
        """Count another stretch as part of this one."""
        self.taken += other.taken
        self.lost += other.lost


def at_rate(calls: Sequence[Callable[[], object]], rate: float, seconds: float, most_behind: float = math.inf) -> Stretch:
    """Make calls, one after the other, when they are due, whether or not those before have returned.

    Gives up, which counts as one lost, when more calls than those of ``most_behind`` seconds are not answered yet.
    """
    found = Stretch()
    turn = itertools.cycle(calls)

    def one(call: Callable[[], object], due: float) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it is counted, and the others go on
            found.lost += 1
            print(f"lost: {error}", file=sys.stderr)
        else:
            found.taken.append((time.perf_counter() - due) * 1000)

    began = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        for number in range(int(rate * seconds)):
            due = began + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            if number - len(found.taken) - found.lost > rate * most_behind:
                found.lost += 1
                break
            pool.submit(one, next(turn), due)
    return found


def live(options: Options) -> Iterator[Row]:
    """Measure hundreds of live sandboxes: start, a steady rate of commands for minutes, memory, and the rate that they bear."""
    count, bare = options.sandboxes, [bare_bash]
    with ExitStack() as stack:
        began, before, load_before = time.perf_counter(), _held(), load()
        envs = stack.enter_context(started(options.image, count))
        runs = [lambda env=env: env.run("true").unwrap() for env in envs]
        at_rate(runs, options.rate, count / options.rate)  # the first command of each
        seconds = time.perf_counter() - began
        yield Row(f"{count} sandboxes started, each with a command", {"p50": seconds}, "s", load=(load_before, load()))
        load_before, start = load(), _held()
        found, beside = Stretch(), Stretch()
        left = options.minutes * 60
        while left > 0:
            found.add(at_rate(runs, options.rate, min(SLICE, left)))
            beside.add(at_rate(bare, options.rate, min(BARE_SLICE, left)))
            left -= SLICE
        late = Goal("p99", 50.0, otherwise=Goal("p99 / baseline's p99", 5.0))
        name = f"{count} live sandboxes, {options.rate:g} commands/s for {options.minutes:g} minutes"
        yield Row(
            name, {**summary(found.taken), "lost": found.lost}, "ms", "bare processes at the same rate",
            summary(beside.taken), (late, Goal("lost", 0)), load=(load_before, load()),
        )  # fmt: skip
        end = _held()
        for party, size in end.items():
            figures = {"before": before[party], "start": start[party], "p50": size, "growth": size / max(start[party], 0.1)}
            yield Row(f"memory of the {party}, end of these minutes", figures, "MiB", goals=(Goal("growth", 1.1),))
        yield Row(
            f"rate at which p99 passes {TOO_LATE_MS:g} ms", {"p50": most_rate(runs, options.rate)}, "1/s",
            "bare processes", {"p50": most_rate(bare, options.rate)}, load=(load_before, load()),
        )  # fmt: skip


def most_rate(calls: Sequence[Callable[[], object]], rate: float) -> float:
    """Return a rate, to a tenth, at which p99 is still below the bound: doubled until it is not, and halved in between."""

    def is_late(tried: float) -> bool:
        tries = (at_rate(calls, tried, TRY, most_behind=1.0) for _ in range(2))  # other work may have disturbed the first
        return all(found.lost or summary(found.taken).get("p99", 0.0) > TOO_LATE_MS for found in tries)

    good, bad = 0.0, rate
    while bad < STOP_RATE and not is_late(bad):
        good, bad = bad, bad * 2
    while bad - good > bad / 10:
        middle = (good + bad) / 2
        good, bad = (good, middle) if is_late(middle) else (middle, bad)
    return good


def _held() -> dict[str, float]:
    """Return the MiB that the parties outside the sandboxes hold; of the shims, of which there are many, the sum of shares."""
    shims = machine.pids_of("containerd-shim-runc-v2")
    engine = [pid for name in ("dockerd", "containerd") for pid in machine.pids_of(name)]
    return {
        "orchestrator": machine.resident_bytes("self") / MIB,
        "engine": sum(map(machine.resident_bytes, engine)) / MIB,
        "shims": machine.proportional_bytes(shims) / MIB,
    }
