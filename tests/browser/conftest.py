"""A sandbox with a browser for the tests of a file, and servers in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits

IMAGE = "gamebox/browser"
GIB = 1 << 30


@pytest.fixture(scope="session")
def image() -> str:
    """The image that `gamebox setup --browser` makes, made in the same way if it is missing."""
    from sandbox.docker.engine.client import connect
    from sandbox.docker.images.images import ensure_image

    ensure_image(connect(), IMAGE, report=print, rebuild_stale=True)
    return IMAGE


@pytest.fixture(scope="module")
def env(image: str) -> Iterator[DockerEnvironment]:
    """A sandbox of the profile default, with its read-only root and without a network.

    It ends with the tests of a file: pages that they leave behind never rest, and would take a processor from all later tests.
    """
    with DockerEnvironment(image=image, limits=Limits(memory_bytes=GIB)) as made:
        yield made


@pytest.fixture(scope="module")
def hostile(env: DockerEnvironment) -> str:
    """The address of a server of hostile pages in the sandbox."""
    return serve(env, "hostile.py", Path(__file__).with_name("hostile_site.py").read_text())


def serve(env: DockerEnvironment, path: str, program: str) -> str:
    """Start a server that prints its port. Returns its address."""
    env.write(path, program).unwrap()
    ident = env.run(argv=["python3", path], background=True).unwrap().id
    ready = env.wait_for(id=ident, log=r"^(\d+)$", timeout_seconds=120).unwrap()
    assert ready.groups[0] is not None
    return f"http://127.0.0.1:{ready.groups[0]}"
