"""Many connections of one sandbox, and many sandboxes: none is held up by another, and the host's network stays as it was."""

from __future__ import annotations

import abc
import hashlib
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import docker
import pytest

from sandbox import DockerEnvironment, Limits, Network

from .observing import eventually
from .serving import Server, serving

pytestmark = pytest.mark.engine

Make = Callable[..., DockerEnvironment]
SMALL = Limits(memory_bytes=512 << 20)
PROXY = "--proxy http://127.0.0.1:24128 --noproxy ''"
AT_ONCE = 50
SANDBOXES = 60
BLOCK = bytes(range(256)) * 256


class Wire(socketserver.ThreadingTCPServer):
    """Takes any number of connections; ``moved`` are the bytes of each, in order of arrival. What is said is up to the handler."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler: type[socketserver.BaseRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.moved: list[int] = []
        self.all_here = threading.Barrier(AT_ONCE)
        self.go_on = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.shutdown()
        self.server_close()


class Handler(socketserver.BaseRequestHandler, abc.ABC):
    server: Wire
    request: socket.socket

    def handle(self) -> None:
        place = len(self.server.moved)
        self.server.moved.append(0)
        try:
            self.serve(place)
        except OSError:  # it was cut, as it ends with its sandbox
            pass

    @abc.abstractmethod
    def serve(self, place: int) -> None:
        """What the server does; ``server.moved[place]`` counts its bytes."""


class Together(Handler):
    """Answers each with its own line, when the fiftieth is there."""

    def serve(self, place: int) -> None:
        said = self.request.recv(100)
        self.server.all_here.wait(60)
        self.request.sendall(said * 20_000)


class Pouring(Handler):
    """Sends 64 MiB."""

    def serve(self, place: int) -> None:
        for _ in range(1024):
            self.request.sendall(BLOCK)
            self.server.moved[place] += len(BLOCK)


class Sipping(Handler):
    """Takes nothing until it is let, then everything; answers what it was."""

    def serve(self, place: int) -> None:
        self.server.go_on.wait(120)
        digest = hashlib.sha256()
        while data := self.request.recv(65536):
            digest.update(data)
        self.request.sendall(digest.hexdigest().encode())


@pytest.fixture(scope="module")
def pages() -> Iterator[Server]:
    with serving() as made:
        yield made


def python(source: str, *args: object) -> str:
    return f"python3 - {' '.join(map(str, args))} <<'PROGRAM'\n{CONNECT}{source}\nPROGRAM"


CONNECT = """
import hashlib, os, socket, sys, threading, time
def connected(port):
    s = socket.create_connection(("127.0.0.1", 24128))
    s.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n".encode())
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += s.recv(1)
    assert b" 200 " in head, head
    return s
"""


def test_fifty_connections_stand_at_once_and_each_gets_its_own_bytes(docker_env: Make) -> None:
    with Wire(Together) as server:
        env = docker_env(limits=SMALL, network=Network.allow(f"127.0.0.1:{server.port}"))
        source = """
good = []
def one(number):
    s, line = connected(int(sys.argv[1])), f"{number:05d}\\n".encode()
    s.sendall(line)
    got = b""
    while data := s.recv(65536):
        got += data
    good.append(got == line * 20_000)
threads = [threading.Thread(target=one, args=(n,)) for n in range(50)]
for t in threads: t.start()
for t in threads: t.join()
print(good.count(True))
"""
        assert env.run(python(source, server.port)).unwrap().output == f"{AT_ONCE}\n"
        assert eventually(lambda: len(env.connections) == AT_ONCE)
        assert {(one.outcome, one.received_bytes, one.sent_bytes) for one in env.connections} == {
            ("allowed", 120_000, 6)
        }


def test_a_reader_that_stalls_holds_up_its_sender_alone_and_gets_everything_later(
    docker_env: Make, pages: Server
) -> None:
    with Wire(Pouring) as server:
        env = docker_env(limits=SMALL, network=Network.allow(f"127.0.0.1:{server.port}", pages.rule))
        source = """
s = connected(int(sys.argv[1]))
while not os.path.exists("go"): time.sleep(0.05)
digest, size = hashlib.sha256(), 0
while data := s.recv(65536):
    digest.update(data); size += len(data)
