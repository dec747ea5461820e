"""Pools on an engine: what a member is before it is acquired, that none is handed out dead, and that nothing is left of any."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import AsyncSandboxPool, Limits, Network, SandboxPool, Service
from sandbox.docker.engine.client import connect
from sandbox.docker.kept import labels as marks
from sandbox.docker.kept import waiting
from sandbox.docker.kept.inventory import sandboxes
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import ErrorCode, SandboxError
from tests.programs import run_gamebox

from .observing import eventually, pause
from .own_engine import ROOT

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=128 << 20, disk="memory")
SECRET = "s3cret-that-no-member-knows"


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(size=2, limits=SMALL, env={"TOKEN": SECRET}) as pool:
        yield pool
        pool.close(wait=True)


def members(pool: SandboxPool) -> list[str]:
    """The ids of the containers that stand by, when the pool is full, in the order in which they are acquired."""
    assert eventually(lambda: pool.stats().ready == 2)
    return [str(member.environment.backend.container_id) for member in pool._members._ready]


def test_what_is_acquired_is_as_if_it_was_started_for_the_caller(pool: SandboxPool, tmp_path: Path) -> None:
    (tmp_path / "from-the-host").write_text("contents\n")
    rules = Network.allow("example.com")
    with pool.acquire(workspace=tmp_path, network=rules, env={"MINE": "1"}, lifetime_seconds=60.0) as env:
        assert env.run("cat from-the-host; echo $MINE$TOKEN; echo new > new").unwrap().output == "contents\n1\n"
        assert [change.path for change in env.changes().unwrap().changes] == ["new"]
        assert env.network == rules
        denied = env.run("curl -sS https://example.org").unwrap()
        assert denied.exit_code != 0
        left = env.usage().unwrap()
        assert left.lifetime_left_seconds is not None
        assert left.lifetime_left_seconds <= 60.0
        assert "example.com" in env.describe()["network"]
        (twin,) = env.fork().unwrap().environments
        with twin:
            assert twin.run("cat new; echo $MINE").unwrap().output == "new\n1\n"
    with pool.acquire() as env:
        assert env.run("ls; echo $TOKEN$MINE").unwrap().output == f"{SECRET}\n"


def test_a_closed_sandbox_is_destroyed(pool: SandboxPool) -> None:
    env = pool.acquire()
    ident = env.container_id
    env.close(wait=True)
    assert ident not in [each.id for each in sandboxes(connect(), every=True)]


def test_a_member_holds_nothing_of_a_caller(pool: SandboxPool) -> None:
    """Its guest's memory, as root sees it, does not have the variable until it is acquired."""
    member = members(pool)[0]
    pid = int(connect().api.inspect_container(member)["State"]["Pid"])
    if os.geteuid() or not os.path.exists(f"/proc/{pid}"):
        pytest.skip("needs root beside the engine")
    assert SECRET.encode() not in memory(pid)
    with pool.acquire() as env:
        assert env.container_id == member
        assert SECRET.encode() in memory(pid)


def test_a_member_has_rehearsed_and_nobody_sees_it(pool: SandboxPool) -> None:
    """The guest has loaded what compares files before and after a command, and lists no command of its own."""
    member = members(pool)[0]
    maps = Path(f"/proc/{connect().api.inspect_container(member)['State']['Pid']}/maps")
    if os.geteuid() or not maps.exists():
        pytest.skip("needs root beside the engine")
    assert eventually(lambda: "tree_states.so" in maps.read_text())
    with pool.acquire() as env:
        assert env.container_id == member
        assert env.sessions().unwrap().sessions == ()
        assert env.processes().unwrap().commands == ()
        first = env.run("touch file; ls -A").unwrap()
        assert (first.id, first.output) == ("c1", "file\n")


def memory(pid: int) -> bytes:
    found = []
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(number, 16) for number in span.split("-"))
                try:
                    file.seek(start)
                    found.append(file.read(end - start))
                except (OSError, ValueError, OverflowError):  # a mapping of the kernel's
                    continue
    return b"".join(found)


def test_a_member_that_was_killed_is_not_handed_out(pool: SandboxPool) -> None:
    killed = members(pool)
    before = pool.stats().discarded
    for ident in killed:
        connect().api.kill(ident)
    for _ in range(3):
        with pool.acquire() as env:
            assert env.container_id not in killed
            assert env.run("echo alive").unwrap().output == "alive\n"
    assert pool.stats().discarded == before + 2


