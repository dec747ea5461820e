"""What a sandbox's network does through the one pipe, beside the same over a Docker bridge, in one run.

    .venv/bin/python benchmarks/network.py [--rounds 7] [--mib 256] [--only NAME] [--sandboxes 300] [--json FILE]

Two sandboxes of the same image and limits take turns, call by call: one with ``Network.allow`` (no interface but loopback, through
the guest's proxy), one with ``Network.bridge()``. The server is another process of this machine, on loopback for the one and on
the bridge's gateway for the other. Goals: a download at least a third of the bridge's and 100 MB/s, ``run("true")`` beside
a saturating download below 10 ms at the median. A download by ``env.forward()`` is beside one by a plain relay of sockets
on the host. Exit code 1 where one is missed. MB are 10**6 bytes.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

from sandbox import DockerEnvironment, Limits, Network

sys.path.insert(0, str(Path(__file__).parent))

from network_cost import cost, parties
from network_crowd import crowd
from network_forward import forwarded

MIB = 1 << 20
PROXY = "http://127.0.0.1:24128"
PARALLEL = 50
GOALS = {"download MB/s": 100.0, "download ratio": 1 / 3, "run('true') beside a download, ms": 10.0}
Row = dict[str, Any]

CONNECTS = """
import socket, statistics, sys, time
proxied, host, port, rounds = sys.argv[1] == "yes", sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
taken = []
for _ in range(rounds):
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", 24128) if proxied else (host, port)) as s:
        if proxied:
            s.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
            assert b" 200 " in s.recv(4096)
        taken.append((time.perf_counter() - began) * 1000)
        s.sendall(b"GET /1 HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        while s.recv(4096): pass
print(statistics.median(taken))
"""


class Side:
    """One of the two sandboxes, and how a client in it reaches the server."""

    def __init__(self, env: DockerEnvironment, host: str, ports: list[int], proxied: bool) -> None:
        self.env, self.host, self.proxied = env, host, proxied
        self.http, self.https = ports
        self.curl = f"curl -sSk --proxy {PROXY} --noproxy ''" if proxied else "curl -sSk"

    def url(self, size: int, scheme: str = "http") -> str:
        """Where there are so many bytes."""
        return f"{scheme}://{self.host}:{self.https if scheme == 'https' else self.http}/{size}"

    def ask(self, command: str, seconds: float = 120) -> str:
        """What a command prints, which has to work."""
        ran = self.env.run(command, session=None, timeout_seconds=seconds).unwrap()
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    def download(self, size: int, scheme: str = "http") -> float:
        """MB a second."""
        said = self.ask(f"{self.curl} -o /dev/null -w '%{{size_download}} %{{time_total}}' {self.url(size, scheme)}")
        got, seconds = said.split()
        assert int(got) == size
        return size / float(seconds) / 1e6

    def upload(self, size: int) -> float:
        """MB a second."""
        said = self.ask(
            f"truncate -s {size} /tmp/zeros && {self.curl} -H 'Expect:' -X POST -T /tmp/zeros "
            f"-o /dev/null -w '%{{size_upload}} %{{time_total}}' {self.url(0)}"
        )
        sent, seconds = said.split()
        assert int(sent) == size
        return size / float(seconds) / 1e6

    def parallel(self, size: int) -> tuple[float, float]:
        """MB a second of 50 downloads together, and how fair it was (Jain's index of their speeds: 1 is all alike)."""
        url = f"{self.url(size)}?[1-{PARALLEL}]"
        began = time.perf_counter()
        said = self.ask(
            f"{self.curl} --parallel --parallel-immediate --parallel-max {PARALLEL} -o /dev/null "
            f"-w '%{{size_download}} %{{time_total}}\\n' '{url}'"
        )
        seconds = time.perf_counter() - began
        lines = [line.split() for line in said.splitlines()]
        assert [int(got) for got, _ in lines] == [size] * PARALLEL
        speeds = [size / float(taken) for _, taken in lines]
        return PARALLEL * size / seconds / 1e6, sum(speeds) ** 2 / (PARALLEL * sum(s * s for s in speeds))

    def connect(self, rounds: int) -> float:
        """Median ms until a connection stands."""
        proxied = "yes" if self.proxied else "no"
        return float(self.ask(f"python3 - {proxied} {self.host} {self.http} {rounds} <<'PROGRAM'\n{CONNECTS}\nPROGRAM"))

    @contextmanager
    def going(self, command: str) -> Iterator[None]:
        """A command in the background."""
        ident = self.env.run(command, background=True, session=None).unwrap().id
        time.sleep(1)
        try:
            yield
        finally:
            self.env.kill(ident).unwrap()

    def run(self) -> None:
        """One run("true")."""
        self.env.run("true", session=None).unwrap()

    def usage(self) -> None:
        """A request that starts no process."""
        self.env.usage().unwrap()


def times(call: Callable[[], None], rounds: int) -> list[float]:
    """ms of each of so many calls."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def in_turns(pipe: Callable[[], float], bridge: Callable[[], float], rounds: int, unit: str) -> Row:
    """Medians of the two, the best of each, and the ratio of the medians."""
    found: dict[str, list[float]] = {"pipe": [], "bridge": []}
    for _ in range(rounds):
        found["pipe"].append(pipe())
        found["bridge"].append(bridge())
    best = max if unit == "MB/s" else min
    one, other = (statistics.median(found[name]) for name in ("pipe", "bridge"))
    return {
        "unit": unit, "pipe": one, "bridge": other, "ratio": one / other,
        "pipe_best": best(found["pipe"]), "bridge_best": best(found["bridge"]),
    }  # fmt: skip


def stalled(pipe: Side, size: int, rounds: int) -> Row:
    """A download beside one whose client reads nothing, and the same without it, in turns."""
    with_it, without = [], []
    for _ in range(rounds):
        without.append(pipe.download(size))
        with pipe.going(f"{pipe.curl} {pipe.url(1 << 40)} | sleep 600"):
            with_it.append(pipe.download(size))
    one, other = statistics.median(with_it), statistics.median(without)
    return {"unit": "MB/s", "pipe": one, "without": other, "ratio": one / other}


def beside(side: Side, rounds: int) -> Row:
    """Answers of a sandbox that downloads as fast as it can, in ms; quiet ones, and those beside a command that merely computes.

    ``request`` is one that starts no process: what the pipe adds. What a command that computes costs is no matter of the network.
    """
    found: dict[str, list[float]] = {}
    for _ in range(3):
        for state, command in (
            ("quiet", "sleep 600"),
            ("computing", "head -c 1T /dev/zero > /dev/null"),
            ("busy", f"{side.curl} -o /dev/null {side.url(1 << 40)}"),
        ):
            with side.going(command):
                found.setdefault(state, []).extend(times(side.run, rounds))
                found.setdefault(f"{state}_request", []).extend(times(side.usage, rounds))
    busy, median = found["busy"], {name: statistics.median(taken) for name, taken in found.items()}
    return {
        "unit": "ms", "p50": median["busy"], "p90": sorted(busy)[int(len(busy) * 0.9)], "quiet_p50": median["quiet"],
        "computing_p50": median["computing"], "ratio": median["busy"] / median["quiet"],
        "request_p50": median["busy_request"], "quiet_request_p50": median["quiet_request"],
    }  # fmt: skip


def measurements(
    pipe: Side, bridge: Side, pids: dict[str, int], rounds: int, size: int
) -> dict[str, Callable[[], Row]]:
    """Every row by its name; ``pids`` are the processes that the bytes of ``pipe`` go through."""
    fairness: list[float] = []

    def many(side: Side) -> float:
        speed, fair = side.parallel(max(MIB, size // PARALLEL))
        if side is pipe:
            fairness.append(fair)
        return speed

    def parallel() -> Row:
        row = in_turns(lambda: many(pipe), lambda: many(bridge), rounds, "MB/s")
        return {**row, "fairness": statistics.median(fairness)}

    return {
        "download": lambda: in_turns(lambda: pipe.download(size), lambda: bridge.download(size), rounds, "MB/s"),
        "upload": lambda: in_turns(lambda: pipe.upload(size), lambda: bridge.upload(size), rounds, "MB/s"),
        "download, https": lambda: in_turns(
            lambda: pipe.download(size, "https"), lambda: bridge.download(size, "https"), rounds, "MB/s"
        ),
        "processors, download": lambda: cost(pids, lambda: pipe.download(size), size, rounds),
        "processors, upload": lambda: cost(pids, lambda: pipe.upload(size), size, rounds),
        f"{PARALLEL} downloads at once": parallel,
        "download beside a stalled one": lambda: stalled(pipe, size, rounds),
        "a connection": lambda: in_turns(lambda: pipe.connect(50), lambda: bridge.connect(50), rounds, "ms"),
        "run('true') beside a download": lambda: beside(pipe, 20 * rounds),
        "the same over the bridge": lambda: beside(bridge, 20 * rounds),
        "a download by forward()": lambda: forwarded(pipe.env, size, rounds),
    }


@contextmanager
def server(addresses: list[str]) -> Iterator[tuple[int, int, int]]:
    """Ports of http and https of a server in another process, and its id."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
             "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        certificate.write_text(certificate.read_text() + key.read_text())
        program = [sys.executable, str(Path(__file__).with_name("network_server.py")), *addresses]
        with subprocess.Popen(
            [*program, "--certificate", str(certificate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            http, https = map(int, process.stdout.readline().split())
            yield http, https, process.pid
            process.communicate()


def show(name: str, row: Row) -> None:
    """One line."""
    figures = "  ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )
    print(f"{name:32}{figures}", flush=True)


def missed(rows: dict[str, Row]) -> list[str]:
    """The goals that were not reached."""
    download, answers = rows.get("download"), rows.get("run('true') beside a download")
    found = []
    if download and download["pipe"] < GOALS["download MB/s"]:
        found.append("download MB/s")
    if download and download["ratio"] < GOALS["download ratio"]:
        found.append("download ratio")
    if answers and answers["p50"] >= GOALS["run('true') beside a download, ms"]:
        found.append("run('true') beside a download, ms")
    return found


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--only", help="rows whose name has this in it")
    parser.add_argument("--sandboxes", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    client = docker.from_env()
    config = client.networks.get("bridge").attrs["IPAM"]["Config"][0]
    # An engine that was just installed tells only the network, whose first address it takes.
    gateway = config.get("Gateway") or str(next(ipaddress.ip_network(config["Subnet"]).hosts()))
    limits, rows = Limits(memory_bytes=1 << 30), {}
    with server(["127.0.0.1", gateway]) as (*ports, serving):
        rules = [f"127.0.0.1:{port}" for port in ports]
        with (
            DockerEnvironment(limits=limits, network=Network.allow(*rules)) as one,
            DockerEnvironment(limits=limits, network=Network.bridge()) as other,
        ):
            sides = Side(one, "127.0.0.1", ports, True), Side(other, gateway, ports, False)
            pids = parties(client, one.backend.container_id, serving)
            for name, measure in measurements(*sides, pids, options.rounds, options.mib * MIB).items():
                if options.only is None or options.only in name:
                    show(name, rows.setdefault(name, measure()))
        if options.sandboxes:
            name = f"{options.sandboxes} sandboxes at once"
            show(name, rows.setdefault(name, crowd(options.sandboxes, ports[0])))
    if options.json:
        facts = {
            "engine": client.version()["Version"], "kernel": platform.release(), "python": sys.version.split()[0],
            "cpus": os.cpu_count(), "load": os.getloadavg(), "goals": GOALS, "rounds": options.rounds, "mib": options.mib,
            "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        options.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")
    for goal in missed(rows):
        print(f"missed: {goal} {GOALS[goal]:.3g}")
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
