"""The engine's client for a module's tests, and an engine of the tests' own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from sandbox.docker.engine.client import connect

from .own_engine import TRIED, OwnEngine, in_use, need_loop_devices, started, tried


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    """A client of the engine that sandboxes are made on."""
    made = connect()
    yield made
    made.close()


@pytest.fixture(scope="session")
def _shared_engine() -> Iterator[OwnEngine]:
    """One for all modules: a start and an end cost 4 s. Where tests/engines tries an engine, that one."""
    folder = os.environ.get(TRIED)
    with started() if folder is None else tried(Path(folder)) as own:
        yield own


@pytest.fixture(scope="module")
def engine(_shared_engine: OwnEngine) -> Iterator[OwnEngine]:
    """An engine of the tests' own, which DOCKER_HOST names for the module. Its containers may be hurt, itself must not be.

    Nothing may be left on it. Ask for it in the whole module (``pytest.mark.usefixtures``).
    """
    with in_use(_shared_engine):
        yield _shared_engine
        assert _shared_engine.nothing_is_left()


@pytest.fixture
def loop_devices() -> None:
    """See ``need_loop_devices``."""
    need_loop_devices()
