"""What a sandbox's network does through the one pipe, beside the same over a Docker bridge.

Two sandboxes of the same image and limits take turns, call by call: one with ``Network.allow`` (no interface but loopback, through
the guest's proxy), one with ``Network.bridge()``. The server is another process of this machine, on loopback for the one and on
the bridge's gateway for the other. MB are 10**6 bytes.
"""

from __future__ import annotations

import ipaddress
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from benchmarks import machine
from benchmarks.measuring import MIB, Goal, Options, Row, milliseconds, summary, take_turns
from sandbox import DockerEnvironment, Limits, Network

from .cost import cost
from .crowd import crowd
from .forward import forwarded

PROXY = "http://127.0.0.1:24128"
PARALLEL = 50
BRIDGE = "over the bridge"

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


def in_turns(name: str, pipe: Callable[[], float], bridge: Callable[[], float], rounds: int, unit: str, *goals: Goal) -> Row:
    """Return the row of the pipe beside that of the bridge."""
    return take_turns({name: pipe, BRIDGE: bridge}, rounds, 0).row(name, BRIDGE, *goals, unit=unit)


def stalled(pipe: Side, size: int, rounds: int) -> Row:
    """Measure a download beside one whose client reads nothing, and the same without it, in turns."""

    def beside_stalled() -> float:
        with pipe.going(f"{pipe.curl} {pipe.url(1 << 40)} | sleep 600"):
            return pipe.download(size)

    name, alone = "a download beside a stalled one", "alone"
    return take_turns({name: beside_stalled, alone: lambda: pipe.download(size)}, rounds, 0).row(name, alone, unit="MB/s")


def beside(name: str, side: Side, rounds: int, *goals: Goal) -> Row:
    """Measure the answers of a sandbox that downloads as fast as it can, beside quiet ones.

    Further figures: beside a command that merely computes, and of a request that starts no process, which is what the pipe adds.
    """
    found: dict[str, list[float]] = {}
    for _ in range(3):
        for state, command in (
            ("quiet", "sleep 600"),
            ("computing", "head -c 1T /dev/zero > /dev/null"),
            ("busy", f"{side.curl} -o /dev/null {side.url(1 << 40)}"),
        ):
            with side.going(command):
                found.setdefault(state, []).extend(milliseconds(side.run) for _ in range(rounds))
                found.setdefault(f"{state}, a request", []).extend(milliseconds(side.usage) for _ in range(rounds))
    further = {what: statistics.median(found[what]) for what in ("computing", "quiet, a request", "busy, a request")}
    return Row(name, summary(found["busy"]) | further, "ms", "the same without a download", summary(found["quiet"]), goals)


def parallel(pipe: Side, bridge: Side, size: int, rounds: int) -> Row:
    """Measure many downloads at once; ``fairness`` is Jain's index of their speeds (1 is all alike)."""
    fairness: list[float] = []

    def many(side: Side) -> float:
        speed, fair = side.parallel(max(MIB, size // PARALLEL))
        if side is pipe:
            fairness.append(fair)
        return speed

    row = in_turns(f"{PARALLEL} downloads at once", lambda: many(pipe), lambda: many(bridge), rounds, "MB/s")
    return Row(row.name, {**row.figures, "fairness": statistics.median(fairness)}, row.unit, BRIDGE, row.beside, load=row.load)


def compared(pipe: Side, bridge: Side, rounds: int, size: int) -> Iterator[Row]:
    """Measure each way of using the network, in turns."""
    enough = (Goal("p50", 100.0, at_least=True), Goal("ratio", 1 / 3, at_least=True))
    yield in_turns("a download", lambda: pipe.download(size), lambda: bridge.download(size), rounds, "MB/s", *enough)
    yield in_turns("an upload", lambda: pipe.upload(size), lambda: bridge.upload(size), rounds, "MB/s")
    https = (lambda: pipe.download(size, "https"), lambda: bridge.download(size, "https"))
    yield in_turns("a download over HTTPS", *https, rounds, "MB/s")
    yield parallel(pipe, bridge, size, rounds)
    yield stalled(pipe, size, rounds)
    yield in_turns("opening a connection", lambda: pipe.connect(50), lambda: bridge.connect(50), rounds, "ms")
    yield beside('run("true") beside a download', pipe, 20 * rounds, Goal("p50", 10.0))
    yield beside("the same over the bridge", bridge, 20 * rounds)
    yield forwarded(pipe.env, size, rounds)


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
        program = [sys.executable, str(Path(__file__).with_name("server.py")), *addresses]
        with subprocess.Popen(
            [*program, "--certificate", str(certificate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            http, https = map(int, process.stdout.readline().split())
            yield http, https, process.pid
            process.communicate()


def network(options: Options) -> Iterator[Row]:
    """Measure one sandbox beside the bridge, what each party's processors do for it, and many sandboxes at once."""
    rounds, size = options.rounds(7), (16 if options.quick else 256) * MIB
    limits = Limits(memory_bytes=1 << 30)
    gateway = _gateway()
    with server(["127.0.0.1", gateway]) as (*ports, serving):
        rules = [f"127.0.0.1:{port}" for port in ports]
        with (
            DockerEnvironment(options.image, limits=limits, network=Network.allow(*rules)) as one,
            DockerEnvironment(options.image, limits=limits, network=Network.bridge()) as other,
        ):
            pipe, bridge = Side(one, "127.0.0.1", ports, True), Side(other, gateway, ports, False)
            yield from compared(pipe, bridge, rounds, size)
            parties = {**machine.parties(one), "server": [serving]}
            yield cost("processors, a download", parties, lambda: pipe.download(size), size, rounds)
            yield cost("processors, an upload", parties, lambda: pipe.upload(size), size, rounds)
        yield crowd(3 if options.quick else min(options.sandboxes, 300), ports[0])


def _gateway() -> str:
    config = docker.from_env().networks.get("bridge").attrs["IPAM"]["Config"][0]
    # An engine that was just installed tells only the network, whose first address it takes.
    return str(config.get("Gateway") or next(ipaddress.ip_network(config["Subnet"]).hosts()))
