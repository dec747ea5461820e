"""Servers that commands leave running are told of, once, with whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.envelope import Envelope, Notice
from sandbox.environment.sandboxed import SandboxedEnvironment

from .checks import done

SERVER = """python3 -u -c '
import os, socket, sys, time
time.sleep(float(sys.argv[2]))
made = [socket.create_server((sys.argv[1], 0))]
port = made[0].getsockname()[1]
print("port", port)
while True:
    line = sys.stdin.readline() if len(sys.argv) > 3 else time.sleep(600)
    made.pop().close()
    print("closed")
    sys.stdin.readline()
    made.append(socket.create_server((sys.argv[1], port)))
    print("again")
'"""


def listening(answer: Envelope[Any]) -> list[Notice]:
    return [notice for notice in answer.notices if notice.code == "server_listening"]


@pytest.fixture(autouse=True)
def _nothing_is_left(env: SandboxedEnvironment) -> Iterator[None]:
    """Environments are shared: whatever a test comes to, its servers end."""
    before = {command.id for command in done(env.processes()).commands}
    yield
    for command in done(env.processes()).commands:
        if command.id not in before:
            env.kill(command.id)


@pytest.mark.needs("shell", "python")
def test_a_server_in_the_background_is_told_once_with_its_command(env: SandboxedEnvironment) -> None:
    ident = done(env.run(f"{SERVER} 127.0.0.1 0.1", background=True)).id
    answer = env.wait_for(id=ident, log=r"port (\d+)")
    port = done(answer).groups[0]
    told = [*listening(answer), *listening(env.run("true"))]
    assert [(n.message, n.hint) for n in told] == [
        (f"A server now listens on port {port}, of the command {ident}.", f"In this sandbox it is at 127.0.0.1:{port}.")
    ]
    assert not listening(env.list("."))
    done(env.kill(ident))
    assert not listening(env.run("true"))


@pytest.mark.needs("shell", "python")
def test_one_that_comes_back_is_told_again(env: SandboxedEnvironment) -> None:
    ident = done(env.run(f"{SERVER} 0.0.0.0 0 x", session=None, wait_seconds=0.0)).id
    answer = env.wait_for(id=ident, log=r"^port \d")
    assert len([*listening(answer), *listening(env.run("true", session=None))]) == 1
    done(env.send(ident, "\n", wait_seconds=0))
    done(env.wait_for(id=ident, log="closed"))
    assert not listening(env.run("true", session=None))
    sent = env.send(ident, "\n", wait_seconds=0)
    answers = [sent, env.wait_for(id=ident, log="again"), env.run("true", session=None)]
    assert len([notice for answer in answers for notice in listening(answer)]) == 1
    done(env.kill(ident))


@pytest.mark.needs("shell", "python")
def test_one_that_a_command_leaves_behind_is_told(env: SandboxedEnvironment) -> None:
    ran = env.run(f"{SERVER} 0.0.0.0 0 > left.log & until grep -q port left.log; do sleep 0.02; done")
    ident = done(ran).id
    assert [n.message.split(",")[1] for n in listening(ran)] == [f" of the command {ident}."]
    done(env.kill(ident))


@pytest.mark.needs("shell", "python")
def test_one_within_a_command_that_is_waited_for_is_not(env: SandboxedEnvironment) -> None:
    other = done(env.run("exec sleep 63", background=True)).id
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); open('up', 'w'); time.sleep(0.6)"
    going = env.run(f'python3 -c "{code}" & p=$!; until [ -e up ]; do sleep 0.02; done; wait $p; rm up')
    assert not listening(going)
    done(env.kill(other))


REFUSED = """python3 -c '
import socket
for host in ("localhost", "127.0.0.1", "::1"):
    try:
        socket.create_connection((host, 8123))
    except OSError as error:
        print(host, error.strerror)
'"""


@pytest.mark.needs("shell", "isolated", "python")
def test_localhost_refuses_where_nothing_listens(env: SandboxedEnvironment) -> None:
    """A11: the IPv6 try said "Cannot assign requested address", which points to a fault that is not there."""
    assert done(env.run(REFUSED)).output.splitlines() == [
        f"{host} Connection refused" for host in ("localhost", "127.0.0.1", "::1")
    ]


@pytest.mark.needs("shell", "isolated", "python")
def test_a_server_on_ipv6_alone_is_told_with_its_address(env: SandboxedEnvironment) -> None:
    server = SERVER.replace("(sys.argv[1], 0)", "(sys.argv[1], 0), family=socket.AF_INET6")
    ident = done(env.run(f"{server} ::1 0.1", background=True)).id
    answer = env.wait_for(id=ident, log=r"port (\d+)")
    port = done(answer).groups[0]
    told = [*listening(answer), *listening(env.run("true"))]
    assert [n.hint for n in told] == [f"In this sandbox it is at [::1]:{port}."]
