"""The service over HTTP beside a kept sandbox in this process: commands, files, creations, crowds, tenants, restarts.

The service is a process of its own on loopback, and shares the processors with this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import docker

from benchmarks import machine
from benchmarks.groups.crowd import SLICE, STARTERS, Stretch, at_rate
from benchmarks.measuring import KIB, MIB, Goal, Options, Row, load, milliseconds, summary, time_in_turns
from sandbox import DockerEnvironment
from sandbox.client.environment import RemoteEnvironment
from sandbox.docker.kept.labels import SERVICE_LABEL
from sandbox.service.keys import Keys, Scope
from sandbox.service.store.database import STORE, Database

SIZE = 64 * MIB
POOL = 4
# The service promises no more disk than the host has free: 200 of the usual size are more.
SMALL = {"memory_bytes": 128 * MIB, "pids": 64, "disk_bytes": 256 * MIB}
TENANTS, SANDBOXES = 20, 200
STREAMS = 1000
# Of the tenant at full load: sandboxes, and requests under way.
LOAD_SANDBOXES, LOAD_CALLERS = 4, 32
RESTART_SANDBOXES = 50
START_SECONDS, STOP_SECONDS, IDLE_SECONDS = 60.0, 120.0, 3.0


class Served:
    """A ``gamebox serve`` with data of its own, which ends its sandboxes at the end; ``keys`` are those of its tenants."""

    def __init__(self, image: str, tenants: int = 1, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gamebox-benchmark-")
        self._data = Path(self._folder.name) / "data"
        self._data.mkdir(mode=0o700)
        self._environ = {
            **os.environ,
            "GAMEBOX_SERVICE_IMAGES": f"gamebox/*,{image}",
            "GAMEBOX_SERVICE_DISK_FACTOR": "1000",  # hundreds of disks that stay empty
            **{f"GAMEBOX_SERVICE_{name.upper()}": value for name, value in settings.items()},
        }
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.keys = asyncio.run(self._make_keys(tenants))

    async def _make_keys(self, tenants: int) -> list[str]:
        database = Database(self._data / STORE)
        keys, self.id = Keys(database), database.service_id
        try:
            return [(await keys.make(f"tenant-{n}", "benchmark", Scope.manage))[0] for n in range(tenants)]
        finally:
            database.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if self._process is None:
            self.start()
        self.end(signal.SIGTERM)
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it; return when it takes requests."""
        program = str(Path(sys.executable).with_name("gamebox"))
        command = [program, "serve", "--port", str(self.port), "--data", str(self._data), "--stop-all"]
        with (Path(self._folder.name) / "log").open("a") as log:
            self._process = subprocess.Popen(command, env=self._environ, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the service did not start: {(Path(self._folder.name) / 'log').read_text()[-500:]}")
        self.port = int(address.rpartition(":")[2])
        return self

    def end(self, number: signal.Signals) -> None:
        """End it with a signal."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(STOP_SECONDS)
            if process.stdout is not None:
                process.stdout.close()


class Client:
    """One kept connection to a service, with nothing of a client library; for one thread at a time."""

    def __init__(self, served: Served | int, key: str) -> None:
        """``served`` may be a port alone."""
        self._served, self._headers = served, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._lock = threading.Lock()
        self._connection, self._used = self._connect(), time.monotonic()

    def _connect(self) -> http.client.HTTPConnection:
        port = self._served if isinstance(self._served, int) else self._served.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of its answer. Raises RuntimeError for one that is not 2xx."""
        with self._lock:
            if time.monotonic() - self._used > IDLE_SECONDS:  # the service closes it about now
                self._connection.close()
                self._connection = self._connect()
            self._connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), self._headers)
            answer = self._connection.getresponse()
            data, self._used = answer.read(), time.monotonic()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300].decode(errors='replace')}")
        return json.loads(data) if data else None

    def create(self, image: str, **fields: Any) -> str:
        """Create a sandbox and return its id."""
        return str(self.call("POST", "/sandboxes", {"image": image, **fields})["id"])

    def run(self, ident: str, command: str = "true") -> None:
        """Run a command, which must succeed."""
        answer = self.call("POST", f"/sandboxes/{ident}/run", {"command": command})
        if not answer["tool_executed"] or answer["result"]["exit_code"] != 0:
            raise RuntimeError(f"{command!r}: {answer}")

    def delete(self, ident: str) -> None:
        """End a sandbox."""
        self.call("DELETE", f"/sandboxes/{ident}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def service(options: Options) -> Iterator[Row]:
    """Measure what one client feels, what a crowd of streams takes, and what tenants feel of each other."""
    pools = json.dumps([{"size": POOL, "image": options.image}])
    with Served(options.image, tenants=2, pools=pools) as served:
        yield from one_client(served, options)
        yield from creations(served, options)
        yield from streams(served, options)
        yield from neighbours(served, options)


def one_client(served: Served, options: Options) -> Iterator[Row]:
    """Measure a command and 64 MiB both ways, in turns with a kept sandbox in this process."""
    content = os.urandom(SIZE)
    own = DockerEnvironment(options.image, keep=True)
    remote = RemoteEnvironment(options.image, url=served.url, api_key=served.keys[0])
    client = Client(served, served.keys[0])
    with contextlib.ExitStack() as stack:
        stack.callback(client.close)
        stack.callback(own.remove)
        own.start()
        stack.enter_context(remote)
        bare = client.create(options.image)
        stack.callback(client.delete, bare)
        here, there, plain = "a kept sandbox in process", 'run("true") over HTTP', 'run("true") over HTTP, without the client'
        calls: dict[str, Callable[[], object]] = {
            here: lambda: own.run("true").unwrap(),
            there: lambda: remote.run("true").unwrap(),
            plain: lambda: client.run(bare),
        }
        turns = time_in_turns(calls, options.rounds(300))
        yield turns.row(there, here, Goal("above baseline", 2.5))
        yield turns.row(plain, here, Goal("above baseline", 2.5))
        for name in ("upload", "download"):
            files: dict[str, Callable[[], object]] = {
                side: partial(_moved, env, name, content) for side, env in ((here, own), ("over HTTP", remote))
            }
            turns = time_in_turns(files, options.rounds(20), 1)
            yield turns.row("over HTTP", here, Goal("ratio", 1.6), name=f"{name} 64 MiB over HTTP")


def _moved(env: DockerEnvironment | RemoteEnvironment, way: str, content: bytes) -> None:
    if way == "upload":
        env.upload(content, "file").unwrap()
    else:
        assert len(env.download("file").unwrap().content or b"") == SIZE


def creations(served: Served, options: Options) -> Iterator[Row]:
    """Measure a creation that the pool serves, in turns with one that it does not."""
    client = Client(served, served.keys[0])
    made: list[str] = []

    def create(**fields: Any) -> None:
        made.append(client.create(options.image, **fields))

    def from_pool() -> float:
        while made:
            client.delete(made.pop())
        _wait_for_members(served, POOL)
        return milliseconds(lambda: create(env={"NAME": "value"}, metadata={"row": "pool"}))

    pooled, cold = "create from the pool", "create without a pool"
    taken: dict[str, list[float]] = {pooled: [], cold: []}
    before = load()
    try:
        for _ in range(options.rounds(50)):
            taken[pooled].append(from_pool())
            taken[cold].append(milliseconds(lambda: create(limits=SMALL)))
    finally:
        while made:
            client.delete(made.pop())
        client.close()
    yield Row(
        pooled, summary(taken[pooled]), "ms", cold, summary(taken[cold]), (Goal("p50", 15.0),), load=(before, load())
    )


def _wait_for_members(served: Served, count: int) -> None:
    """Wait until so many sandboxes of the service are there: with none of a tenant, those are the members of the pool."""
    client, until = docker.from_env(), time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if len(client.containers.list(filters={"label": f"{SERVICE_LABEL}={served.id}"}, ignore_removed=True)) == count:
            time.sleep(1.0)  # the last one is greeted, and rehearses
            return
        time.sleep(0.1)
    raise RuntimeError("the pool was not filled")


def streams(served: Served, options: Options) -> Iterator[Row]:
    """Measure what an open stream of events takes of the service's memory."""
    count = options.rounds(STREAMS)
    request = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {served.keys[0]}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:

        def open_one() -> None:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 60))
            made.sendall(request)
            received = b""
            while b"still here" not in received:
                received += made.recv(4096)

        for _ in range(20):  # what the first ones take is kept for those to come
            open_one()
        before, load_before = machine.resident_bytes(served.pid), load()
        for _ in range(count):
            open_one()
        size = (machine.resident_bytes(served.pid) - before) / count / KIB
    yield Row(f"{count} open streams of events, each", {"p50": size}, "KiB", goals=(Goal("p50", 60.0),), load=(load_before, load()))


