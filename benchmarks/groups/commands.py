"""One command: beside the bare process, on a machine that does nothing else and on busy ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from docker.models.containers import Container

from benchmarks import machine
from benchmarks.measuring import Goal, Options, Row, load, milliseconds, named, take_turns, time_in_turns
from sandbox import DockerEnvironment

BASH, TRUE = "bare bash -c true", "bare /bin/true"
MAKE_FILES = "mkdir -p $(seq -f d%.0f 0 $(({0} / 100))); for n in $(seq {0}); do echo $n > d$((n / 100))/f$n.txt; done"
BUSY = "while :; do :; done & while :; do :; done"


def bare_bash() -> None:
    """Run what `run("true")` runs, without a sandbox."""
    subprocess.run(["bash", "-c", "true"], check=True)


def _calls(env: DockerEnvironment) -> dict[str, Callable[[], object]]:
    return {
        BASH: bare_bash,
        TRUE: lambda: subprocess.run(["/bin/true"], check=True),
        'run("true")': lambda: env.run("true").unwrap(),
        'run("true", session=None)': lambda: env.run("true", session=None).unwrap(),
        'run(argv=["/bin/true"])': lambda: env.run(argv=["/bin/true"]).unwrap(),
    }


def commands(options: Options) -> Iterator[Row]:
    """Measure run in workspaces of several sizes, and the processor time that it takes of each party."""
    for count in (0, 100, 1000):
        with machine.open_sandbox(options.image) as env:
            env.run(MAKE_FILES.format(count), timeout_seconds=600).unwrap()
            yield from _rows(env, f"{count:,} files: ", options.rounds(300))
            if not count:
                yield one_after_the_other(env, options.rounds(300))
                yield processor_time(env, options.rounds(300))


def _rows(env: DockerEnvironment, prefix: str, rounds: int, most: float | None = None) -> Iterator[Row]:
    """Measure every way to run a command; ``most`` replaces the ratios of a machine that does nothing else."""
    turns = time_in_turns(_calls(env), rounds)
    steady = Goal("p99 / p50", 4.0)
    for call, baseline, ratio in (
        ('run("true")', BASH, 2.2), ('run("true", session=None)', BASH, 1.7), ('run(argv=["/bin/true"])', TRUE, 2.5),
    ):  # fmt: skip
        goals = [Goal("ratio", most or ratio)] + ([steady] if most is None and "None" in call else [])
        row = turns.row(call, baseline, *goals)
        if steady in goals and "p99" in row.beside:  # a process of the host has a tail, too
            row = replace(row, note=f"p99 / p50 of {baseline} {row.beside['p99'] / row.beside['p50']:.1f}")
        yield named(row, prefix)


def one_after_the_other(env: DockerEnvironment, rounds: int) -> Row:
    """Measure blocks of commands without a pause: what a sandbox does after its answer costs the next command."""

    def each(call: Callable[[], object]) -> float:
        return milliseconds(lambda: [call() for _ in range(10)]) / 10

    name = 'run("true"), each directly after the last'
    calls = {BASH: lambda: each(bare_bash), name: lambda: each(lambda: env.run("true").unwrap())}
    return take_turns(calls, max(3, rounds // 10), pause_seconds=0.05).row(name, BASH)


def loaded(options: Options) -> Iterator[Row]:
    """Measure run beside four busy processes of the host, and beside two busy sandboxes, with docker-py's exec beside it."""
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(machine.open_sandbox(options.image))
        other = stack.enter_context(machine.plain_container(options.image))
        with machine.spinning(4):
            yield from _loaded_rows(env, other, "beside 4 busy processes: ", options, 2.0)
        for _ in range(2):
            neighbour = stack.enter_context(machine.open_sandbox(options.image))
            neighbour.run(BUSY, background=True, session=None).unwrap()
        yield from _loaded_rows(env, other, "beside 2 busy sandboxes: ", options, 3.0)


def _loaded_rows(
    env: DockerEnvironment, other: Container, prefix: str, options: Options, most: float
) -> Iterator[Row]:
    yield from _rows(env, prefix, options.rounds(200), most)
    exec_run = "docker-py exec_run"
    calls: dict[str, Callable[[], object]] = {
        BASH: bare_bash,
        exec_run: lambda: other.exec_run(["bash", "-c", "true"]),
    }
    yield named(time_in_turns(calls, options.rounds(40), 1).row(exec_run, BASH), prefix)


def processor_time(env: DockerEnvironment, rounds: int) -> Row:
    """Return the processor time of one `run("true")` with that of each party in the note, beside a bare bash.

    The engine is on the way only if it is not bypassed, and works for others as well: its time is noted, and not in the sum.
    """
    parties, before_load = machine.parties(env), load()
    guest = parties.pop("sandbox")[0]

    def spent() -> dict[str, float]:
        return {name: machine.processor_ms(pids) for name, pids in parties.items()} | {
            "sandbox": machine.container_processor_ms(guest)
        }

    before = spent()
    with _counting([guest, *(pid for pids in parties.values() for pid in pids)]) as instructions:
        for _ in range(rounds):
            env.run("true").unwrap()
    taken = {name: (value - before[name]) / rounds for name, value in spent().items()}
    began, own = machine.children_ms(), time.process_time()
    for _ in range(rounds):
        bare_bash()
    beside = (machine.children_ms() - began + (time.process_time() - own) * 1000) / rounds
    counted = f"{sum(instructions) / rounds / 1e6:.2f} million instructions" if instructions else (
        "this machine counts no instructions, so this is user and system time"
    )  # fmt: skip
    shares = ", ".join(f"{name} {value:.2f}" for name, value in taken.items())
    del taken["engine"]
    return Row(
        'processor time of run("true")', {"p50": sum(taken.values()), "rounds": rounds}, "ms", "bare bash and its caller",
        {"p50": beside}, (), f"mean; {shares}; {counted}", (before_load, load()),
    )  # fmt: skip


@contextlib.contextmanager
def _counting(pids: list[int]) -> Iterator[list[int]]:
    """Count the instructions of processes and what they start (perf stat); the list stays empty where that is not possible."""
    counted: list[int] = []
    command = ["perf", "stat", "-x", ",", "-e", "instructions"]
    try:
        probe = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        yield counted
        return
    if not probe.stderr.split(",")[0].isdigit():
        yield counted
        return
    perf = subprocess.Popen([*command, "-p", ",".join(map(str, pids))], stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(0.5)  # until it is attached; it does not say so
        yield counted
    finally:
        os.kill(perf.pid, signal.SIGINT)
        first = perf.communicate()[1].split(",")[0]
        counted += [int(first)] if first.isdigit() else []
