"""What a sandbox's disks cost at its start and its close, beside files in memory, in one run.

    .venv/bin/python benchmarks/disks.py [--rounds 40] [--crowd 100] [--json FILE]

The two take turns, sandbox by sandbox, so that both see the same machine; the crowd is started at once, and then closed at once.
Run it on a machine that does nothing else: the load before the run is printed, and kept with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
from spine import timed

from sandbox import DockerEnvironment, Limits

IMAGE = "gamebox/base"
MIB = 1 << 20
KINDS = {
    "in memory": Limits(memory_bytes=256 * MIB, pids=64, disk="memory"),
    "on disks": Limits(memory_bytes=256 * MIB, pids=64),
}
_FILE_SYSTEMS = {"in memory": "tmpfs", "on disks": "ext2/ext3"}


def made(kind: str) -> DockerEnvironment:
    """A sandbox that is not started."""
    return DockerEnvironment(IMAGE, limits=KINDS[kind])


def check(env: DockerEnvironment, kind: str) -> None:
    """Exit where the sandbox does not keep its files as asked: its figures would be those of something else."""
    found = env.sh("stat -f -c %T /workspace").output.strip()
    if found != _FILE_SYSTEMS[kind]:
        sys.exit(f"this engine does not keep files {kind}, but on {found}: {env.describe()['limits']}")


def alone(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds until the first answer, and of the close, of one sandbox after another."""
    taken: dict[str, dict[str, list[float]]] = {kind: {"start": [], "close": []} for kind in KINDS}
    for turn in range(rounds + 1):
        for kind, rows in taken.items():
            env = made(kind)
            start = timed(lambda e=env: (e.start(), e.run("true").unwrap()))  # type: ignore[misc]
            check(env, kind)
            close = timed(env.close)
            if turn:  # the first one of each makes what the others use again
                rows["start"].append(start)
                rows["close"].append(close)
    return taken


def crowd(kind: str, size: int) -> dict[str, float]:
    """Seconds until all of ``size`` sandboxes have answered, and until all are closed."""
    envs = [made(kind) for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        try:
            started = timed(lambda: list(pool.map(lambda env: env.start().run("true").unwrap(), envs)))
        finally:
            closed = timed(lambda: list(pool.map(lambda env: env.close(), envs)))
    return {"all started s": started / 1000, "all closed s": closed / 1000}


def main() -> None:
    """Measure, print a table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--crowd", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()
    print(f"load before: {load[0]:.1f} on {os.cpu_count()} processors")
    rows: dict[str, dict[str, float]] = {}
    for kind, taken in alone(max(2, options.rounds)).items():
        for what, values in taken.items():
            p20, p50 = statistics.quantiles(values, n=5, method="inclusive")[0], statistics.median(values)
            rows[f"{what}, {kind}"] = {"min ms": min(values), "p20 ms": p20, "p50 ms": p50}
    for kind in KINDS if options.crowd else ():
        rows[f"{options.crowd} at once, {kind}"] = crowd(kind, options.crowd)
    for name, row in rows.items():
        print(f"{name:28}" + "".join(f"{value:10.1f} {unit}" for unit, value in row.items()))
    if options.json:
        facts = {
            "engine": docker.from_env().version()["Version"], "kernel": platform.release(), "python": sys.version.split()[0],
            "cpus": os.cpu_count(), "load": load, "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        options.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
