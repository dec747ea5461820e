"""Processor seconds that each party of a transfer takes for a GB, from /proc: steadier than its speed where others work beside.

Only where the engine and this process are of one machine, and /proc/PID of root's processes may be read (it may, by anybody).
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker

TICKS = os.sysconf("SC_CLK_TCK")


def seconds(pid: int) -> float:
    """What a process and its threads used, those that ended as well."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _name(process: Path) -> str:
    with contextlib.suppress(OSError):  # ended meanwhile
        return (process / "comm").read_text().strip()
    return ""


def parties(client: docker.DockerClient, container: str, server: int) -> dict[str, int]:
    """Process ids by what they are to the sandbox ``container``."""
    guest = int(client.api.inspect_container(container)["State"]["Pid"])
    shim = int(Path(f"/proc/{guest}/stat").read_text().rsplit(")", 1)[1].split()[1])
    engines = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and _name(one) == "dockerd"]
    found = {"server": server, "orchestrator": os.getpid(), "shim": shim, "guest": guest}
    return found | ({"engine": engines[0]} if len(engines) == 1 else {})


def cost(pids: dict[str, int], transfer: Callable[[], float], size: int, rounds: int) -> dict[str, Any]:
    """Seconds a GB of every party and their sum, medians of so many transfers of ``size`` bytes; ``transfer`` gives MB/s."""
    found: dict[str, list[float]] = {name: [] for name in pids}
    speeds = []
    for _ in range(rounds):
        before = {name: seconds(pid) for name, pid in pids.items()}
        speeds.append(transfer())
        for name, pid in pids.items():
            found[name].append((seconds(pid) - before[name]) / size * 1e9)
    medians = {name: statistics.median(taken) for name, taken in found.items()}
    return {"unit": "s/GB", **medians, "sum": sum(medians.values()), "MB/s": statistics.median(speeds)}
