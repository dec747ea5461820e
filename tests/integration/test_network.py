"""The network of real sandboxes: what their rules let out, what is refused, and how both change while they run."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import docker
import docker.errors
import pytest

from sandbox import DockerEnvironment, Limits, LocalEnvironment, Network
from sandbox.docker.container import create as container
from sandbox.docker.engine.client import connect
from sandbox.docker.images.runtime import RuntimeVolume, forget_runtime
from sandbox.errors import ErrorCode, SandboxError
from sandbox.messages.network import WITHOUT
from sandbox.network.connections import Connection
from sandbox.readers import hint_for

from .observing import eventually, of_commands, within
from .serving import Server, serving

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=512 << 20)
PROXY = "http://127.0.0.1:24128"
Make = Callable[..., DockerEnvironment]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def curl(url: str, *options: str) -> str:
    return f"curl -sS --proxy {PROXY} --noproxy '' {' '.join(options)} {url}"


def ended(env: DockerEnvironment) -> list[Connection]:
    return [one for one in env.connections if one.outcome == "allowed"]


def test_what_a_rule_names_is_reached_and_counted(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(server.rule))
    assert env.run(curl(server.url(3_000_000)) + " | wc -c").unwrap().output.strip() == "3000000"
    assert eventually(lambda: len(ended(env)) == 1)
    [one] = ended(env)
    assert (one.host, one.port, one.address, one.rule) == ("127.0.0.1", server.port, "127.0.0.1", server.rule)
    assert one.received_bytes > 3_000_000
    assert 0 < one.sent_bytes < 1000
    assert one.why == ""


@pytest.mark.parametrize("network", [Network.none(), Network.allow("example.com"), Network.open()])
def test_what_no_rule_names_is_refused_with_words(docker_env: Make, server: Server, network: Network) -> None:
    env = docker_env(limits=SMALL, network=network)
    before = len(server.asked)
    said = env.run(curl(server.url(), "-i")).unwrap().output
    assert said.startswith(f"HTTP/1.1 403 127.0.0.1:{server.port} is refused by the sandbox: ")
    assert len(server.asked) == before
    assert [one.outcome for one in env.connections] == ["denied"]


def test_rules_change_while_it_runs(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=SMALL)
    assert " 403 " in env.run(curl(server.url(), "-i")).unwrap().output
    assert env.allow(server.rule) == env.network
    assert env.run(curl(server.url(5))).unwrap().output == "xxxxx"
    slow = env.run(curl(server.url(1 << 33), "--limit-rate 1M -o /dev/null"), background=True, session=None).unwrap().id
    assert eventually(lambda: len(server.asked) and server.asked[-1][0] == f"/{1 << 33}")
    env.deny(server.rule)
    assert env.wait_for(id=slow, exit=True, timeout_seconds=60).ok  # curl itself rests for as long as it was too fast before
    assert env.logs(slow).unwrap().exit_code in (18, 56)
    assert eventually(lambda: any("the rules were changed" in one.why for one in ended(env)))
    assert " 403 " in env.run(curl(server.url(), "-i")).unwrap().output
    env.network = Network.open(server.rule)
    assert env.run(curl(server.url(5))).unwrap().output == "xxxxx"


def test_a_change_of_other_rules_cuts_nothing(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(server.rule))
    going = env.run(curl(server.url(3 << 20), "--limit-rate 2M") + " | wc -c", background=True).unwrap().id
    assert eventually(lambda: len(server.asked) and server.asked[-1][0] == f"/{3 << 20}")
    env.deny("example.com")
    env.allow("example.org")
    assert env.wait_for(id=going, exit=True, timeout_seconds=20).ok
    assert env.logs(going).unwrap().content.strip() == str(3 << 20)


def test_many_at_once_and_one_that_takes_nothing(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(server.rule))
    stalled = f"curl -sS --proxy {PROXY} --noproxy '' {server.url(1 << 30)} | sleep 60"
    env.run(stalled, background=True, session=None).unwrap()
    assert eventually(lambda: len(server.asked) and server.asked[-1][0] == f"/{1 << 30}")
    many = f"for i in $(seq 50); do {curl(server.url(200_000))} | wc -c & done; wait"
    assert env.run(many, session=None).unwrap().output.split() == ["200000"] * 50


def test_names_are_not_resolved_inside_and_nothing_else_leads_out(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, network=Network.open())
    said = (
        env.run("curl -sS --noproxy '*' http://made-up.example.com; curl -sS --noproxy '*' http://192.0.2.1")
        .unwrap()
        .output
    )
    assert "Could not resolve host" in said
    assert "Network is unreachable" in said or "Couldn't connect" in said or "Failed to connect" in said
    assert env.run("ls /sys/class/net").unwrap().output.split() == ["lo"]


def test_a_bridge_has_no_rules(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, network=Network.bridge())
    assert env.run(curl("http://192.0.2.1/")).unwrap().exit_code == 7  # nobody listens there
    with pytest.raises(SandboxError) as refused:
        env.allow("example.com")
    assert refused.value.code is ErrorCode.invalid_configuration
    with pytest.raises(SandboxError) as changed:
        env.network = Network.none()
    assert changed.value.code is ErrorCode.invalid_configuration


def test_a_pause_holds_a_download_up_and_no_more(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(server.rule))
    going = env.run(curl(server.url(300 << 20)) + " | wc -c", background=True, session=None).unwrap().id
    assert eventually(lambda: len(server.asked) and server.asked[-1][0] == f"/{300 << 20}")
    env.pause()
    time.sleep(0.5)
    within(3, env.resume)
    assert env.wait_for(id=going, exit=True, timeout_seconds=60).ok
    assert env.logs(going).unwrap().content.strip() == str(300 << 20)


def test_who_attaches_brings_rules_and_without_there_are_none(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(server.rule), keep=True, keep_seconds=60.0)
    attached: list[DockerEnvironment] = []
    try:
        assert env.run(curl(server.url(5))).unwrap().output == "xxxxx"
        asking = f"until {curl(server.url(5), '-i')} | grep 'no orchestrator is attached'; do sleep 0.1; done"
        alone = env.run(asking, background=True, session=None).unwrap().id
        env.close()
        assert eventually(lambda: not of_commands(env))
        attached.append(DockerEnvironment.attach(env.container_id))
        assert attached[0].network == Network.none()
        assert "no orchestrator is attached" in attached[0].logs(alone).unwrap().content
        assert " 403 " in attached[0].run(curl(server.url(), "-i")).unwrap().output
        attached[0].close()
        attached.append(DockerEnvironment.attach(env.container_id, network=Network.allow(server.rule)))
        assert attached[1].run(curl(server.url(5))).unwrap().output == "xxxxx"
        with pytest.raises(SandboxError) as refused:
            DockerEnvironment.attach(env.container_id, network=Network.bridge(), take_over=True)
        assert refused.value.code is ErrorCode.invalid_configuration
    finally:
        (attached or [env])[-1].remove()


def test_who_answers_for_a_refused_host_lets_the_same_connection_go_on(docker_env: Make, server: Server) -> None:
    asked: list[tuple[str, int, str]] = []

    def ask(host: str, port: int) -> str | None:
        asked.append((host, port, threading.current_thread().name))
        return "once" if len(asked) == 1 else None

    env = docker_env(limits=SMALL, network=Network.allow(ask=ask))  # type: ignore[arg-type]
    assert env.run(curl(server.url(5))).unwrap().output == "xxxxx"
    assert " 403 " in env.run(curl(server.url(5), "-i")).unwrap().output
    assert [one[:2] for one in asked] == [("127.0.0.1", server.port)] * 2


def test_a_local_environment_says_that_it_cannot_restrict() -> None:
    with LocalEnvironment() as env:
        for change in (env.allow, env.deny):
            with pytest.raises(SandboxError) as refused:
                change("example.com")
            assert refused.value.code is ErrorCode.operation_not_supported


def limited(**fields: float) -> Limits:
    return dataclasses.replace(SMALL, **fields)  # type: ignore[arg-type]


def test_what_connections_may_carry_in_all_is_bounded_and_counted(docker_env: Make, server: Server) -> None:
    heard: list[Connection] = []
    env = docker_env(limits=limited(network_bytes=1 << 20), network=Network.allow(server.rule))
    env.on_connection = heard.append
    assert env.run(curl(server.url(300_000)) + " | wc -c").unwrap().output.strip() == "300000"
    cut = env.run(curl(server.url(5 << 20), "-o /dev/null"))
    assert cut.unwrap().exit_code in (18, 56)
    assert [(notice.code, notice.message, notice.hint) for notice in cut.notices] == [
        ("network_cut",
         f"The connection to {server.rule} was cut: the 1.0 MiB that this sandbox may send and receive are used up.",
         WITHOUT),
    ]  # fmt: skip
    usage = env.usage().unwrap()
    assert 1 << 20 <= usage.network_sent_bytes + usage.network_received_bytes < (1 << 20) + (512 << 10)
    assert "network: 0 bytes of 1.0 MiB left" in usage.to_text()
    refused = env.run(curl(server.url(5), "-i"))
    assert "the 1.0 MiB that this sandbox may send and receive are used up" in refused.unwrap().output
    assert [notice.code for notice in refused.notices] == ["network_denied"]
    assert eventually(lambda: [one.outcome for one in heard] == ["allowed", "allowed", "denied"])
    assert env.usage().unwrap().connections == 3


def test_how_many_connections_there_may_be_at_once_is_bounded(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=limited(network_connections=1), network=Network.allow(server.rule))
    slow = env.run(curl(server.url(1 << 30), "--limit-rate 1M -o /dev/null"), background=True, session=None).unwrap().id
    assert eventually(lambda: len(server.asked) and server.asked[-1][0] == f"/{1 << 30}")
    assert "there are 1 connections already" in env.run(curl(server.url(5), "-i")).unwrap().output
    env.kill(slow).unwrap()
    assert eventually(lambda: env.run(curl(server.url(5))).unwrap().output == "xxxxx")


def test_a_silent_connection_is_cut(docker_env: Make, server: Server) -> None:
    env = docker_env(limits=limited(network_silent_seconds=1.0), network=Network.allow(server.rule))
    program = f"""
