"""Starts: cold in a fresh process, from the warm pool, and from the command line; and the close as its caller waits."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker

from benchmarks import machine
from benchmarks.measuring import Goal, Options, Row, milliseconds, take_turns
from sandbox import SandboxPool

from .commands import BASH, bare_bash

GAMEBOX = str(Path(sys.executable).with_name("gamebox"))
DOCKER_RUN = "docker run --network none IMAGE true"
# In a fresh process: milliseconds until the first command has answered, and of the close.
COLD = """
import json, sys, time
from sandbox import DockerEnvironment, Limits
began = time.perf_counter()
env = DockerEnvironment(sys.argv[1], limits=Limits(disk=sys.argv[2])).start()
env.run("true").unwrap()
answered = time.perf_counter()
env.close()
closed = time.perf_counter()
print(json.dumps([(answered - began) * 1000, (closed - answered) * 1000]))
"""
POOL_SIZE = 4
DISKS = {"on disk": "auto", "in memory": "memory"}


def docker_run(image: str) -> float:
    """Return the ms of `docker run`; removing the container is not counted."""
    name = f"gamebox-benchmark-{secrets.token_hex(4)}"
    command = ["docker", "run", "--name", name, "--network", "none", image, "true"]
    try:
        return milliseconds(lambda: subprocess.run(command, check=True, capture_output=True))
    finally:
        with contextlib.suppress(docker.errors.NotFound):
            docker.from_env().api.remove_container(name, force=True)


@contextlib.contextmanager
def installed() -> Iterator[dict[str, str]]:
    """Give the variables with which a process finds its modules compiled, as pip leaves them where it installs.

    A checkout may have none, for PYTHONDONTWRITEBYTECODE: each process then compiles all that it imports, which takes as long
    again.
    """
    with tempfile.TemporaryDirectory() as compiled:
        yield {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}


def starts(options: Options) -> Iterator[Row]:
    """Measure cold starts and closes."""
    with installed() as environ:
        yield from _starts(options, environ)


def _starts(options: Options, environ: dict[str, str]) -> Iterator[Row]:
    closes: dict[str, list[float]] = {name: [] for name in (*DISKS, "docker-py")}
    processes: list[float] = []

    def cold(name: str) -> float:
        before = time.perf_counter()
        command = [sys.executable, "-c", COLD, options.image, DISKS[name]]
        done = subprocess.run(command, env=environ, check=True, capture_output=True)
        taken, close = json.loads(done.stdout)
        closes[name].append(close)
        if name == "on disk":
            processes.append((time.perf_counter() - before) * 1000)
        return float(taken)

    def docker_py() -> float:
        client, made = docker.from_env(), []

        def create() -> None:
            made.append(client.containers.create(options.image, ["sleep", "60"], network_mode="none"))
            made[0].start()
            made[0].exec_run(["bash", "-c", "true"])

        taken = milliseconds(create)
        closes["docker-py"].append(milliseconds(lambda: made[0].remove(force=True)))
        return taken

    py = "docker-py: create, start, exec_run"
    calls: dict[str, Callable[[], float]] = {DOCKER_RUN: lambda: docker_run(options.image), py: docker_py}
    calls |= {f"cold create, {name}": lambda n=name: cold(n) for name in DISKS}  # type: ignore[misc]
    turns = take_turns(calls, options.rounds(15))
    for name in (*(f"cold create, {name}" for name in DISKS), py):
        yield turns.row(name, DOCKER_RUN, *([Goal("ratio", 0.65)] if name != py else []))
    remove = "docker-py: remove(force=True)"
    turns.taken = {**turns.taken, remove: closes["docker-py"][1:], "whole process": processes[1:]}
    note = "Python's start and imports, start, command, close, interpreter exit"
    yield turns.row("whole process", DOCKER_RUN, name="cold create, the whole process", note=note)
    for name in DISKS:
        turns.taken |= {f"close, {name}": closes[name][1:]}
        yield turns.row(f"close, {name}", remove, Goal("p50", 5.0))


def pool(options: Options) -> Iterator[Row]:
    """Measure the warm pool: acquire, and the first command of what it gives; and how long it takes to be full again."""
    call, refilled, acquired = "acquire, first command answered", "full again after one was acquired", "acquire alone"
    taken: dict[str, list[float]] = {name: [] for name in (refilled, acquired)}
    with SandboxPool(image=options.image, size=POOL_SIZE) as warm:

        def first_command() -> float:
            taken[refilled].append(milliseconds(lambda: _wait_until_full(warm)))
            time.sleep(0.1)
            before = time.perf_counter()
            env = warm.acquire(timeout_seconds=60)
            taken[acquired].append((time.perf_counter() - before) * 1000)
            env.run("true").unwrap()
            answered = (time.perf_counter() - before) * 1000
            env.close(wait=True)
            return answered

        turns = take_turns({BASH: lambda: milliseconds(bare_bash), call: first_command}, options.rounds(40), warm_up=3)
        turns.taken = {**turns.taken, **{name: values[3:] for name, values in taken.items()}}
        yield turns.row(call, BASH, Goal("p50", 5.0))
        yield turns.row(acquired, BASH)
        yield turns.row(refilled)


def _wait_until_full(warm: SandboxPool[Any]) -> None:
    while warm.stats().ready < POOL_SIZE:
        time.sleep(0.01)


def cli(options: Options) -> Iterator[Row]:
    """Measure the command line as a whole process; the further figure is its processor time."""
    with installed() as environ:
        yield from _cli(options, environ)


def _cli(options: Options, environ: dict[str, str]) -> Iterator[Row]:
    spent: dict[str, list[float]] = defaultdict(list)

    def process(name: str, *command: str) -> float:
        before = machine.children_ms()
        taken = milliseconds(lambda: subprocess.run(command, env=environ, check=True, capture_output=True))
        spent[name].append(machine.children_ms() - before)
        return taken

    def with_processor(row: Row) -> Row:
        return replace(row, figures={**row.figures, "processor": statistics.median(spent[row.name])})

    python, usage, run, cold = "python -c pass", "gamebox --help", "gamebox run -- true", "cold create"

    def cold_create() -> float:
        command = [sys.executable, "-c", COLD, options.image, "auto"]
        return float(json.loads(subprocess.run(command, env=environ, check=True, capture_output=True).stdout)[0])

    helps = {python: lambda: process(python, sys.executable, "-c", "pass"), usage: lambda: process(usage, GAMEBOX, "--help")}
    yield with_processor(take_turns(helps, options.rounds(30)).row(usage, python, Goal("p50", 120.0)))
    runs = {cold: cold_create, run: lambda: process(run, GAMEBOX, "run", "--", "true")}
    note = "cold create is without Python's start and imports"
    yield with_processor(take_turns(runs, options.rounds(15)).row(run, cold, Goal("above baseline", 200.0), note=note))
