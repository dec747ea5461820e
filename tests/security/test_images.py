"""What a hostile or merely odd image may do to the guest that is started in it."""

from __future__ import annotations

import io
import tarfile
import uuid
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from tests.integration.observing import guest_pid

pytestmark = pytest.mark.engine


def test_an_image_that_has_a_library_loaded_into_everything() -> None:
    """Threat: an image's LD_PRELOAD (or LD_AUDIT, LD_LIBRARY_PATH) puts code of its choice into the guest, which has privileges."""
    with DockerEnvironment(limits=Limits(memory_bytes=128 << 20)) as env:
        found = env.run("ls /usr/lib/*-linux-gnu/libz.so.1 2>/dev/null | head -1")
        library = found.unwrap().output.strip()
    if not library:
        pytest.skip("the base image has no libz")
    dockerfile = (
        f"FROM gamebox/base\nENV LD_PRELOAD={library} LD_LIBRARY_PATH=/nowhere GLIBC_TUNABLES=glibc.malloc.check=3\n"
    )
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        archive.addfile(member, io.BytesIO(dockerfile.encode()))
    target.seek(0)
    name = f"gamebox-test-preload:{uuid.uuid4().hex[:8]}"
    api = connect().api
    list(api.build(fileobj=target, custom_context=True, tag=name, rm=True, decode=True))
    try:
        with DockerEnvironment(name, limits=Limits(memory_bytes=128 << 20)) as env:
            lines = Path(f"/proc/{guest_pid(env)}/maps").read_text().splitlines()
            mapped = {line.split()[-1] for line in lines if ".so" in line}
            assert mapped
            assert all(path.startswith("/.gamebox/") for path in mapped), mapped
            assert "libz" in env.run("cat /proc/self/maps").unwrap().output  # commands have the image's own variables
    finally:
        api.remove_image(name, force=True)
