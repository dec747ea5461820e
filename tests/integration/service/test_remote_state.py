"""The state of files over RemoteEnvironment, and what a sandbox has of its own, while its service is killed in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import AsyncRemoteEnvironment, Limits, Network, RemoteEnvironment
from tests.contract.checks import done, refused
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
SMALL = Limits(memory_bytes=64 << 20)


@pytest.fixture(scope="module")
def mortal(place: Path) -> Iterator[ServiceProcess]:
    """A service that the tests of this module kill."""
    service = ServiceProcess(place / "mortal", "--stop-all").start()
    yield service
    service.stop()


@pytest.fixture
def env(mortal: ServiceProcess) -> Iterator[RemoteEnvironment]:
    made = RemoteEnvironment(IMAGE, limits=SMALL, url=mortal.url, api_key=mortal.key)
    with made:
        yield made


def killed_during(service: ServiceProcess, seconds: float, ask: Callable[[], Any]) -> Any:
    """Return what ``ask`` returns, while the service is killed so long after its beginning, and started again."""
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    asking.start()
    time.sleep(seconds)
    service.kill()
    service.start()
    asking.join(90)
    return answers[0]


def test_checkpoints_rollbacks_and_forks_are_done_once_and_truly(
    mortal: ServiceProcess, env: RemoteEnvironment, tmp_path: Path
) -> None:
    done(env.run("echo one > a; head -c 20000000 /dev/zero > large"))
    made = done(killed_during(mortal, 0.1, lambda: env.checkpoint("then")))
    assert (made.id, made.files) == ("then", 2)
    assert [each.id for each in done(env.checkpoints()).checkpoints] == ["then"]
    done(env.run("echo two > a; rm large"))
    assert done(killed_during(mortal, 0.1, lambda: env.rollback("then"))).id == "then"
    assert done(env.run("cat a; wc -c < large")).output == "one\n20000000\n"
    forked = done(env.fork(2, "then"))
    for each in forked.environments:
        with each:
            assert done(each.run("cat a")).output == "one\n"
    saved = done(env.save_checkpoint("then", tmp_path / "saved"))
    assert saved.size_bytes == (tmp_path / "saved").stat().st_size > 20_000_000
    assert done(env.delete_checkpoint("then")).id == "then"
    assert done(killed_during(mortal, 0.05, lambda: env.load_checkpoint(tmp_path / "saved", "again"))).id == "again"
    done(env.run("rm a large"))
    done(env.rollback("again"))
    assert done(env.run("cat a")).output == "one\n"
    with Api(mortal) as api:
        assert len(api.call("GET", "/sandboxes", params={"state": "running"})["items"]) == 1
        assert len(list((mortal.folder / "checkpoints").glob("*/*"))) == 1


def test_a_rollback_is_not_repeated_after_something_else(mortal: ServiceProcess, env: RemoteEnvironment) -> None:
    """A service that does not know what became of it says so, and does not undo what was done since."""
    done(env.checkpoint("then"))
    done(env.write("a", "before"))
    path, headers = f"/sandboxes/{env.id}", {"X-Request-Id": "back"}
    with Api(mortal) as api:
        assert api.call("POST", f"{path}/rollback", {"id": "then"}, headers=headers)["tool_executed"] is True
        done(env.write("a", "after"))
        mortal.kill()
        mortal.start()
        again = api.call("POST", f"{path}/rollback", {"id": "then"}, headers=headers)
        assert (again["code"], again["effects"]) == ("transfer_incomplete", "unknown")
    assert done(env.read("a")).content == "after"


def test_state_in_a_loop(mortal: ServiceProcess, tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncRemoteEnvironment(IMAGE, limits=SMALL, url=mortal.url, api_key=mortal.key) as env:
            done(await env.write("a", "one"))
            checkpointing = asyncio.create_task(env.checkpoint("then"))
            await asyncio.sleep(0.1)
            mortal.kill()
            await asyncio.to_thread(mortal.start)
            assert done(await checkpointing).id == "then"
            done(await env.save_checkpoint("then", tmp_path / "saved"))
            done(await env.write("a", "two"))
            done(await env.rollback("then"))
            assert done(await env.load_checkpoint(tmp_path / "saved", "again")).id == "again"
            (fork,) = done(await env.fork(checkpoint="again")).environments
            with fork:
                assert done(fork.read("a")).content == "one"
            done(await env.delete_checkpoint("again"))
            refused(await env.rollback("again"), "checkpoint_not_found")

    asyncio.run(use())


def test_what_a_sandbox_was_made_with_is_read_back(mortal: ServiceProcess) -> None:
    """Rules, variables and all that forks need; a change of rules counts for the next service as well."""
    options: dict[str, Any] = {"url": mortal.url, "api_key": mortal.key}
    network = Network.allow("example.com").without("bad.example.com")
    made = RemoteEnvironment(IMAGE, limits=SMALL, network=network, env={"COLOUR": "red"}, read_roots=["/etc"], **options)
    with made as env:
        env.allow("example.org")
        before = env.describe()
        mortal.kill()
        mortal.start()
        attached = RemoteEnvironment.attach(env.id, **options)
        assert attached.network == env.network
        for each in (env, attached, *done(env.fork(1)).environments):
            after = each.describe()
            assert {name: after[name] for name in before if name != "left"} == {n: before[n] for n in before if n != "left"}
            assert done(each.run("echo $COLOUR")).output == "red\n"
            assert done(each.read("/etc/hosts")).content
            if each is not env:
                each.close()


def test_a_client_that_dies_leaves_its_sandbox_to_its_time(mortal: ServiceProcess) -> None:
    program = f"""
from sandbox import Limits, RemoteEnvironment
env = RemoteEnvironment({IMAGE!r}, limits=Limits(memory_bytes=64 << 20), time_to_live_seconds=5).start()
print(env.id, flush=True)
env.run("sleep 600", timeout_seconds=700)
"""
    environ = {**os.environ, "GAMEBOX_URL": mortal.url, "GAMEBOX_API_KEY": mortal.key}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        ident = client.stdout.readline().strip()
        client.send_signal(signal.SIGKILL)
    with Api(mortal) as api:
        assert api.state(ident) == "running"
        other = RemoteEnvironment.attach(ident, url=mortal.url, api_key=mortal.key)
        assert done(other.run("echo here", session=None)).output == "here\n"
        other.close()
        assert eventually(lambda: api.state(ident) == "ended", 30)
        assert api.call("GET", f"/sandboxes/{ident}")["reason"] == "lifetime_over"


def test_closing_a_stream_leaves_the_command_and_cancelling_ends_it(mortal: ServiceProcess) -> None:
    """A task that is cancelled, or a stream that is closed, ends its command on the service."""

    async def use() -> None:
        async with AsyncRemoteEnvironment(IMAGE, limits=SMALL, url=mortal.url, api_key=mortal.key) as env:
            chunks = env.stream("while true; do echo x; sleep 0.1; done", session=None)
            async for chunk in chunks:
                assert chunk.text
                break
            await chunks.aclose()
            running = asyncio.create_task(env.run("sleep 600", session=None, timeout_seconds=700))
            while not any(each.running for each in done(await env.processes()).commands):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not any(each.running for each in done(await env.processes()).commands)

    asyncio.run(use())
