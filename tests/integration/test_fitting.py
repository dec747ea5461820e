"""What does not fit is refused before anything is made, with both sizes and the limit to raise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits, SandboxError
from sandbox.docker.engine.client import connect
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.errors import ErrorCode
from sandbox.readers import hint_for
from sandbox.text.wording import size

pytestmark = pytest.mark.engine
Make = Callable[..., DockerEnvironment]
MIB = 1 << 20
SMALL = Limits(memory_bytes=64 * MIB, disk_bytes=48 * MIB)  # a workspace of 24 MiB


def test_a_workspace_larger_than_the_sandboxes(docker_env: Make, tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(25 * MIB)
    with pytest.raises(SandboxError) as caught:
        docker_env(workspace=tmp_path, limits=SMALL)
    assert caught.value.code is ErrorCode.no_space
    assert "25.0 MiB" in caught.value.message
    assert "24.0 MiB" in caught.value.message
    assert "disk_bytes" in caught.value.hint
    assert "--disk" in hint_for("cli", caught.value.hint)


def test_many_small_files_take_whole_blocks(docker_env: Make, tmp_path: Path) -> None:
    for n in range(6200):
        (tmp_path / str(n)).write_bytes(b"x")
    with pytest.raises(SandboxError) as caught:
        docker_env(workspace=tmp_path, limits=SMALL)
    assert (caught.value.code, "24.2 MiB" in caught.value.message) == (ErrorCode.no_space, True)


def test_a_workspace_that_fits(docker_env: Make, tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(20 * MIB)
    env = docker_env(workspace=tmp_path, limits=SMALL)
    assert env.run("stat -c %s big").unwrap().output == f"{20 * MIB}\n"


def test_more_memory_than_the_host_has() -> None:
    env = DockerEnvironment(limits=Limits(memory_bytes=9999 << 40))
    with pytest.raises(SandboxError) as caught:
        env.start()
    assert caught.value.code is ErrorCode.invalid_limits
    there = connect().info()["MemTotal"]
    assert caught.value.message == f"A memory limit of {size(9999 << 40)} is more than the engine's host has ({size(there)})."
    assert hint_for("cli", caught.value.hint) == f"Set --memory to at most {there}."
    left = connect().api.containers(all=True, filters={"label": f"{SANDBOX_LABEL}={env.backend.name}"})
    assert left == []


@pytest.mark.parametrize("cpus", [9999.0, 2.0**62])
def test_more_processors_than_the_host_has(cpus: float) -> None:
    with pytest.raises(SandboxError) as caught:
        DockerEnvironment(limits=Limits(cpus=cpus)).start()
    there = connect().info()["NCPU"]
    assert (caught.value.code, caught.value.retryable) == (ErrorCode.invalid_limits, False)
    assert caught.value.message == f"A limit of {cpus:g} processors is more than the engine's host has ({there})."
    assert hint_for("cli", caught.value.hint) == f"Set --cpus to at most {there}."


@pytest.mark.parametrize("image", ["", "  "])
def test_an_image_without_a_name(image: str) -> None:
    with pytest.raises(SandboxError, match="is not the name of an image") as caught:
        DockerEnvironment(image=image)
    assert caught.value.code is ErrorCode.invalid_configuration
