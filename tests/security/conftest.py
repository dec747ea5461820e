"""One sandbox for a module's tests, where they only need one that works."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sandbox import DockerEnvironment, Limits


@pytest.fixture(scope="module")
def living() -> Iterator[Callable[[], DockerEnvironment]]:
    """Answers the module's sandbox; another one when a test has lost it."""
    made: list[DockerEnvironment] = []

    def sandbox() -> DockerEnvironment:
        if not made or not made[-1].run("true", session=None).ok:
            made.append(DockerEnvironment(limits=Limits(memory_bytes=1 << 30, pids=256)).start())
        return made[-1]

    yield sandbox
    for env in made:
        env.close()


@pytest.fixture
def env(living: Callable[[], DockerEnvironment]) -> DockerEnvironment:
    """The module's sandbox, shown to work before each test."""
    return living()
