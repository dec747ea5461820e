"""The machine and its processes: facts, processor time and memory of who takes part, other work beside."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from sandbox import DockerEnvironment

from .measuring import DEFAULT_IMAGE, load

# Looks now and then whether its parent is still there, so that it ends with the benchmark however that ends.
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"


def facts() -> dict[str, Any]:
    """Return what a reader of figures must know of the machine; nothing that tells whose it is."""
    model = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    return {
        "processor": model[0] if model else platform.machine(), "cpus": os.cpu_count(),
        "memory_gib": round(memory[0] / (1 << 20), 1) if memory else None,
        "kernel": platform.release(), "python": platform.python_version(), "engine": _engine(), "commit": _commit(),
        "load": load(), "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip


def _engine() -> str:
    try:
        return f"Docker Engine {docker.from_env().version()['Version']}"
    except docker.errors.DockerException:
        return "none"


def _commit() -> str:
    """Return the commit that is measured, with a mark if the files differ from it."""
    root = Path(__file__).parent.parent
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=, changed", "--abbrev=10", "--exclude=*"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip() or "unknown"


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):  # a process that ended, or a kernel without that file
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def container_pids(container_id: str) -> list[int]:
    """Return the process ids, on the engine's host, of everything in a container."""
    found = docker.from_env().api.top(container_id, ps_args="-eo pid")
    return [int(pid) for (pid,) in found["Processes"]]


def proportional_bytes(pids: Iterable[int]) -> int:
    """Return the memory of processes, shared pages divided among those that share them (PSS)."""
    lines = (line for pid in pids for line in _lines(f"/proc/{pid}/smaps_rollup"))
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def resident_bytes(pid: int | str) -> int:
    """Return the resident memory of a process; 0 if it ended."""
    found = [int(line.split()[1]) * 1024 for line in _lines(f"/proc/{pid}/status") if line.startswith("VmRSS:")]
    return found[0] if found else 0


def threads(pid: int | str = "self") -> int:
    """Return how many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def pids_of(program: str) -> list[int]:
    """Return the ids of the processes of that name, of which the kernel keeps 15 characters."""
    wanted = program[:15]
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _lines(f"{p}/comm") == [wanted]]


def parties(env: DockerEnvironment) -> dict[str, list[int]]:
    """Return the processes that take part in an action, by what they are. ``sandbox`` has those that are there now."""
    guest = int(docker.from_env().api.inspect_container(env.container_id)["State"]["Pid"])
    shim = int(Path(f"/proc/{guest}/stat").read_text().rsplit(")", 1)[1].split()[1])
    sandbox = [guest, *(pid for pid in container_pids(env.container_id) if pid != guest)]
    return {"orchestrator": [os.getpid()], "engine": pids_of("dockerd"), "shim": [shim], "sandbox": sandbox}


def processor_ms(pids: Iterable[int]) -> float:
    """Return the processor time of all threads that these processes have now."""
    files = (f"{task}/schedstat" for pid in pids for task in Path(f"/proc/{pid}/task").glob("*"))
    return sum(int(line.split()[0]) for file in files for line in _lines(file)) / 1e6


def children_ms() -> float:
    """Return the processor time of all children of this process that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def container_processor_ms(pid: int) -> float:
    """Return the processor time of the control group of a container's process, those that ended included."""
    for line in _lines(f"/proc/{pid}/cgroup"):
        _, kinds, path = line.split(":", 2)
        if "cpuacct" in kinds.split(","):
            return int(Path(f"/sys/fs/cgroup/{kinds}{path}/cpuacct.usage").read_text()) / 1e6
        if not kinds:
            stat = dict(row.split() for row in _lines(f"/sys/fs/cgroup{path}/cpu.stat"))
            if "usage_usec" in stat:
                return int(stat["usage_usec"]) / 1e3
    return 0.0


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep ``count`` processes of the host busy."""
    made = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        time.sleep(0.5 if count else 0)
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


@contextlib.contextmanager
def open_sandbox(image: str = DEFAULT_IMAGE, **options: Any) -> Iterator[DockerEnvironment]:
    """Start a sandbox, and wait at the end until the engine has removed it: that must not slow down what is measured next."""
    env = DockerEnvironment(image, **options)
    try:
        yield env.start()
    finally:
        env.close(wait=True)


@contextlib.contextmanager
def plain_container(image: str) -> Iterator[Container]:
    """Run a container that sleeps, made by docker-py: what people use instead."""
    found = docker.from_env().containers.create(image, ["sleep", "7200"], network_mode="none")
    try:
        found.start()
        yield found
    finally:
        found.remove(force=True)

