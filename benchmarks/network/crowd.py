"""Many sandboxes with a way out at once on one engine: what they take of the orchestrator.

Of the host's network they take nothing: no interface, no rule of the packet filter, no port; the row says so.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measuring import Row
from sandbox import DockerEnvironment, Limits, Network

MIB = 1 << 20
# An engine on two processors makes no more of them a second when more are asked for at once.
STARTERS = 4


def firewall() -> str:
    """Every rule of the host's packet filter, without counters and dates."""
    said = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line.split(" [")[0] for line in said.splitlines() if not line.startswith("#"))


def listening() -> set[str]:
    """Addresses that this process listens on, TCP of either family."""
    inodes = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            inodes.add(str(fd.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:  # it was the one that listed them
            continue
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def held() -> dict[str, float]:
    """What this process holds: MiB resident, threads, descriptors."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
    }


def crowd(count: int, port: int) -> Row:
    """``count`` sandboxes, all of them making a request at once; raises AssertionError where one did not get its page."""
    rules, interfaces, before = firewall(), socket.if_nameindex(), held()
    command = f"curl -sS --proxy http://127.0.0.1:24128 --noproxy '' http://127.0.0.1:{port}/65536 | wc -c"
    limits = Limits(memory_bytes=128 * MIB, pids=64)
    with ExitStack() as stack, ThreadPoolExecutor(STARTERS) as starters:
        began = time.perf_counter()

        def start(_: int) -> DockerEnvironment:
            return DockerEnvironment(limits=limits, network=Network.allow(f"127.0.0.1:{port}")).start()

        envs = list(starters.map(start, range(count)))
        stack.callback(lambda: list(ThreadPoolExecutor(STARTERS).map(lambda env: env.close(), envs)))
        started, idle = time.perf_counter() - began, held()

        def request(env: DockerEnvironment) -> float:
            before = time.perf_counter()
            assert env.run(command, timeout_seconds=120).unwrap().output.strip() == "65536"
            return time.perf_counter() - before

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as everybody:
            seconds = list(everybody.map(request, envs))
        all_of_it, after = time.perf_counter() - began, held()
        unchanged = firewall() == rules and socket.if_nameindex() == interfaces and not listening()
    figures = {
        "p50": all_of_it, "started": started, "a request": statistics.median(seconds),
        "KiB each, idle": (idle["rss_mib"] - before["rss_mib"]) * 1024 / count,
        "KiB each, used": (after["rss_mib"] - before["rss_mib"]) * 1024 / count,
        "threads each": (after["threads"] - before["threads"]) / count,
    }  # fmt: skip
    note = "no interface, rule or port of the host" if unchanged else "interfaces, rules or ports of the host changed meanwhile"
    return Row(f"{count} sandboxes that each send a request at once, until all had their page", figures, "s", note=note)