import socket
s = socket.create_connection(("127.0.0.1", 24128))
s.sendall(b"CONNECT {server.rule} HTTP/1.1\\r\\n\\r\\n")
try: s.recv(999); print(s.recv(9))
except ConnectionError: print("cut")
"""
    env.write("silent.py", program).unwrap()
    answer = env.run("python3 silent.py", timeout_seconds=20)
    assert answer.unwrap().output.strip() == "cut"
    (notice,) = answer.notices
    assert (notice.code, "nothing came or went for 1 second" in notice.message) == ("network_cut", True)
    assert "Limits(network_silent_seconds=...)" in hint_for("host", notice.hint)
    assert eventually(lambda: [one.why for one in ended(env)] == ["nothing came or went for 1 second"])


def test_localhost_has_its_name_without_the_networks_code_of_the_engine(docker_env: Make) -> None:
    """0011: the files are of the runtime volume, the same for all, and nothing else is mounted from a path of the engine's host."""
    env = docker_env(limits=SMALL)
    found = connect().api.inspect_container(env.container_id)
    mounted = sorted((m["Destination"], m["RW"]) for m in found["Mounts"] if m["Type"] != "volume")
    expected = [("/etc/hosts", False), ("/etc/resolv.conf", False)]
    assert (mounted, found["Config"]["NetworkDisabled"]) == (expected, True)
    look = "getent hosts localhost >/dev/null && hostname && cat /etc/hostname && ls /sys/class/net && echo >> /etc/hosts"
    ran = env.run(look).unwrap()
    assert ran.stdout == "sandbox\nsandbox\nlo\n"
    assert "denied" in ran.stderr or "Read-only" in ran.stderr
    assert env.run("grep -c localhost /etc/hosts").unwrap().output == "2\n"
    assert env.run("cat /etc/resolv.conf").unwrap().output == "nameserver 127.0.0.1\n"


