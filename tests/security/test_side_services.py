"""Side services: nothing but the sandbox they stand beside reaches them, and no command takes their names over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits, Ready, SideService
from sandbox.docker.engine.client import connect

from .probing import probe

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=256 << 20, pids=64)
ECHO = "cd /etc && exec python3 -m http.server --bind 127.0.0.1 {}"


def listening_sockets() -> set[str]:
    """The sockets of this process at which something can be reached over TCP."""
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            own.add(str(descriptor.readlink()))
    return listening & own


@pytest.fixture(scope="module")
def listening_before() -> set[str]:
    """What other tests of this process have left, or share."""
    return listening_sockets()


@pytest.fixture(scope="module")
def served(listening_before: set[str]) -> Iterator[DockerEnvironment]:
    """A sandbox with two services; ``one`` also listens on a port that is not named."""
    both = {
        "one": SideService(image="gamebox/base", command=f"{ECHO.format(9999)} & {ECHO.format(5432)}", port=5432, limits=SMALL,
                           ready=Ready(command="curl -sf http://127.0.0.1:9999/hostname http://127.0.0.1:5432/hostname")),
        "two": SideService(image="gamebox/base", command=ECHO.format(80), port=80, limits=SMALL),
    }  # fmt: skip
    with DockerEnvironment(limits=SMALL, services=both) as env:
        yield env


CONNECT = """
import socket
for host, port in {places!r}:
    try:
        with socket.create_connection((host, port), 5) as sock:
            sock.settimeout(5)
            sock.sendall(b"GET /hostname HTTP/1.0\\r\\n\\r\\n")
            print(host, port, "REACHED" if b"200" in sock.recv(100) else "closed")
    except OSError as error:
        print(host, port, type(error).__name__)
"""


def test_the_first_sandbox_reaches_what_is_named(served: DockerEnvironment) -> None:
    """What the others are compared with."""
    said = probe(served, CONNECT.format(places=[("one", 5432), ("two", 80)]))
    assert said == "one 5432 REACHED\ntwo 80 REACHED\n"


def test_other_ports_of_a_service_are_not_reached(served: DockerEnvironment) -> None:
    """Threat: a command reaches an administration port of a service that nobody named."""
    said = probe(
        served, CONNECT.format(places=[("one", 9999), ("two", 5432), ("127.24.0.2", 9999), ("127.24.0.3", 22)])
    )
    assert "REACHED" not in said
    refused = served.run("curl -sS -i --noproxy '' --proxy http://127.0.0.1:24128 http://one:9999/").unwrap().output
    assert refused.startswith("HTTP/1.1 403 one:9999 is refused by the sandbox: one is a service of this sandbox")


def test_services_reach_neither_each_other_nor_the_first(served: DockerEnvironment) -> None:
    """Threat: a service that was taken over goes on to the other services, or to the sandbox it stands beside."""
    served.run("python3 -m http.server 7000", background=True).unwrap()
    served.wait_for(port=7000).unwrap()
    places = [
        ("one", 5432),
        ("two", 80),
        ("sandbox", 7000),
        ("127.24.0.2", 5432),
        ("127.24.0.3", 80),
        ("127.24.0.2", 80),
    ]
    for name, own in (("one", 5432), ("two", 80)):
        inside = served.services[name].environment
        said = probe(inside, CONNECT.format(places=[*places, ("127.0.0.1", own)]))
        assert said.count("REACHED") == 1, said  # its own
        assert said.endswith(f"127.0.0.1 {own} REACHED\n")
        for target in ("one:5432", "two:80", "sandbox:7000", "127.0.0.1:7000"):
            answer = (
                inside.run(f"curl -sS -i --noproxy '' --proxy http://127.0.0.1:24128 http://{target}/").unwrap().output
            )
            assert answer.startswith("HTTP/1.1 403 "), answer


def test_another_sandbox_does_not_reach_them(served: DockerEnvironment, env: DockerEnvironment) -> None:
    """Threat: another sandbox of the same orchestrator reaches a service by its name, its address, or the proxy."""
    said = probe(
        env, CONNECT.format(places=[("one", 5432), ("127.24.0.2", 5432), ("127.24.0.3", 80), ("127.0.0.1", 5432)])
    )
    assert "REACHED" not in said
    answer = env.run("curl -sS -i --noproxy '' --proxy http://127.0.0.1:24128 http://one:5432/").unwrap().output
    assert answer.startswith("HTTP/1.1 403 one:5432 is refused by the sandbox: this sandbox has no network")


def test_the_host_has_no_address_for_them(listening_before: set[str], served: DockerEnvironment) -> None:
    """Threat: any process of the host, or of the network, reaches a service by a port that was opened for it."""
    for environment in (served, *(service.environment for service in served.services.values())):
        found = connect().api.inspect_container(environment.container_id)
        assert found["HostConfig"]["NetworkMode"] == "none"
        assert not found["NetworkSettings"]["Ports"]
        assert not found["HostConfig"]["Binds"]
    assert listening_sockets() == listening_before


TAKE_OVER = """
import os, socket
def attempt(what, call):
    try:
        call()
        print("ALLOWED", what)
    except OSError as error:
        print("refused", what)
def bind(address, port, *options):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        for option in options: sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((address, port)); sock.listen()
for address in ("127.24.0.2", "0.0.0.0", "::"):
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
        attempt(f"bind {address} {options}", lambda: bind(address, 5432, *options))
attempt("write hosts", lambda: open("/etc/hosts", "a"))
attempt("replace hosts", lambda: os.rename("/etc/hosts", "/etc/hosts2"))
attempt("unlink hosts", lambda: os.unlink("/etc/hosts"))
for fd in range(64):
    attempt("open a descriptor of the guest", lambda: open(f"/proc/1/fd/{fd}"))
attempt("kill the guest", lambda: os.kill(1, 9))
"""


def test_no_command_takes_a_name_over(served: DockerEnvironment) -> None:
    """Threat: a command plays the database to other commands of the sandbox."""
    said = probe(served, TAKE_OVER)
    assert "refused bind 127.24.0.2 ()" in said
    assert "ALLOWED" not in said
    assert said.count("refused") == 12 + 3 + 64 + 1
    assert probe(served, CONNECT.format(places=[("one", 5432)])) == "one 5432 REACHED\n"


def test_a_flood_of_connections_leaves_the_service_usable(served: DockerEnvironment) -> None:
    """Threat: a command opens connections without end; the guest, the host and the service must get through it."""
    flood = """
import socket
socks = []
try:
    for _ in range(1500):
        socks.append(socket.create_connection(("one", 5432), 5))
except OSError as error:
    print(type(error).__name__)
print(len(socks))
"""
    assert int(probe(served, flood).split()[-1]) > 100
    # What the guest needs to name the refused connections' command leaves the sandbox's processes to its commands.
    assert served.run("for i in $(seq 20); do sleep 1 & done; wait; echo forked").unwrap().output == "forked\n"
    for _ in range(20):
        if "REACHED" in probe(served, CONNECT.format(places=[("one", 5432)])):
            break
    else:
        pytest.fail("the service was not reached again")
    assert served.run("echo alive").unwrap().output == "alive\n"