def test_a_member_that_does_not_answer_is_not_handed_out(pool: SandboxPool) -> None:
    """It is paused, so that its pipe says nothing of it."""
    silent = members(pool)[0]
    pause(connect(), silent)
    before = pool.stats().discarded
    with pool.acquire() as env:
        assert env.container_id != silent
        assert env.run("echo alive").unwrap().output == "alive\n"
    assert pool.stats().discarded == before + 1
    assert eventually(lambda: silent not in [each.id for each in sandboxes(connect(), every=True)])


def test_gamebox_ls_says_what_waits_in_a_pool(pool: SandboxPool) -> None:
    def state(ident: str) -> Any:
        (found,) = [each for each in json.loads(run_gamebox("ls", "--json").stdout) if each["id"] == ident]
        (line,) = [line for line in run_gamebox("ls").stdout.splitlines() if line.startswith(ident[:12])]
        return found["state"], line

    first = members(pool)[0]
    found, line = state(first)
    assert found == "waiting"
    assert f"waits in a pool of pid {os.getpid()}" in line
    refused = run_gamebox("rm", first[:12])
    assert "sandbox_owned" in refused.stderr
    with pool.acquire() as env:
        assert env.container_id == first
        found, line = state(first)
        assert found == "owned"
        assert f"owned by pid {os.getpid()}" in line


def test_names_of_services_are_known_to_members() -> None:
    service = Service("api", "http://127.0.0.1:9", headers={"X-Key": SECRET})
    with SandboxPool(size=1, limits=SMALL, services=[service]) as pool, pool.acquire() as env:
        assert "api.internal" in env.run("cat /etc/hosts").unwrap().output


def test_a_spec_makes_a_pool() -> None:
    spec = SandboxSpec(limits=SMALL, profile="root")
    with SandboxPool(spec, size=1) as pool, pool.acquire() as env:
        assert env.run("id -u").unwrap().output == "0\n"
        assert env.spec == spec


def test_what_keeps_a_sandbox_from_being_made_is_raised_where_it_is_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    with SandboxPool(size=1, image="gamebox-test-of-no-registry") as pool:
        with pytest.raises(SandboxError) as raised:
            pool.acquire()
        assert raised.value.code is ErrorCode.image_not_found
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with SandboxPool(size=1) as pool:
        with pytest.raises(SandboxError) as raised:
            pool.acquire()
        assert raised.value.code is ErrorCode.engine_unavailable


OWNER = """
import sys, time
from sandbox import Limits, SandboxPool
pool = SandboxPool(size=2, limits=Limits(memory_bytes=128 << 20, disk="memory")).start()
while pool.stats().ready < 2:
    time.sleep(0.01)
used = pool.acquire()
print("ready", flush=True)
time.sleep(600)
"""


def left_of(pid: int) -> list[str]:
    found = connect().api.containers(all=True, filters={"label": [f"{marks.PID_LABEL}={pid}"]})
    return [each["Names"][0].removeprefix("/") for each in found]


def test_nothing_is_left_of_a_pool_whose_owner_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    names = left_of(owner.pid)
    assert len(names) >= 2
    assert any(map(waiting.waits, names))
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert eventually(lambda: not left_of(owner.pid))
    waiting.note("gamebox-0123456789abcdef")
    waiting.forget("gamebox-0123456789abcdef")
    assert not any(map(waiting.waits, names)), "the next pool forgets them"


def test_the_end_of_a_program_removes_what_stands_by() -> None:
    program = OWNER.replace("time.sleep(600)", "")
    done = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.communicate(timeout=60)[0] == "ready\n"
    assert eventually(lambda: not left_of(done.pid))


def test_tasks_acquire_from_an_engine_too() -> None:
    async def one(pool: AsyncSandboxPool, number: int) -> str:
        async with await pool.acquire(env={"N": str(number)}) as env:
            return (await env.sh("echo $N")).output

    async def main() -> None:
        async with AsyncSandboxPool(size=2, limits=SMALL) as pool:
            assert await asyncio.gather(*(one(pool, n) for n in range(4))) == ["0\n", "1\n", "2\n", "3\n"]

    asyncio.run(main())