# A program of its own: the load must not take turns with what is measured for one interpreter lock.
LOAD = """
import http.client, json, sys, threading
port, key, callers, *idents = sys.argv[1:]
headers = {"Authorization": f"Bearer {key}"}
body = json.dumps({"command": "true"})

def work(ident):
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    while True:
        connection.request("POST", f"/v1/sandboxes/{ident}/run", body, headers)
        answer = connection.getresponse()
        answer.read()

for n in range(int(callers)):
    threading.Thread(target=work, args=(idents[n % len(idents)],), daemon=True).start()
print("begun", flush=True)
sys.stdin.read()
"""


def neighbours(served: Served, options: Options) -> Iterator[Row]:
    """Measure the command of a tenant while another one is at full load, beside the same while nobody is."""
    quiet, busy = (Client(served, key) for key in served.keys)
    mine = quiet.create(options.image, limits=SMALL)
    theirs = [busy.create(options.image, limits=SMALL) for _ in range(LOAD_SANDBOXES)]
    beside, under = [], []
    before = load()
    try:
        for _ in range(options.rounds(10)):  # in turns, so that other work of the machine meets both
            beside += [milliseconds(lambda: quiet.run(mine)) for _ in range(20)]
            argv = [sys.executable, "-c", LOAD, str(served.port), served.keys[1], str(LOAD_CALLERS), *theirs]
            with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as loading:
                assert loading.stdout is not None
                loading.stdout.readline()
                time.sleep(0.5)
                under += [milliseconds(lambda: quiet.run(mine)) for _ in range(20)]
                loading.kill()
            time.sleep(0.5)
    finally:
        for client, idents in ((quiet, [mine]), (busy, theirs)):
            for ident in idents:
                client.delete(ident)
            client.close()
    yield Row(
        'run("true") beside a tenant at full load', summary(under), "ms", "the same while nobody else calls",
        summary(beside), (Goal("ratio", 2.0),), load=(before, load()),
    )  # fmt: skip


