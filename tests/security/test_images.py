"""What a hostile or merely odd image may do to the guest that is started in it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from tests.integration.made_images import build_image, remove_image
from tests.integration.observing import guest_pid

pytestmark = pytest.mark.engine


@contextlib.contextmanager
def image(instruction: str) -> Iterator[str]:
    """Build gamebox/base with one more instruction. Yields the name of the image, which is removed in the end."""
    client, name = connect(), f"gamebox-test-hostile:{uuid.uuid4().hex[:8]}"
    build_image(client, f"FROM gamebox/base\n{instruction}\n", name)
    try:
        yield name
    finally:
        remove_image(client, name)


def test_an_image_that_has_a_library_loaded_into_everything() -> None:
    """Threat: an image's LD_PRELOAD (or LD_AUDIT, LD_LIBRARY_PATH) puts code of its choice into the guest, which has privileges."""
    with DockerEnvironment(limits=Limits(memory_bytes=128 << 20)) as env:
        found = env.run("ls /usr/lib/*-linux-gnu/libz.so.1 2>/dev/null | head -1")
        library = found.unwrap().output.strip()
    if not library:
        pytest.skip("the base image has no libz")
    variables = f"ENV LD_PRELOAD={library} LD_LIBRARY_PATH=/nowhere GLIBC_TUNABLES=glibc.malloc.check=3"
    with image(variables) as name, DockerEnvironment(name, limits=Limits(memory_bytes=128 << 20)) as env:
        lines = Path(f"/proc/{guest_pid(env)}/maps").read_text().splitlines()
        mapped = {line.split()[-1] for line in lines if ".so" in line}
        assert mapped
        assert all(path.startswith("/.gamebox/") for path in mapped), mapped
        assert "libz" in env.run("cat /proc/self/maps").unwrap().output  # commands have the image's own variables


@pytest.mark.parametrize("target", ["/proc", "/"])
def test_an_image_with_a_link_to_what_commands_may_not_write(target: str) -> None:
    """Threat: what may be written is allowed by the names in the root folder, and one of them leads to /proc."""
    limits = Limits(memory_bytes=128 << 20)
    with image(f"RUN ln -s {target} /link") as name, DockerEnvironment(name, limits=limits) as env:
        before = env.run("cat /proc/self/oom_score_adj").unwrap().output
        command = "exec 2>&1; readlink /link; echo 500 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj"
        tried = env.run(command).unwrap().output
        assert tried.startswith(f"{target}\n")
        assert tried.endswith(f"Permission denied\n{before}")
