"""One sandbox that uses up all it can, beside another: both can be used, or say why not. Speed: ``python -m benchmarks hogs``."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.groups.hogs import HOGS
from sandbox import DockerEnvironment, Limits
from sandbox.errors import ErrorCode
from tests.integration.observing import eventually, of_commands

pytestmark = [pytest.mark.engine, pytest.mark.alone]

SECONDS = 2.0
ENDS = {ErrorCode.timeout, ErrorCode.no_space, ErrorCode.sandbox_unavailable}


@pytest.fixture(scope="module")
def neighbour() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(limits=Limits(memory_bytes=256 << 20)) as env:
        yield env


@pytest.mark.parametrize("name", HOGS)
def test_a_hog_and_its_neighbour(name: str, neighbour: DockerEnvironment) -> None:
    """Threat: what one sandbox uses up is missing in another, in the orchestrator, or in the sandbox itself afterwards."""
    hog = HOGS[name]
    answers: list[Any] = []
    with DockerEnvironment(limits=hog.limits(), **hog.options) as env:
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        busy = threading.Thread(target=lambda: answers.append(env.run(hog.source, timeout_seconds=SECONDS)))
        busy.start()
        while busy.is_alive():
            assert neighbour.run("echo beside", session=None, timeout_seconds=20).unwrap().output == "beside\n"
            assert neighbour.write("beside", "text").ok
        (answer,) = answers
        assert answer.ok or answer.code in ENDS, answer
        after = env.run("echo alive", session=None, timeout_seconds=20)
        if after.ok:
            assert after.result.output == "alive\n"
            assert env.read("none").code is ErrorCode.path_not_found  # type: ignore[union-attr]
        else:
            assert after.code is ErrorCode.sandbox_unavailable
            assert after.error
        assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
        assert eventually(lambda: threading.active_count() <= threads)
        if after.ok and not answer.ok and answer.code is ErrorCode.timeout:
            assert eventually(lambda: not of_commands(env)), of_commands(env)  # nothing it started is left running