def service_restart(options: Options) -> Iterator[Row]:
    """Measure how long a service that was killed takes until it is ready again, and until all its sandboxes answer."""
    count = max(3, RESTART_SANDBOXES // 10) if options.quick else RESTART_SANDBOXES
    with Served(options.image) as served:
        client = Client(served, served.keys[0])
        with ThreadPoolExecutor(STARTERS) as pool:
            clients = [Client(served, served.keys[0]) for _ in range(STARTERS)]
            idents = list(pool.map(lambda n: clients[n % STARTERS].create(options.image, limits=SMALL), range(count)))
        for each in (client, *clients):
            each.close()
        ready, attached, before = [], [], load()
        for _ in range(3 if options.quick else 10):
            served.end(signal.SIGKILL)
            began = time.perf_counter()
            served.start()
            ready.append(time.perf_counter() - began)
            client = Client(served, served.keys[0])
            for ident in idents:
                client.run(ident)
            attached.append(time.perf_counter() - began)
            client.close()
        name = f"ready after a kill, with {count} sandboxes"
        yield Row(name, summary(ready), "s", goals=(Goal("p50", 2.0),), load=(before, load()))
        yield Row(f"a command answered in each of the {count}", summary(attached), "s", load=(before, load()))


# Answers every request at once: what the clients, their connections and the machine take.
BARE = """
import asyncio
ANSWER = b'{"tool_executed": true, "result": {"exit_code": 0}}'
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(ANSWER)

async def answer(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\\r")[0]))
            writer.write(HEAD + ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextlib.contextmanager
def bare_server() -> Iterator[int]:
    """Run a server that answers every request at once; yield its port."""
    with subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def bare_commands(count: int, seconds: float) -> Stretch:
    """Send what the clients send to such a server, at the same rate."""
    with bare_server() as port:
        clients = [Client(port, "none") for _ in range(count)]
        found = at_rate([partial(client.run, "none") for client in clients], count, seconds)
        for client in clients:
            client.close()
    return found


def guests_of(served: Served) -> list[int]:
    """Return the ids of the first processes of the service's sandboxes."""
    client = docker.from_env()
    found = client.containers.list(filters={"label": f"{SERVICE_LABEL}={served.id}"}, ignore_removed=True)
    return [int(client.api.inspect_container(str(each.id))["State"]["Pid"]) for each in found]


def processor_of(served: Served, guests: list[int]) -> dict[str, float]:
    """Return the processor time, in ms, that each party has used so far; the clients are in this process."""
    in_sandboxes = sum(map(machine.container_processor_ms, guests))
    return {"p50": machine.processor_ms([served.pid]), "guests": in_sandboxes, "clients": time.process_time() * 1000}


def service_live(options: Options) -> Iterator[Row]:
    """Measure live sandboxes of many tenants, one command a second in each, for minutes."""
    count, tenants = (max(6, SANDBOXES // 20), 3) if options.quick else (SANDBOXES, TENANTS)
    seconds = 20.0 if options.quick else options.minutes * 60
    with Served(options.image, tenants=tenants) as served:
        clients = [Client(served, served.keys[n % tenants]) for n in range(count)]
        with ThreadPoolExecutor(STARTERS) as pool:
            idents = list(pool.map(lambda client: client.create(options.image, limits=SMALL), clients))
        calls = [partial(client.run, ident) for client, ident in zip(clients, idents, strict=True)]
        at_rate(calls, count, 2.0)  # the first command of each
        guests = guests_of(served)
        found, before, start = Stretch(), load(), machine.resident_bytes(served.pid)
        begun, guests_start = processor_of(served, guests), machine.proportional_bytes(guests)
        left = seconds
        while left > 0:
            found.add(at_rate(calls, count, min(SLICE, left)))
            left -= SLICE
        end = machine.resident_bytes(served.pid)
        ended, guests_end, after = processor_of(served, guests), machine.proportional_bytes(guests), load()
        bare = bare_commands(count, min(SLICE, seconds))
        name = f"{count} sandboxes of {tenants} tenants, one command a second each for {seconds / 60:g} minutes"
        yield Row(
            name, {**summary(found.taken), "lost": found.lost}, "ms", "a server that answers at once", summary(bare.taken),
            (Goal("p99", 100.0), Goal("lost", 0)), load=(before, after),
        )  # fmt: skip
        of_each = {party: (ended[party] - begun[party]) / max(1, len(found.taken)) for party in begun}
        yield Row("processor time of the service, a command", of_each, "ms", load=(before, after))
        figures = {"start": start / MIB, "p50": end / MIB, "growth": end / start}
        yield Row("memory of the service, end of these minutes", figures, "MiB", goals=(Goal("growth", 1.1),))
        figures = {"start": guests_start / MIB, "p50": guests_end / MIB, "growth": guests_end / max(guests_start, 1)}
        yield Row("memory of all guests, end of these minutes", figures, "MiB")
        for client in clients:
            client.close()
