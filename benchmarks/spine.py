"""How fast a sandbox is, beside what people use instead, in one run.

    .venv/bin/python benchmarks/spine.py [--rounds 100] [--json FILE]

Every row takes turns with its baseline, call by call, so that both see the same machine; read the ratios. Baselines: a bare
`bash -c true` on the host, `docker exec` (the command), and docker-py's `exec_run` in a container of the same image.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import docker

from sandbox import DockerEnvironment

IMAGE = "gamebox/base"
MIB = 1 << 20


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that ``call`` took."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Median, 90th percentile and minimum in ms of each call, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(timed(call))
    return {
        name: {"p50": statistics.median(v), "p90": sorted(v)[int(len(v) * 0.9)], "min": min(v)} for name, v in taken.items()
    }


def proportional_memory(container_id: str) -> int:
    """Bytes of memory of all processes of a container, shared pages divided among their users (PSS)."""
    top = subprocess.run(["docker", "top", container_id, "-o", "pid"], capture_output=True, text=True, check=True)
    total = 0
    for pid in top.stdout.split()[1:]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def commands(env: DockerEnvironment, other: docker.models.containers.Container, rounds: int) -> dict[str, dict[str, float]]:
    """One command, four ways."""
    return in_turns(
        {
            "bare bash -c true": lambda: subprocess.run(["bash", "-c", "true"], check=True),
            "gamebox run('true')": lambda: env.run("true").unwrap(),
            "docker-py exec_run": lambda: other.exec_run(["bash", "-c", "true"]),
            "docker exec": lambda: subprocess.run(["docker", "exec", other.id or "", "bash", "-c", "true"], check=True),
        },
        rounds,
    )


def files(env: DockerEnvironment, rounds: int) -> dict[str, dict[str, float]]:
    """Files and output through the pipe."""
    small, medium, large = os.urandom(512).hex(), os.urandom(MIB // 2).hex(), os.urandom(64 * MIB)
    env.write("small", small).unwrap()
    few = max(3, rounds // 20)
    return {
        **in_turns(
            {
                "write 1 KiB": lambda: env.write("small", small).unwrap(),
                "read 1 KiB": lambda: env.read("small").unwrap(),
                "write 1 MiB": lambda: env.write("medium", medium).unwrap(),
                "list": lambda: env.list().unwrap(),
                "search": lambda: env.search("nothing").unwrap(),
            },
            rounds,
        ),
        **in_turns(
            {
                "upload 64 MiB": lambda: env.upload(large, "large").unwrap(),
                "download 64 MiB": lambda: env.download("large").unwrap(),
                "10 MiB of output": lambda: env.run("head -c 10485760 /dev/zero", keep_output_bytes=16 * MIB).unwrap(),
            },
            few,
        ),
    }


def starts(client: docker.DockerClient, rounds: int) -> tuple[dict[str, dict[str, float]], float]:
    """From nothing to the first answer, beside docker-py's create, start and exec; and memory of an idle sandbox in bytes."""
    memory: list[int] = []

    def ours() -> None:
        with DockerEnvironment(IMAGE) as env:
            env.run("echo ok").unwrap()

    def docker_py() -> None:
        found = client.containers.create(IMAGE, ["sleep", "60"], network_mode="none")
        found.start()
        found.exec_run(["bash", "-c", "echo ok"])
        found.remove(force=True)

    taken = in_turns({"gamebox start, run, close": ours, "docker-py create, exec, remove": docker_py}, max(5, rounds // 10))
    for _ in range(3):
        with DockerEnvironment(IMAGE) as env:
            taken.setdefault("gamebox start alone", {"p50": 0, "p90": 0, "min": 0})
            env.run("true").unwrap()
            time.sleep(0.2)
            memory.append(proportional_memory(env.container_id))
    fresh: list[float] = []
    for _ in range(max(5, rounds // 10)):
        env = DockerEnvironment(IMAGE)
        fresh.append(timed(lambda e=env: (e.start(), e.run("echo ok").unwrap())))  # type: ignore[misc]
        env.close()
    ordered = sorted(fresh)
    taken["gamebox start alone"] = {
        "p50": statistics.median(fresh), "p90": ordered[int(len(ordered) * 0.9)], "min": ordered[0],
    }  # fmt: skip
    return taken, statistics.median(memory)


def main() -> None:
    """Measure, print a table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    client = docker.from_env()
    with DockerEnvironment(IMAGE) as env:
        other = client.containers.create(IMAGE, ["sleep", "600"], network_mode="none")
        try:
            other.start()
            rows = commands(env, other, options.rounds)
        finally:
            other.remove(force=True)
        rows |= files(env, options.rounds)
    started, memory = starts(client, options.rounds)
    rows |= started
    bare = rows["bare bash -c true"]["p50"]
    print(f"{'':34}{'p50 ms':>9}{'p90 ms':>9}{'min ms':>9}{'x bare bash':>13}")
    for name, row in rows.items():
        print(f"{name:34}{row['p50']:9.2f}{row['p90']:9.2f}{row['min']:9.2f}{row['p50'] / bare:13.2f}")
    print(f"memory of an idle sandbox (PSS, all its processes): {memory / MIB:.1f} MiB")
    if options.json:
        facts = {
            "engine": client.version()["Version"], "kernel": platform.release(), "python": sys.version.split()[0],
            "cpus": os.cpu_count(), "load": os.getloadavg(), "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        text = json.dumps({"facts": facts, "rows": rows, "memory_bytes": memory}, indent=1)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
