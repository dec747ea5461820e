"""What waits while a sandbox is paused, and what is said of one that ended while its orchestrator was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.aio import AsyncEnvironment
from sandbox.docker.engine.client import connect
from sandbox.network.streams import Streams

from .observing import within
from .own_engine import IMAGE, IN_A_PROCESS, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

SMALL = Limits(memory_bytes=256 << 20)
STOPPED = (
    IN_A_PROCESS
    + """
with DockerEnvironment(IMAGE, limits=Limits(memory_bytes=256 << 20), keep=True, keep_seconds=2.0) as env:
    print("there", flush=True)
    input()
    answer = env.run("true")
    print(answer.error, answer.hint, flush=True)
"""
)


def resumed_after(env: DockerEnvironment, seconds: float) -> threading.Timer:
    """Paused now, and resumed then."""
    env.pause()
    timer = threading.Timer(seconds, env.resume)
    timer.start()
    return timer


def struck_after(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A Ctrl-C comes when the engine has done ``name``, and before its answer is heard; once."""
    def connected(*args: Any) -> Any:
        client = connect(*args)

        class Api:
            def __getattr__(self, wanted: str) -> Any:
                return struck if wanted == name else getattr(client.api, wanted)

        def struck(*given: Any) -> None:
            getattr(client.api, name)(*given)
            monkeypatch.setattr("sandbox.docker.backend.connect", connect)
            raise KeyboardInterrupt

        return SimpleNamespace(api=Api())

    monkeypatch.setattr("sandbox.docker.backend.connect", connected)


def test_ctrl_c_in_a_pause_or_resume_leaves_a_sandbox_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """D18: after one in ``resume`` it stayed paused for good ("is not paused"), after one in ``pause`` nothing could wake it."""
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        struck_after(monkeypatch, "pause")
        with pytest.raises(KeyboardInterrupt):
            env.pause()
        assert env.run("echo on").unwrap().output == "on\n"
        env.pause()
        struck_after(monkeypatch, "unpause")
        with pytest.raises(KeyboardInterrupt):
            env.resume()
        env.resume()
        assert env.run("echo on").unwrap().output == "on\n"

        def struck(streams: Streams) -> None:
            streams.pause_sending()
            raise KeyboardInterrupt

        monkeypatch.setattr(env, "_drain", struck)
        with pytest.raises(KeyboardInterrupt):
            env.pause()
        assert env._network.streams is not None
        assert env._network.streams._flowing.is_set()


def test_a_sandbox_that_was_woken_from_outside_can_be_resumed() -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.pause()
        connect().api.unpause(env.container_id)
        env.resume()
        assert env.run("echo on").unwrap().output == "on\n"


def test_a_paused_sandbox_is_described_at_once() -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.pause()
        sections, _ = within(0.5, env.describe)
        assert sections["left"] == "paused"
        env.resume()
        assert "memory" in env.describe()["left"]


def test_who_follows_a_command_waits_through_a_pause() -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        command = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done"
        ident = env.run(command, background=True).unwrap().id
        said, resuming = "", None
        for chunk in env.follow(ident):
            said += chunk.text
            resuming = resuming or resumed_after(env, 1.5)
        assert said.split() == ["1", "2", "3", "4", "5", "6"]
        assert resuming is not None
        resuming.join()


def test_coroutines_wait_through_a_pause_as_well() -> None:
    async def use(env: DockerEnvironment) -> str:
        ident = env.run("for i in 1 2 3 4; do echo $i; sleep 0.3; done", background=True).unwrap().id
        said, resuming = "", None
        async for chunk in AsyncEnvironment(env).follow(ident):
            said += chunk.text
            resuming = resuming or resumed_after(env, 1.5)
        return said

    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        assert asyncio.run(use(env)).split() == ["1", "2", "3", "4"]


def test_a_pause_does_not_count_for_what_was_typed() -> None:
    program = "read line; for i in 1 2 3; do sleep 0.4; echo part; done; echo answered $line; read more"
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        ident = env.run(program, background=True, wait_seconds=5).unwrap().id
        assert ident is not None
        pausing = threading.Timer(0.5, lambda: resumed_after(env, 5.0))
        pausing.start()
        answer = env.send(ident, "hello\n", wait_seconds=5).unwrap()
        assert answer.output.endswith("answered hello\n")


def test_a_kept_one_names_its_own_patience_when_its_orchestrator_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(process.pid, signal.SIGCONT)
        said, _ = process.communicate("go on\n", timeout=30)
    assert "nothing from this process for 2 seconds" in said
    assert "keep_seconds" in said
    assert "lease_seconds" not in said
