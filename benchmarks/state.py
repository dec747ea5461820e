"""What it costs to look at, keep and restore the files of a sandbox: time, and space on the host.

    .venv/bin/python benchmarks/state.py [--rounds 50] [--json FILE]

`run("true")` takes turns between a sandbox that tells which files changed and one that does not (`track_changes=False`), call by
call; read the ratios. The rest is one go each, in one sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sandbox import DockerEnvironment, Limits

MIB = 1 << 20
MAKE = """
import os, sys
count, size = int(sys.argv[1]), int(sys.argv[2])
for i in range(count):
    if i % 100 == 0: os.mkdir(f"d{i // 100}")
    open(f"d{i // 100}/f{i}.py", "wb").write(os.urandom(size))
"""
# files, bytes of each
TREES = {
    "100 files": (100, 4000),
    "10,000 files": (10_000, 4000),
    "100,000 files": (100_000, 100),
    "500 MiB in 50 files": (50, 10 * MIB),
}


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that ``call`` took."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def filled(name: str, track: bool = True) -> DockerEnvironment:
    """A sandbox with that tree in it, and nothing running."""
    env = DockerEnvironment(limits=Limits(memory_bytes=3 << 30), track_changes=track).start()
    count, size = TREES[name]
    env.write("/tmp/make.py", MAKE).unwrap()
    env.run(f"python3 /tmp/make.py {count} {size}", timeout_seconds=600).unwrap()
    env.run("sleep 2").unwrap()  # has the time to look at all of it
    return env


def runs(name: str, rounds: int) -> dict[str, float]:
    """Median ms of run("true") and of a command that changes a file, with the look and without."""
    told, untold = filled(name), filled(name, track=False)
    try:
        taken: dict[str, list[float]] = {
            key: [] for key in ("true", "true, not tracked", "touch", "touch, not tracked")
        }
        for number in range(rounds):
            for key, env in (("", told), (", not tracked", untold)):
                taken["true" + key].append(timed(lambda e=env: e.run("true").unwrap()))  # type: ignore[misc]
                taken["touch" + key].append(timed(lambda e=env, n=number: e.run(f": > d0/n{n}").unwrap()))  # type: ignore[misc]
        return {key: statistics.median(values) for key, values in taken.items()}
    finally:
        told.close()
        untold.close()


def keeping(name: str) -> dict[str, float]:
    """ms and bytes of checkpoint (first, again, after one change), changes, patch and rollback (of one change, of everything)."""
    with filled(name) as env:
        row: dict[str, float] = {
            "changes ms": statistics.median(timed(lambda: env.changes().unwrap()) for _ in range(3))
        }
        row["checkpoint ms"] = timed(lambda: env.checkpoint("a").unwrap())
        row["kept bytes"] = env.checkpoints().unwrap().store_bytes
        row["files bytes"] = env.checkpoints().unwrap().checkpoints[0].size_bytes
        row["checkpoint again ms"] = timed(lambda: env.checkpoint("b").unwrap())
        env.run("echo x >> d0/f0.py; rm d0/f1.py").unwrap()
        row["checkpoint after a change ms"] = timed(lambda: env.checkpoint("c").unwrap())
        row["kept by that bytes"] = env.checkpoints().unwrap().checkpoints[-1].added_bytes
        row["rollback of a change ms"] = timed(lambda: env.rollback("a").unwrap())
        env.run("rm -rf d*").unwrap()
        row["rollback of everything ms"] = timed(lambda: env.rollback("a").unwrap())
        if name != "100,000 files":
            forks = []
            row["fork ms"] = timed(lambda: forks.extend(env.fork(1, "a").unwrap().environments))
            for fork in forks:
                fork.close()
    return row


def main() -> None:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = {
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }
    rows: dict[str, dict[str, float]] = {}
    for name in TREES:
        rows[name] = keeping(name)
        if "MiB" not in name:
            rows[name] |= runs(name, options.rounds)
        print(name)
        for key, value in rows[name].items():
            print(f"  {key:32}{value:14.2f}")
    if options.json:
        facts |= {"taken": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        options.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