print(size, digest.hexdigest())
"""
        ident = env.run(python(source, server.port), background=True, session=None).unwrap().id
        _settle(server)
        beside = f"curl -sS {PROXY} {pages.url(30 << 20)} | wc -c"
        assert env.run(beside, session=None).unwrap().output.strip() == str(30 << 20)
        assert all(env.run("true", session=None).ok for _ in range(20))
        # Its credit, and the buffers of two sockets, which the kernel makes as large as it likes.
        (moved,) = server.moved
        assert moved <= 48 << 20
        env.write("go", "").unwrap()
        assert env.wait_for(id=ident, exit=True, timeout_seconds=60).ok
        whole = hashlib.sha256(BLOCK * 1024).hexdigest()
        assert env.logs(ident).unwrap().content == f"{64 << 20} {whole}\n"


def _settle(server: Wire) -> None:
    """Wait until the one connection stands still."""
    assert eventually(lambda: len(server.moved) == 1 and server.moved[0] > 0)
    last, same = -1, 0
    while same < 3:
        same = same + 1 if server.moved[0] == last else 0
        last = server.moved[0]
        time.sleep(0.7)


def test_a_far_end_that_takes_nothing_holds_up_its_sender_alone(docker_env: Make, pages: Server) -> None:
    with Wire(Sipping) as server:
        env = docker_env(limits=SMALL, network=Network.allow(f"127.0.0.1:{server.port}", pages.rule))
        source = """
s, block = connected(int(sys.argv[1])), bytes(range(256)) * 256
for _ in range(1024): s.sendall(block)
s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode())
"""
        ident = env.run(python(source, server.port), background=True, session=None).unwrap().id
        assert eventually(lambda: len(server.moved) == 1)
        beside = f"curl -sS {PROXY} {pages.url(30 << 20)} | wc -c"
        assert env.run(beside, session=None).unwrap().output.strip() == str(30 << 20)
        assert env.logs(ident).unwrap().running
        server.go_on.set()
        assert env.wait_for(id=ident, exit=True, timeout_seconds=60).ok
        assert env.logs(ident).unwrap().content == f"{hashlib.sha256(BLOCK * 1024).hexdigest()}\n"


def test_commands_are_answered_beside_downloads_without_end(docker_env: Make, pages: Server) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(pages.rule))
    endless = f"for i in 1 2 3 4; do curl -sS {PROXY} -o /dev/null {pages.url(1 << 40)} & done; wait"
    ident = env.run(endless, background=True, session=None).unwrap().id
    assert eventually(lambda: len(pages.asked) >= 4)
    assert [env.run(f"echo {n}", session=None).unwrap().output for n in range(30)] == [f"{n}\n" for n in range(30)]
    text = "x" * (2 << 20)
    env.write("large", text).unwrap()
    assert env.download("large").unwrap().content == text.encode()
    assert env.logs(ident).unwrap().running


@pytest.mark.alone
def test_sixty_sandboxes_at_once_take_nothing_of_the_hosts_network(pages: Server) -> None:
    before = _firewall(), _listening()
    envs = [
        DockerEnvironment(limits=Limits(memory_bytes=128 << 20, pids=64), network=Network.allow(pages.rule))
        for _ in range(SANDBOXES)
    ]
    command = f"curl -sS {PROXY} {pages.url(65536)} | wc -c; ls /sys/class/net"
    try:
        with ThreadPoolExecutor(4) as starters:
            list(starters.map(lambda env: env.start(), envs))
        with ThreadPoolExecutor(SANDBOXES) as everybody:
            said = set(everybody.map(lambda env: env.run(command).unwrap().output, envs))
        assert said == {"65536\nlo\n"}
        assert eventually(lambda: all([one.outcome for one in env.connections] == ["allowed"] for env in envs))
        assert (_firewall(), _listening()) == before
        assert not {env.container_id for env in envs} & _on_the_bridge()
    finally:
        with ThreadPoolExecutor(4) as closers:
            list(closers.map(lambda env: env.close(wait=True), envs))


def _firewall() -> str:
    if shutil.which("iptables-save") is None:
        pytest.fail("an engine needs iptables, and this test iptables-save")
    said = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line.split(" [")[0] for line in said.splitlines() if not line.startswith("#"))


def _listening() -> set[str]:
    """The addresses that this process listens on."""
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


def _on_the_bridge() -> set[str]:
    return set(docker.from_env().networks.get("bridge").attrs["Containers"])
