"""The process that reads pages, in a container: it is the user's, and takes nothing from commands that they need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.guest.pages.readers import IDLE_SECONDS

from .observing import HostProcess, eventually, of_commands

pytestmark = pytest.mark.engine
URL = "http://127.0.0.1:8019/"
SERVER = "mkdir -p /tmp/site; cd /tmp/site; echo '<title>Hi</title>' > index.html; exec python3 -m http.server 8019"


@pytest.fixture(scope="module")
def env() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(limits=Limits(memory_bytes=128 << 20)) as made:
        yield made


def open_page(env: DockerEnvironment) -> HostProcess:
    """Open a page of a server in the sandbox. Returns the process that has read it."""
    if not env.wait_for(port=8019, timeout_seconds=0.01).ok:
        env.run(SERVER, background=True).unwrap()
        env.wait_for(port=8019).unwrap()
    assert env.browse(URL).unwrap().title == "Hi"
    return readers(env)[0]


def readers(env: DockerEnvironment) -> list[HostProcess]:
    return [process for process in of_commands(env) if "pages.page" in process.args]


def test_it_is_confined_like_a_command(env: DockerEnvironment) -> None:
    ident = env.run("exec sleep 600", background=True).unwrap().id
    sleeper = eventually(lambda: next((each for each in of_commands(env) if each.args == "sleep 600"), None))
    assert sleeper, "bash becomes it"
    names = ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters")
    found = [status(process.pid, names) for process in (open_page(env), sleeper)]
    assert found[0] == found[1]
    assert found[0]["Uid"].split()[0] == "1000"
    listed = [each.command for command in env.processes().unwrap().commands for each in command.processes]
    assert not [command for command in listed if "pages.page" in command]
    env.kill(ident).unwrap()


def status(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name in names}
    return {**found, "oom_score_adj": Path(f"/proc/{pid}/oom_score_adj").read_text(), "nice": str(os.getpriority(0, pid))}


def test_commands_may_kill_it(env: DockerEnvironment) -> None:
    first = open_page(env)
    assert open_page(env).pid == first.pid
    env.run("kill -9 -1", session=None)
    assert eventually(lambda: not of_commands(env))  # the server has ended, too
    assert open_page(env).pid != first.pid


def test_a_command_that_needs_the_memory_gets_it(env: DockerEnvironment) -> None:
    open_page(env)
    program = "import os, time; x = bytearray(os.urandom(1 << 20)) * 72; time.sleep(1.5); print(len(x) >> 20)"
    done = env.run(argv=["python3", "-c", program]).unwrap()
    assert (done.output, done.oom_killed) == ("72\n", False)
    assert eventually(lambda: not readers(env), IDLE_SECONDS / 2)
    open_page(env)
