"""An orchestrator without file descriptors: every way says so in words, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

PREAMBLE = """
import json, os, resource, socket, sys, threading, time
from sandbox import DockerEnvironment, Limits, LocalEnvironment, Network
from sandbox.errors import SandboxError

held = []

def use_up(but=0):
    "Take all descriptors but so many."
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for _ in range(2):  # what is being closed just now is free a moment later
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            time.sleep(0.3)
    for _ in range(but):
        os.close(held.pop())

def give_back():
    while held:
        os.close(held.pop())
"""


# As the command line does it: what connections need is not loaded yet.
LAZY = PREAMBLE.replace(
    "from sandbox import DockerEnvironment, Limits, LocalEnvironment, Network",
    "from sandbox.docker.environment import DockerEnvironment; from sandbox.limits import Limits",
)


def told(program: str, preamble: str = PREAMBLE) -> Any:
    """What a process of its own prints last, as JSON; it ends by itself."""
    ran = subprocess.run(
        [sys.executable, "-c", preamble + textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "Traceback" not in ran.stderr.replace("a way to", ""), ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_start_without_descriptors_is_refused_in_words_however_far_it_came() -> None:
    said = told(
        """
        with LocalEnvironment(limits=Limits(memory_bytes=256 << 20)) as warm:  # what is loaded late is loaded
            warm.run("true").unwrap()
        seen = []
        for left in (0, 3, 9, 20, 24, 26):
            use_up(left)
            try:
                LocalEnvironment(limits=Limits(memory_bytes=256 << 20)).start().close()
                seen.append(["started", "", ""])
            except SandboxError as error:
                seen.append([error.code.value, error.message, error.hint])
            finally:
                give_back()
        LocalEnvironment().start().close()
        print(json.dumps(seen))
        """
    )
    refused = [one for one in said if one[0] != "started"]
    assert len(refused) >= 4
    for code, message, hint in refused:
        assert code == "host_descriptor_limit"
        assert message == "The sandbox could not be started: this process has no file descriptor left (512 is its limit)."
        assert "ulimit -n" in hint


@pytest.mark.engine
def test_a_container_that_cannot_be_started_is_refused_in_words() -> None:
    said = told(
        """
        small = Limits(memory_bytes=256 << 20)
        DockerEnvironment(limits=small).start().close()
        seen = []
        for left in (0, 5, 24):
            use_up(left)
            try:
                DockerEnvironment(limits=small).start().close()
                seen.append("started")
            except SandboxError as error:
                seen.append(error.code.value)
            finally:
                give_back()
        print(json.dumps(seen))
        """
    )
    assert said[0] == "host_descriptor_limit"
    assert set(said) <= {"host_descriptor_limit", "started"}


@pytest.mark.engine
def test_a_first_connection_without_descriptors_fails_alone() -> None:
    """What it needs cannot even be loaded; the sandbox went with it, as if its pipe had broken."""
    said = told(
        """
        with DockerEnvironment(limits=Limits(memory_bytes=256 << 20)) as env:
            env.run("true").unwrap()
            assert "asyncio" not in sys.modules
            seen = []
            for but in (0, 1, 2):
                use_up(but)
                seen.append(env.run("curl -sS http://example.com").to_dict())
                give_back()
            env.run("true").unwrap()
            seen.append(env.run("curl -sS http://example.com").to_dict())
            print(json.dumps(seen))
        """,
        LAZY,
    )
    for answer in said[:3]:
        assert answer["tool_executed"], answer
        assert "no file descriptor left" in json.dumps(answer), answer
    assert "no file descriptor left" not in json.dumps(said[3])
    assert "network_denied" in json.dumps(said[3])


def test_a_port_cannot_be_forwarded_without_descriptors_and_can_with_some() -> None:
    said = told(
        """
        with LocalEnvironment() as env:
            use_up()
            first = env.forward(8000)
            give_back()
            there = env.forward(8001)
            use_up()
            second = env.forward(8002)
            give_back()
            last = env.forward(8003)
            print(json.dumps([one.to_dict() for one in (first, there, second, last)]))
        """
    )
    for refused in (said[0], said[2]):
        assert refused["code"] == "host_descriptor_limit"
        assert "could not be forwarded: this process has no file descriptor left" in refused["error"]
        assert "ulimit -n" in refused["hint"]
    assert said[1]["tool_executed"]
    assert said[3]["tool_executed"]


@pytest.mark.engine
def test_a_connection_that_cannot_be_dialled_says_why_and_the_next_one_goes() -> None:
    said = told(
        """
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]

        def serve():
            while True:
                sock = server.accept()[0]
                sock.recv(999)
                sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
                sock.close()

        threading.Thread(target=serve, daemon=True).start()
        seen = []
        rules = Network.allow(f"site.test:{port}", names={"site.test": "127.0.0.1"})
        with DockerEnvironment(network=rules, limits=Limits(memory_bytes=256 << 20)) as env:
            asking = f"curl -sS -m 20 http://site.test:{port}/"
            for _ in range(2):  # before the connections' own thread is there, and after
                use_up()
                seen.append(env.run(asking).unwrap().output)
                env.allow("other.example.com")
                give_back()
                seen.append(env.run(asking).unwrap().output)
        print(json.dumps(seen))
        """
    )
    assert said[1::2] == ["ok", "ok"]
    for refused in said[::2]:
        assert "this process has no file descriptor left" in refused


def test_the_end_of_a_sandbox_leaves_nothing_that_python_complains_of() -> None:
    """Python 3.13 printed "Exception ignored in: <http.client.HTTPResponse ...>"; older ones do so in development mode."""
    program = "from sandbox import DockerEnvironment\nwith DockerEnvironment() as env:\n    env.run('true').unwrap()\n"
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
