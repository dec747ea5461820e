"""Side services on a real engine: reached by name, ready when they say so, ended with the sandbox they stand beside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import docker
import docker.errors
import pytest

from sandbox import AsyncEnvironment, DockerEnvironment, Limits, Network, Ready, SideService
from sandbox.docker.engine.client import connect
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.services.group import ServiceGroup
from sandbox.errors import ErrorCode, SandboxError
from sandbox.ready import NotReadyError

from .made_images import build_image, remove_image
from .observing import eventually, within

pytestmark = pytest.mark.engine

Make = Callable[..., DockerEnvironment]
SMALL = Limits(memory_bytes=256 << 20, pids=64)
# Answers every connection with its own name and the client's first line, and says so.
SERVER = """
import os, socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode().strip()
        print("asked", line, flush=True)
        self.wfile.write(f"{os.environ['WHO']} heard {line}\\n".encode())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
ports = [int(port) for port in sys.argv[1:]]
servers = [Server(("127.0.0.1", port), Handler) for port in ports]
print("up", flush=True)
import threading
for server in servers[1:]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
servers[0].serve_forever()
"""


ORCHESTRATOR = """
import time
from sandbox import DockerEnvironment, Ready, SideService
db = SideService(image="gamebox/base", command="sleep 600", port=1, ready=Ready(command="true"))
env = DockerEnvironment(services={"db": db}).start()
print(env.container_id, env.services["db"].environment.container_id, flush=True)
time.sleep(600)
"""


def service(who: str, *ports: int, **options: object) -> SideService:
    given = {"image": "gamebox/base", "limits": SMALL, "env": {"WHO": who}, "ports": ports, **options}
    given.setdefault("command", ("python3", "-c", SERVER, *map(str, ports)))
    return SideService(**given)  # type: ignore[arg-type]


def ask(name: str, port: int, line: str = "hello") -> str:
    program = (
        "import socket,sys; s=socket.create_connection((sys.argv[1], int(sys.argv[2])), 10); s.settimeout(10); "
        "s.sendall(sys.argv[3].encode()+b'\\n'); print(s.makefile().read(), end='')"
    )
    return f'python3 -c "{program}" {name} {port} {line}'


def sandboxes() -> set[str]:
    """The sandboxes of this process that are on the engine."""
    labels = [SANDBOX_LABEL, f"dev.gamebox.pid={os.getpid()}"]
    return {found["Id"] for found in connect().api.containers(all=True, filters={"label": labels})}


def test_services_are_reached_by_name_under_no_network(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, services={"db": service("db", 5432, 80), "cache.internal": service("cache", 6379)})
    assert env.network == Network.none()
    assert env.run(ask("db", 5432)).unwrap().output == "db heard hello\n"
    assert env.run(ask("db", 80, "low")).unwrap().output == "db heard low\n"
    assert env.run(ask("cache.internal", 6379)).unwrap().output == "cache heard hello\n"
    assert env.describe()["network"].endswith(
        "Beside this sandbox run, reached by name: db (port 5432, 80); cache.internal (port 6379)."
    )
    assert set(env.services) == {"db", "cache.internal"}
    assert env.services["db"].logs().unwrap().content == "up\nasked hello\nasked low\n"
    assert eventually(lambda: len(env.connections) == 3)
    assert {(one.host, one.port, one.rule) for one in env.connections} == {
        ("db", 5432, "service"), ("db", 80, "service"), ("cache.internal", 6379, "service"),
    }  # fmt: skip
    inside = env.services["db"].environment
    assert "python3" in inside.processes().unwrap().to_text()
    assert inside.describe()["network"].startswith("No network")


def test_http_clients_go_straight_to_a_name(docker_env: Make) -> None:
    web = service("web", 80, command="cd /etc && exec python3 -m http.server 80", ready=Ready(http="/hostname"))
    env = docker_env(limits=SMALL, env={"NO_PROXY": "near.example.com"}, services={"web.internal": web})
    assert env.run("curl -sS http://web.internal/hostname").unwrap().output == "sandbox\n"
    told = env.run("echo $no_proxy; echo $NO_PROXY").unwrap().output.splitlines()
    assert told[0] == told[1]
    assert {"localhost", "near.example.com", "web.internal"} <= set(told[0].split(","))
    assert eventually(lambda: len(env.connections) == 1)


def test_every_way_of_being_ready(docker_env: Make) -> None:
    late = "sleep 0.5; echo now; exec python3 -m http.server 8000"
    env = docker_env(
        limits=SMALL,
        services={
            "log": service("log", 8000, command=late, ready=Ready(log="^now$")),
            "command": service(
                "command", 8000, command="touch /tmp/up; sleep 600", ready=Ready(command="test -e /tmp/up")
            ),
            "http": service("http", 5000, 8000, command=late, ready=Ready(http=":8000/")),
        },
    )
    assert set(env.services) == {"log", "command", "http"}
    assert env.services["log"].logs().unwrap().content.startswith("now\n")


@pytest.mark.parametrize(
    ("options", "said", "log"),
    [
        ({"command": "echo no table >&2; exit 3"}, "ended with exit code 3", "no table"),
        (
            {"command": "echo waits; sleep 600", "ready": Ready(timeout_seconds=3)},
            "port 5432 is still not open",
            "waits",
        ),
        ({"command": "echo asks; sleep 600", "ready": Ready(log="up", timeout_seconds=3)}, "matches 'up'", "asks"),
    ],
)
def test_one_that_is_not_ready_fails_the_start_with_its_log(options: dict[str, object], said: str, log: str) -> None:
    before = sandboxes()
    other = service("other", 1, command="sleep 600", ready=Ready(command="false"))  # would take a minute
    env = DockerEnvironment(limits=SMALL, services={"other": other, "db": service("db", 5432, **options)})

    def start() -> NotReadyError:
        with pytest.raises(NotReadyError, match="The side service 'db' did not become ready") as caught:
            env.start()
        return caught.value

    error, _ = within(20, start)
    assert said in error.message
    assert error.logs.strip() == log
    assert log in str(error)
    assert error.code is ErrorCode.not_ready
    assert eventually(lambda: sandboxes() <= before)  # what was there before may have been about to go
    assert env.execute("run", {"command": "true"}).to_dict()["code"] == "sandbox_closed"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"image": "not/there"}, ErrorCode.image_not_found, "'not/there'"),
        ({"user": "nobody-knows"}, ErrorCode.invalid_configuration, "has no user 'nobody-knows'"),
        ({"command": ("not-a-program",)}, ErrorCode.program_not_found, "not-a-program"),
    ],
)
def test_one_that_cannot_start_is_named(options: dict[str, object], code: ErrorCode, said: str) -> None:
    before = sandboxes()
    with pytest.raises(SandboxError, match="The side service 'db' could not be started") as caught:
        DockerEnvironment(limits=SMALL, services={"db": service("db", 5432, **options)}).start()
    assert caught.value.code is code
    assert said in caught.value.message
    assert eventually(lambda: sandboxes() <= before)  # what was there before may have been about to go


@pytest.fixture(scope="module")
def made_image(client: docker.DockerClient) -> Iterator[str]:
    """An image with a user, a folder, variables and a command of its own."""
    lines = [
        "FROM gamebox/base", "RUN groupadd -g 4321 crew && useradd -u 1234 -g crew -m -d /srv/home server",
        "RUN mkdir /srv/data && chown server /srv/data", "USER server", "WORKDIR /srv/data", "ENV WHO=image",
        "ENTRYPOINT [\"sh\", \"-c\", \"id -u; id -g; pwd; echo $HOME $WHO; touch made && echo $1; sleep 600\", \"sh\"]",
        'CMD ["of-the-image"]',
    ]  # fmt: skip
    name = f"gamebox-test/{uuid.uuid4().hex}"
    build_image(client, "\n".join(lines), name)
    yield name
    remove_image(client, name)


def test_an_image_runs_as_it_says(docker_env: Make, made_image: str) -> None:
    def made(**options: Any) -> SideService:
        return SideService(image=made_image, port=1, limits=SMALL, **options)

    own = made(ready=Ready(log="of-the-image"))
    other = made(user="65534", command="id -u; id -g; sleep 600", ready=Ready(command="true"))
    root = made(
        user="root", command=("sh", "-c", "id -u; touch /etc/x && echo done; sleep 600"), ready=Ready(log="done")
    )
    env = docker_env(limits=SMALL, services={"own": own, "other": other, "root": root})
    assert env.services["own"].logs().unwrap().content == "1234\n4321\n/srv/data\n/srv/home image\nof-the-image\n"
    assert eventually(lambda: env.services["other"].logs().unwrap().content == "65534\n65534\n")
    assert env.services["root"].logs().unwrap().content == "0\ndone\n"


def test_the_end_of_a_service_is_told_once_with_its_last_lines(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, services={"db": service("db", 5432)})
    assert env.run(ask("db", 5432)).unwrap().output == "db heard hello\n"
    db = env.services["db"]
    db.environment.kill(db.command_id).unwrap()
    assert eventually(lambda: db.ended is not None)
    answer = env.run(ask("db", 5432))
    assert answer.unwrap().exit_code == 1
    [notice] = [one for one in answer.notices if one.code == "service_ended"]
    ended = "The service db has ended (killed by SIGKILL) and does not come back."
    assert notice.message == f'{ended} Its last lines: "up | asked hello".'
    assert not [one for one in env.run("true").notices if one.code == "service_ended"]
    assert db.logs().unwrap().content == "up\nasked hello\n"
    assert env.connections[-1].why == "the service db has ended: killed by SIGKILL"


def test_a_service_that_runs_out_of_memory_is_told_as_that(docker_env: Make) -> None:
    hog = "echo up; python3 -c 'import time; time.sleep(1); x = bytearray(1 << 30)'"
    env = docker_env(limits=SMALL, services={"db": service("db", 5432, command=hog, ready=Ready(log="up"))})
    assert eventually(lambda: env.services["db"].ended is not None, 20)
    [notice] = env.run("true").notices
    assert "(exit code 137, its 256.0 MiB of memory were used up)" in notice.message


def test_a_service_whose_sandbox_dies_is_told(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, services={"db": service("db", 5432)})
    connect().api.kill(env.services["db"].environment.container_id)
    assert eventually(lambda: env.services["db"].ended is not None)
    [notice] = env.run("true").notices
    assert notice.code == "service_ended"
    assert "killed from outside" in notice.message


def test_they_end_with_the_sandbox_they_stand_beside(docker_env: Make) -> None:
    before = sandboxes()
    env = docker_env(limits=SMALL, services={"one": service("one", 1000), "two": service("two", 2000)})
    threads = threading.active_count()
    assert len(sandboxes() - before) == 3
    env.close(wait=True)
    assert sandboxes() <= before
    assert eventually(lambda: threading.active_count() < threads)
    env.close()


def test_they_end_with_an_orchestrator_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ORCHESTRATOR], stdout=subprocess.PIPE, text=True) as orchestrator:
        assert orchestrator.stdout is not None
        made = orchestrator.stdout.readline().split()
        orchestrator.send_signal(signal.SIGKILL)
    assert len(made) == 2

    def gone() -> bool:
        for ident in made:
            try:
                connect().api.inspect_container(ident)
            except docker.errors.NotFound:
                continue
            return False
        return True

    assert eventually(gone, 15)


def test_a_service_is_shared_and_ends_with_its_own(docker_env: Make) -> None:
    with ServiceGroup({"db": service("db", 5432)}, print) as group:
        first = docker_env(limits=SMALL, services=group.running)
        second = docker_env(limits=SMALL, services={"data": group.running["db"]})
        assert first.run(ask("db", 5432, "one")).unwrap().output == "db heard one\n"
        first.close()
        assert second.run(ask("data", 5432, "two")).unwrap().output == "db heard two\n"
        assert group.running["db"].logs().unwrap().content == "up\nasked one\nasked two\n"
    assert "ConnectionResetError" in second.run(ask("data", 5432)).unwrap().stderr


def test_forks_have_services_of_their_own(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, services={"db": service("db", 5432)})
    [fork] = env.fork().unwrap().environments
    try:
        assert fork.run(ask("db", 5432, "fork")).unwrap().output == "db heard fork\n"
        assert env.services["db"].logs().unwrap().content == "up\n"
    finally:
        fork.close()


def test_a_large_answer_and_many_clients(docker_env: Make) -> None:
    web = service(
        "web", 8000, command="head -c 30000000 /dev/zero >/tmp/big; cd /tmp; exec python3 -m http.server 8000"
    )
    env = docker_env(limits=Limits(memory_bytes=512 << 20), services={"web": web})
    assert env.run("curl -sS http://web:8000/big | wc -c").unwrap().output.strip() == "30000000"
    many = "for i in $(seq 30); do curl -sS http://web:8000/ | grep -c big & done; wait"
    assert env.run(many).unwrap().output.split() == ["1"] * 30


def test_from_asyncio() -> None:
    async def work() -> None:
        env = AsyncEnvironment(DockerEnvironment(limits=SMALL, services={"db": service("db", 5432)}))
        async with env:
            assert (await env.run(ask("db", 5432))).unwrap().output == "db heard hello\n"
            assert (await env.service_logs("db")).unwrap().content == "up\nasked hello\n"
            unknown = await env.service_logs("cache")
            assert not unknown.ok
            assert unknown.code is ErrorCode.invalid_arguments
            assert "db" in unknown.hint

    asyncio.run(work())
