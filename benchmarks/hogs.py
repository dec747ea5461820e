"""What a hog in one sandbox costs the others: the median of their run("true") beside its quiet value, in the same run.

    .venv/bin/python benchmarks/hogs.py [--seconds 6] [--only NAME] [--json FILE]

Each hog gets a sandbox of its own and runs for so many seconds. A neighbour is timed before, meanwhile and after; the ratio is
that of the medians, "meanwhile" to "before and after". Then the hog's sandbox is asked to echo, and either does, or
says why it is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox import DockerEnvironment, Limits

MIB = 1 << 20
GOAL = 3.0


def _limits() -> Limits:
    return Limits(memory_bytes=512 * MIB, pids=256)


@dataclass(frozen=True)
class Hog:
    """A command that uses up one thing, in a sandbox of its kind."""

    source: str
    limits: Callable[[], Limits] = _limits
    options: dict[str, Any] = field(default_factory=dict)


def python(source: str) -> str:
    """The command that runs ``source``."""
    return f"exec python3 - <<'PROGRAM'\n{source}\nPROGRAM"


FILL = "while :; do head -c 300M /dev/zero > {0}/filler; head -c 300M /dev/zero > {0}/filler2; rm -f {0}/filler*; done 2>/dev/null"
HOGS: dict[str, Hog] = {
    "fork bomb": Hog("f() { f | f & }; f; wait; sleep 60"),
    "memory hog": Hog("while :; do python3 -c 'x = [bytearray(1 << 20) for _ in range(4096)]'; done 2>/dev/null"),
    "disk filler, tmpfs": Hog(FILL.format("/workspace"), lambda: Limits(memory_bytes=512 * MIB, pids=256, disk="memory")),
    "disk filler, ext4": Hog(
        FILL.format("/workspace"), lambda: Limits(memory_bytes=512 * MIB, pids=256, disk_bytes=1024 * MIB)
    ),
    "disk filler, soft": Hog(FILL.format("/srv"), options={"profile": "root"}),
    "inotify hog": Hog(
        python(
            "import ctypes, os, time\n"
            "libc = ctypes.CDLL(None)\n"
            "made = [fd for fd in (libc.inotify_init1(0) for _ in range(4000)) if fd >= 0]\n"
            "os.makedirs('many', exist_ok=True)\n"
            "while True:\n"
            "    for n in range(2000):\n"
            "        os.makedirs(f'many/{n}', exist_ok=True)\n"
            "        for fd in made[:4]: libc.inotify_add_watch(fd, f'many/{n}'.encode(), 0xFFF)\n"
        )
    ),
    "fd hog": Hog(
        "for i in $(seq 100); do "
        "python3 -c 'import os, time\ntry:\n  while True: os.open(\"/dev/null\", 0)\nexcept OSError: time.sleep(60)' & done; wait"
    ),
    "cpu hog": Hog(
        python(
            "import hashlib, threading\n"
            "data = bytes(1 << 22)\n"
            "def spin():\n"
            "    while True: hashlib.sha256(data)\n"
            "for _ in range(100): threading.Thread(target=spin).start()"
        )
    ),
    "output flood": Hog("yes >&2 & yes"),
}


def milliseconds(env: DockerEnvironment) -> float:
    """How long one run("true") took."""
    before = time.perf_counter()
    env.run("true", session=None).unwrap()
    return (time.perf_counter() - before) * 1000


def while_it_lasts(env: DockerEnvironment, going: Callable[[], bool]) -> list[float]:
    """One run after the other, with a pause, as long as ``going``."""
    taken = []
    while going():
        taken.append(milliseconds(env))
        time.sleep(0.02)
    return taken


def measure(name: str, seconds: float, neighbour: DockerEnvironment) -> dict[str, Any]:
    """One hog beside ``neighbour``; times are in milliseconds."""
    hog = HOGS[name]
    answers: list[Any] = []

    def during(length: float) -> list[float]:
        until = time.monotonic() + length
        return while_it_lasts(neighbour, lambda: time.monotonic() < until)

    with DockerEnvironment(limits=hog.limits(), **hog.options) as env:
        quiet = during(seconds / 2)
        thread = threading.Thread(target=lambda: answers.append(env.run(hog.source, timeout_seconds=seconds)))
        thread.start()
        time.sleep(0.3)
        busy = while_it_lasts(neighbour, thread.is_alive)
        thread.join()
        after = env.run("echo alive", session=None, timeout_seconds=20)
        quiet += during(seconds / 2)
    base, found = statistics.median(quiet), statistics.median(busy)
    return {
        "quiet_p50": base, "busy_p50": found, "busy_p90": sorted(busy)[int(len(busy) * 0.9)], "busy_max": max(busy),
        "ratio": found / base, "rounds": len(busy), "hog": answers[0].code.value if not answers[0].ok else "ended",
        "after": "usable" if after.ok and after.result.output == "alive\n" else f"dead: {getattr(after, 'error', after)}",
    }  # fmt: skip


def main() -> int:
    """Measure, print a table, write the figures where asked; exit code 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", choices=HOGS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    print(f"{'':22}{'quiet ms':>10}{'p50 ms':>9}{'p90 ms':>9}{'max ms':>9}{'ratio':>7}  the hog, and its sandbox after")
    with DockerEnvironment(limits=_limits()) as neighbour:
        for name in [options.only] if options.only else HOGS:
            row = rows[name] = measure(name, options.seconds, neighbour)
            print(
                f"{name:22}{row['quiet_p50']:10.2f}{row['busy_p50']:9.2f}{row['busy_p90']:9.2f}{row['busy_max']:9.1f}"
                f"{row['ratio']:7.2f}  {row['hog']}, {row['after']}",
                flush=True,
            )
    if options.json:
        facts = {
            "kernel": platform.release(), "python": sys.version.split()[0], "cpus": os.cpu_count(),
            "load": os.getloadavg(), "goal": GOAL, "seconds": options.seconds,
            "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        options.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["ratio"] >= GOAL for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
