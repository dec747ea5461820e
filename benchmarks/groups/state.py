"""What it costs to look at, keep and restore the files of a sandbox: time, and space on the host.

`run("true")` takes turns between a sandbox that reports which files changed and one that does not (`track_changes=False`). The rest
is one go each, in one sandbox.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.machine import open_sandbox
from benchmarks.measuring import MIB, Options, Row, milliseconds, time_in_turns
from sandbox import DockerEnvironment, Limits

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


@contextmanager
def filled(name: str, track: bool = True) -> Iterator[DockerEnvironment]:
    """Start a sandbox with that tree in it; nothing runs in it."""
    with open_sandbox(limits=Limits(memory_bytes=3 << 30), track_changes=track) as env:
        count, size = TREES[name]
        env.write("/tmp/make.py", MAKE).unwrap()
        env.run(f"python3 /tmp/make.py {count} {size}", timeout_seconds=600).unwrap()
        env.run("sleep 2").unwrap()  # has the time to look at all of it
        yield env


def runs(name: str, rounds: int) -> Iterator[Row]:
    """Measure run("true") and a command that changes a file, with the look for changes and without."""
    with filled(name) as tracked, filled(name, track=False) as untracked:
        for command in ("true", "touch d0/f0.py"):
            ours, bare = f"{name}: {command}", "track_changes=False"
            calls = {
                ours: lambda c=command: tracked.run(c).unwrap(),
                bare: lambda c=command: untracked.run(c).unwrap(),
            }
            yield time_in_turns(calls, rounds).row(ours, bare)


def keeping(name: str) -> dict[str, float]:
    """Return ms and bytes of changes, checkpoint (first, again, after one change), rollback (of one change, of all) and fork."""
    with filled(name) as env:
        row: dict[str, float] = {
            "changes ms": statistics.median(milliseconds(lambda: env.changes().unwrap()) for _ in range(3))
        }
        row["checkpoint ms"] = milliseconds(lambda: env.checkpoint("a").unwrap())
        row["kept bytes"] = env.checkpoints().unwrap().store_bytes
        row["files bytes"] = env.checkpoints().unwrap().checkpoints[0].size_bytes
        row["checkpoint again ms"] = milliseconds(lambda: env.checkpoint("b").unwrap())
        env.run("echo x >> d0/f0.py; rm d0/f1.py").unwrap()
        row["checkpoint after a change ms"] = milliseconds(lambda: env.checkpoint("c").unwrap())
        row["kept by that bytes"] = env.checkpoints().unwrap().checkpoints[-1].added_bytes
        row["rollback of a change ms"] = milliseconds(lambda: env.rollback("a").unwrap())
        env.run("rm -rf d*").unwrap()
        row["rollback of everything ms"] = milliseconds(lambda: env.rollback("a").unwrap())
        if name != "100,000 files":
            forks: list[Any] = []
            row["fork ms"] = milliseconds(lambda: forks.extend(env.fork(1, "a").unwrap().environments))
            for fork in forks:
                fork.close()
    return row


def state(options: Options) -> Iterator[Row]:
    """Measure every tree; only the least one if it has to be quick."""
    for name in list(TREES)[: 1 if options.quick else None]:
        for key, value in keeping(name).items():
            what, unit = key.rsplit(" ", 1)
            yield Row(f"{name}: {what}", {"p50": value}, unit)
        if "MiB" not in name:
            yield from runs(name, options.rounds(50))
