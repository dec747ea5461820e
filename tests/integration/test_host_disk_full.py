"""The engine's disk is full: said as such, wherever it is met; nothing half-made is used later, and what runs goes on."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.container.disks import loop_device as loop
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.images import images
from sandbox.docker.images.recipes import Recipe
from sandbox.errors import ErrorCode, SandboxError

from .observing import guest_pid, within
from .own_engine import IMAGE, OwnEngine, need_loop_devices, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

MIB = 1 << 20
SMALL = Limits(memory_bytes=128 * MIB, disk="memory")
ON_DISK = Limits(memory_bytes=128 * MIB, disk_bytes=160 * MIB)


@pytest.fixture(scope="module")
def engine() -> Iterator[OwnEngine]:
    with running(disk_bytes=400 * MIB) as own:
        yield own


@pytest.fixture
def own(engine: OwnEngine) -> Iterator[OwnEngine]:
    yield engine
    if (engine.base / "data/filler").exists():
        engine.free_disk()
    assert engine.nothing_is_left()


def works() -> bool:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        return env.run("echo works").unwrap().output == "works\n"


def test_while_the_runtime_volume_is_filled(own: OwnEngine) -> None:
    """The first of this module: the volume is not there yet. A half-filled one is never taken for a whole one."""
    assert (connect().api.volumes().get("Volumes") or []) == []
    own.fill_disk()
    with open(own.base / "data/filler", "ab") as file:
        file.truncate(file.tell() - 8 * MIB)
    with pytest.raises(SandboxError) as caught:
        DockerEnvironment(IMAGE, limits=SMALL).start()
    assert caught.value.code is ErrorCode.host_disk_full, caught.value
    assert caught.value.hint
    own.free_disk()
    assert works()


def test_at_the_create(own: OwnEngine) -> None:
    assert works()
    own.fill_disk()
    with pytest.raises(SandboxError) as caught:
        within(10.0, DockerEnvironment(IMAGE, limits=SMALL).start)
    assert caught.value.code is ErrorCode.host_disk_full, caught.value
    assert own.nothing_is_left()
    own.free_disk()
    assert works()


def test_while_an_image_is_built(own: OwnEngine) -> None:
    dockerfile = f"FROM {IMAGE}\nCOPY large /large\nRUN cat /large /large /large > /larger\n".encode()
    made_by = Recipe("gamebox-test-built", "", {"Dockerfile": dockerfile, "large": os.urandom(20 * MIB)}, {})
    client = connect()
    own.fill_disk()
    with open(own.base / "data/filler", "ab") as file:
        file.truncate(file.tell() - 60 * MIB)
    with pytest.raises(SandboxError) as caught, translated():
        images._build_on(client, made_by, "content", "", print)
    assert caught.value.code is ErrorCode.host_disk_full, caught.value
    assert client.api.images(name="gamebox-test-built") == []


def test_while_a_sandbox_runs_in_memory(own: OwnEngine) -> None:
    """It needs nothing of the engine's disk: it goes on, and can be closed."""
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        env.write("before", "x").unwrap()
        own.fill_disk()
        assert env.run("cat before; seq 100000 > after; tail -n 1 after").unwrap().output == "x100000\n"
        spilled = env.run("seq 100000", keep_output_bytes=100).unwrap()
        assert spilled.spill_path is not None
        assert env.read("after", start_line=1, end_line=1).unwrap().content == "1\n"
        within(3.0, lambda: env.close(wait=True))


def test_while_a_sandbox_runs_on_a_file_system_of_its_own(own: OwnEngine) -> None:
    """Its blocks are sparse: writes fail inside. The answer is a failure, never a success with bytes that are not there."""
    need_loop_devices()
    with DockerEnvironment(IMAGE, limits=ON_DISK) as env:
        assert "enforced" in env.describe()["limits"]
        env.run("dd if=/dev/zero of=before bs=1M count=4; sync").unwrap()
        own.fill_disk()
        ran = env.run("dd if=/dev/zero of=after bs=1M count=60 && sync after").unwrap()
        assert ran.exit_code != 0, ran
        written = env.write("text", "x" * MIB)
        assert not written.ok
        assert written.code is ErrorCode.no_space, written
        assert not env.upload(archive(), "tree").ok
        assert env.run("wc -c < before").unwrap().output.strip() == str(4 * MIB)
        assert env.run("echo alive").unwrap().output == "alive\n"
        within(5.0, lambda: env.close(wait=True))


def test_while_a_sandbox_runs_on_a_disk_that_is_only_measured(own: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "problem", lambda: "switched off by the test")
    with DockerEnvironment(IMAGE, limits=ON_DISK) as env:
        env.write("before", "x").unwrap()
        own.fill_disk()
        written = env.write("text", "x" * MIB)
        assert not written.ok
        assert written.code is ErrorCode.no_space, written
        assert env.upload(archive(), "tree").code is ErrorCode.no_space  # type: ignore[union-attr]
        assert env.run("cat before; echo more > more").unwrap().exit_code != 0
        own.free_disk()
        assert env.write("text", "x" * MIB).ok


def test_a_disk_of_its_own_that_does_not_fit(own: OwnEngine) -> None:
    need_loop_devices()
    own.fill_disk()
    with pytest.raises(SandboxError) as caught:
        DockerEnvironment(IMAGE, limits=ON_DISK).start()
    assert caught.value.code is ErrorCode.host_disk_full


def test_the_guest_is_not_harmed(own: OwnEngine) -> None:
    with DockerEnvironment(IMAGE, limits=SMALL) as env:
        guest = guest_pid(env)
        own.fill_disk()
        for _ in range(20):
            assert env.run("true").ok
        assert guest_pid(env) == guest


def archive() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        member = tarfile.TarInfo("large")
        member.size = MIB
        made.addfile(member, io.BytesIO(bytes(MIB)))
    return target.getvalue()
