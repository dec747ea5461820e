"""Pauses that Ctrl-C interrupts, with an engine that takes its time, and pauses that the engine could not carry out."""

from __future__ import annotations

from typing import Any

import docker.errors
import pytest
import requests

from sandbox.docker.backend import DockerBackend
from sandbox.docker.container.profiles import find_profile
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import SandboxError
from sandbox.limits import Limits


class SlowEngine:
    """Takes three seconds for everything; Ctrl-C comes during the first call."""

    def __init__(self) -> None:
        self.api, self.timeout, self.state, self.struck = self, 0, "running", False
        self.refusals: list[str] = []

    def connect(self, timeout_seconds: int = 60, *_: object) -> SlowEngine:
        self.timeout = timeout_seconds
        return self

    def _become(self, state: str) -> None:
        if self.timeout < 3:
            raise requests.exceptions.ReadTimeout
        if self.state == state:
            raise docker.errors.APIError(f"is {state}")
        self.state = state
        if not self.struck:
            self.struck = True
            raise KeyboardInterrupt

    def pause(self, _: str) -> None:
        if self.refusals:
            raise docker.errors.APIError("500 Server Error", None, self.refusals.pop())
        self._become("paused")

    def unpause(self, _: str) -> None:
        self._become("running")

    def inspect_container(self, _: str) -> dict[str, Any]:
        if self.timeout < 3:
            raise requests.exceptions.ReadTimeout
        return {"State": {"Status": self.state}}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SlowEngine:
    made = SlowEngine()
    monkeypatch.setattr("sandbox.docker.backend.connect", made.connect)
    monkeypatch.setattr("sandbox.docker.container.postmortem.connect", made.connect)
    return made


@pytest.fixture
def backend() -> DockerBackend:
    made = DockerBackend(SandboxSpec(), find_profile("default"), Limits(), {}, print)
    made.container_id = "a" * 64
    return made


def test_an_interrupted_pause_is_undone(engine: SlowEngine, backend: DockerBackend) -> None:
    with pytest.raises(KeyboardInterrupt):
        backend.freeze()
    assert engine.state == "running"


def test_an_interrupted_resume_can_be_repeated(engine: SlowEngine, backend: DockerBackend) -> None:
    engine.state = "paused"
    with pytest.raises(KeyboardInterrupt):
        backend.thaw()
    backend.thaw()
    assert engine.state == "running"


def test_what_could_not_be_frozen_is_frozen_again(engine: SlowEngine, backend: DockerBackend) -> None:
    engine.struck = True
    engine.refusals = 2 * ["Cannot pause container a: OCI runtime pause failed: unable to freeze: unknown"]
    backend.freeze()
    assert (engine.state, engine.refusals) == ("paused", [])


def test_a_pause_that_failed_for_another_reason_is_not_tried_again(engine: SlowEngine, backend: DockerBackend) -> None:
    engine.refusals = 2 * ["Cannot pause container a: OCI runtime pause failed: no cgroup: unknown"]
    with pytest.raises(SandboxError, match="could not pause the container") as caught:
        backend.freeze()
    assert caught.value.retryable
    assert len(engine.refusals) == 1
