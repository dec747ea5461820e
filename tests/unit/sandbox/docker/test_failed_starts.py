"""Starts and ends that something interrupts: nothing is left behind, and what was begun can be ended again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from sandbox import DockerEnvironment, ErrorCode, Limits, LocalEnvironment, SandboxError, SideService
from sandbox.docker.backend import DockerBackend
from sandbox.docker.container.profiles import find_profile
from sandbox.docker.remover import remover
from sandbox.docker.services.group import ServiceGroup
from sandbox.docker.spec import SandboxSpec
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.local import LocalBackend
from sandbox.pipe.transport import Transport
from sandbox.state.file_state import FileState


class KeptBackend(LocalBackend):
    """A sandbox that stays when its environment is closed; notes how it is closed."""

    def __init__(self) -> None:
        super().__init__(None, Limits(), {})
        self.detached: list[bool] = []

    def outlives_close(self) -> bool:
        return True

    def close(self, *, detach: bool) -> None:
        self.detached.append(detach)
        super().close(detach=detach)


def test_a_start_that_fails_at_its_end_leaves_no_kept_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FileState, "begin", fails)
    backend = KeptBackend()
    with pytest.raises(KeyboardInterrupt):
        SandboxedEnvironment(backend).start()
    assert backend.detached == [False]


def test_a_kept_sandbox_that_was_closed_while_it_started_is_removed() -> None:
    class ClosedMeanwhile(KeptBackend):
        def check(self, facts: Mapping[str, Any], transport: Transport) -> None:
            env._closed = True  # what ``close`` of another thread leaves if it comes before there is anything to remove

    backend = ClosedMeanwhile()
    env = SandboxedEnvironment(backend, track_changes=False)
    with pytest.raises(SandboxError, match="was closed"):
        env.start()
    assert backend.detached == [False]


def test_a_close_that_ctrl_c_ended_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    env = LocalEnvironment().start()
    process, stream, folder = env.backend.process, env.backend.stream, env.backend.temporary
    assert process is not None
    assert stream is not None
    assert folder is not None

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.close()
    env.close()
    assert process.returncode is not None
    assert stream._stdout.closed
    assert not os.path.exists(folder)


class Ownership:
    """What ``owners`` gives; notes how it is released."""

    def __init__(self) -> None:
        self.released: list[bool] = []

    def release(self, *, gone: bool = False) -> None:
        self.released.append(gone)


def test_a_kept_sandbox_whose_removal_ctrl_c_ended_is_owned_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held the lock until the process ended: nobody else could attach to it or remove it."""

    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    backend = DockerBackend(SandboxSpec(keep=True), find_profile("default"), Limits(), {}, print)
    backend.container_id, ownership = "a" * 64, Ownership()
    monkeypatch.setattr(backend, "_ownership", ownership)
    monkeypatch.setattr(remover, "add", fails)
    with pytest.raises(KeyboardInterrupt):
        backend.close(detach=False)
    assert ownership.released == [False]


def test_a_lease_of_years_is_kept() -> None:
    """Every wait for the pipe is for a part of it, and no system call waits for that long."""
    with LocalEnvironment(limits=Limits(lease_seconds=1e9)) as env:
        assert env.run("echo here").unwrap().output == "here\n"


def service_group() -> ServiceGroup:
    return ServiceGroup({"db": SideService(image="db:1", port=5432)}, print)


def test_side_services_whose_end_ctrl_c_interrupted_are_ended_by_the_next_close(monkeypatch: pytest.MonkeyPatch) -> None:
    group, closed = service_group(), []
    environment = DockerEnvironment()
    group._take(environment)

    def close(_: object) -> None:
        closed.append(True)
        if len(closed) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(DockerEnvironment, "close", close)
    with pytest.raises(KeyboardInterrupt):
        group.close()
    group.close()
    group.close()
    assert len(closed) == 2


def test_a_start_that_is_closed_before_its_side_services_begin_says_so() -> None:
    group, start = service_group(), Future[Any]()
    group._starts = {"db": start}
    group.close()
    assert not start.set_running_or_notify_cancel()  # what the thread does that would have begun it
    with pytest.raises(SandboxError) as caught:
        group.finish()
    assert caught.value.code is ErrorCode.sandbox_closed