def test_an_engine_that_mounts_nothing_by_a_path_gets_its_network_code(
    docker_env: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker Desktop may refuse a path that is not shared with it."""
    create, tries = container.create, []

    def refuse(client: docker.DockerClient, image_id: str, name: str, runtime: RuntimeVolume, shape: container.Shape) -> str:
        tries.append(runtime.etc)
        if runtime.etc:
            raise docker.errors.APIError(f"mounts denied: the path {runtime.etc}/hosts is not shared")
        return create(client, image_id, name, runtime, shape)

    monkeypatch.setattr(container, "create", refuse)
    try:
        for _ in range(2):
            env = docker_env(limits=SMALL)
            assert connect().api.inspect_container(env.container_id)["Config"].get("NetworkDisabled") is not True
            assert env.run("getent hosts localhost && ls /sys/class/net").unwrap().output.endswith("\nlo\n")
    finally:
        forget_runtime(connect())
    assert [bool(etc) for etc in tries] == [True, True, False, False]


def test_a_root_that_may_be_changed_has_an_etc_hosts_of_its_own(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, profile="root")
    assert all(m["Type"] == "volume" for m in connect().api.inspect_container(env.container_id)["Mounts"])
    assert env.run("echo 127.0.0.9 mine >> /etc/hosts; getent hosts mine localhost | wc -l").unwrap().output == "2\n"
