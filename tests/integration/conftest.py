"""The engine's client for a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from sandbox.docker.engine import connect


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    """A client of the engine that sandboxes are made on."""
    made = connect()
    yield made
    made.close()
