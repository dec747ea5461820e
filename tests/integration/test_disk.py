"""Disks beyond memory: bounded by the kernel or watched, and nothing of them is left."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits, SandboxError
from sandbox.docker.container.disks import disk
from sandbox.docker.container.disks import loop_device as loop
from sandbox.docker.engine.client import connect
from sandbox.errors import ErrorCode

from .observing import eventually

pytestmark = pytest.mark.engine
Make = Callable[..., DockerEnvironment]

MIB = 1 << 20
BIG = Limits(memory_bytes=192 * MIB, disk_bytes=400 * MIB, pids=128)
HARD = Limits(memory_bytes=192 * MIB, disk_bytes=600 * MIB, pids=128, disk="hard")
needs_loop = pytest.mark.usefixtures("loop_devices")


def devices_of(env: DockerEnvironment) -> set[str]:
    """Loop devices that are mounted in a sandbox."""
    lines = env.run("cat /proc/mounts").unwrap().output.splitlines()
    return {line.split()[0] for line in lines if line.startswith("/dev/loop")}


def volumes_of(container: str) -> set[str]:
    mounts = connect().api.inspect_container(container)["Mounts"]
    return {m["Name"] for m in mounts if m.get("Name") and not m["Name"].startswith("gamebox-runtime")}


def attached(devices: Iterable[str]) -> set[tuple[str, str]]:
    """Which of these loop devices have a file, each with the number of the disk in it: the next sandbox may get the same device."""
    found = set()
    for device in devices:
        block = Path("/sys/block", Path(device).name)
        if (block / "loop").exists():
            number = block / "diskseq"  # since Linux 5.15
            found.add((device, number.read_text().strip() if number.exists() else ""))
    return found


def nothing_left(disks: set[tuple[str, str]], volumes: set[str]) -> bool:
    listed = {volume["Name"] for volume in connect().api.volumes()["Volumes"] or []}
    return not (listed & volumes) and not (disks & attached(device for device, _ in disks))


@needs_loop
def test_the_size_is_exact_and_more_than_memory(docker_env: Make) -> None:
    env = docker_env(limits=HARD)
    assert "enforced" in env.describe()["limits"]
    filled = env.run(
        "head -c 250M /dev/zero > full && wc -c < full && cp full more; wc -c < more; rm more", timeout_seconds=60
    )
    first, second = map(int, filled.unwrap().stdout.split())
    assert first == 250 * MIB
    assert second < 60 * MIB
    assert "No space left on device" in filled.unwrap().stderr
    assert not filled.unwrap().oom_killed
    home = env.run("head -c 350M /dev/zero > ~/full; wc -c < ~/full").unwrap()
    assert 250 * MIB < int(home.stdout) < 300 * MIB
    refused = env.write("more", "x" * (8 * MIB))
    assert refused.ok or refused.code is ErrorCode.no_space


@needs_loop
def test_the_guest_sees_how_much_room_the_host_has(docker_env: Make) -> None:
    env, client = docker_env(limits=BIG), connect()
    made = disk.prepare(client, BIG, env.backend._profile, "not-made")
    made.release()
    folder = disk.host_disk(client, made, "/.gamebox")
    host = os.statvfs(client.info()["DockerRootDir"])
    seen = env.run(f"stat -f -c '%b %S' {folder}").unwrap().output.split()
    assert [int(number) for number in seen] == [host.f_blocks, host.f_frsize]
    assert disk.host_disk(client, dataclasses.replace(made, kind="volume"), "/.gamebox") is None


@needs_loop
def test_the_default_is_eight_gigabytes_each_and_takes_no_memory(docker_env: Make) -> None:
    """UX 4: pip install pandas scikit-learn matplotlib ended with a full home of 256 MiB."""
    env = docker_env()
    sizes = {place.path: place.size_bytes for place in env.usage().unwrap().places}
    assert set(sizes) == {"/workspace", "/home/agent", "/tmp"}
    assert all(7 << 30 < size <= 8 << 30 for size in sizes.values()), sizes
    filled = "for f in ~/a /tmp/a; do head -c 400M /dev/zero > $f; done; sync; cat /sys/fs/cgroup/memory/memory.stat"
    ran = env.run(filled, timeout_seconds=60)
    assert not [n for n in ran.notices if n.code == "memory_nearly_full"]
    assert (env.usage().unwrap().memory_used_bytes or 0) < 300 * MIB


@needs_loop
def test_var_tmp_is_writable_and_sized(docker_env: Make) -> None:
    """FOREIGN: Inspect puts its helper below /var/tmp, which was on the read-only root."""
    env = docker_env(limits=BIG)
    env.write("/var/tmp/.helper/tool", "#!/bin/sh\necho works\n").unwrap()
    made = env.run("sh /var/tmp/.helper/tool; stat -c %a /var/tmp; df --output=size -B1 /var/tmp | tail -1 | tr -d ' '").unwrap()
    assert made.output == f"works\n1777\n{BIG.var_tmp_place_bytes}\n"


@needs_loop
def test_an_engine_that_mounts_no_device_gets_a_measured_disk(docker_env: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MOUNT_OPTIONS", "no_such_option")
    env = docker_env(limits=BIG)
    assert "soft" in env.describe()["limits"]
    disk._refusals.clear()


def test_memory_where_the_engines_disk_has_no_room(docker_env: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LEAST_FREE_BYTES", 1 << 60)
    env = docker_env()
    assert "kept in memory because the engine's disk has no room" in env.describe()["limits"]
    assert "tmpfs /workspace " in env.run("grep ' /workspace ' /proc/mounts").unwrap().output


@needs_loop
def test_it_is_the_users_and_as_empty_as_any(docker_env: Make) -> None:
    env = docker_env(limits=HARD)
    for place, owner in (("/workspace", "1000:1000:755"), ("/home/agent", "1000:1000:755"), ("/tmp", "0:0:1777")):
        assert env.run(f"ls -A {place} | wc -l; stat -c %u:%g:%a {place}").unwrap().output == f"0\n{owner}\n"
    options = env.run("grep ' /workspace ' /proc/mounts").unwrap().output
    assert "nosuid" in options
    assert "nodev" in options


@needs_loop
def test_a_disk_full_of_names(docker_env: Make) -> None:
    env = docker_env(limits=HARD)
    made = env.run(
        "python3 -",
        stdin="n = 0\ntry:\n  while True: open(str(n), 'x').close(); n += 1\nexcept OSError as e: print(n, e.errno)",
        timeout_seconds=100,
    )
    count, number = map(int, made.unwrap().output.split())
    assert count <= 600 * MIB // 4096
    assert number == 28
    assert env.run("rm -rf /workspace/* ; echo ok").unwrap().output == "ok\n"


@needs_loop
def test_nothing_is_left_after_a_close(docker_env: Make) -> None:
    env = docker_env(limits=HARD)
    disks, volumes = attached(devices_of(env)), volumes_of(env.container_id)
    assert len(disks) == len(volumes) == 3
    env.run("echo x > file").unwrap()
    env.close()
    assert eventually(lambda: nothing_left(disks, volumes))


@needs_loop
def test_nothing_is_left_after_the_orchestrator_was_killed() -> None:
    program = """
import sys, time
from sandbox import DockerEnvironment, Limits
env = DockerEnvironment(limits=Limits(memory_bytes=192 << 20, disk_bytes=400 << 20, pids=128, disk="hard")).start()
env.run("echo x > file").unwrap()
mounts = env.run("cat /proc/mounts").unwrap().output.splitlines()
print(env.container_id, *[line.split()[0] for line in mounts if "/dev/loop" in line], flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as orchestrator:
        assert orchestrator.stdout is not None
        container, *devices = orchestrator.stdout.readline().split()
        disks, volumes = attached(devices), volumes_of(container)
        assert len(disks) == len(volumes) == 3
        orchestrator.send_signal(signal.SIGKILL)
    assert eventually(lambda: nothing_left(disks, volumes))


@needs_loop
def test_nothing_is_left_of_a_disk_that_is_never_used() -> None:
    device = loop.make(64 * MIB, Path(connect().info()["DockerRootDir"]), 1000)
    backing = Path(f"/sys/block/{Path(device.path).name}/loop/backing_file")
    assert "(deleted)" in backing.read_text()  # it never had a name
    device.release()
    assert eventually(lambda: not backing.exists())


@needs_loop
def test_more_than_the_host_has() -> None:
    with pytest.raises(SandboxError) as caught, DockerEnvironment(limits=Limits(disk_bytes=1 << 50)):
        pass
    assert caught.value.code is ErrorCode.host_disk_full


@pytest.fixture
def no_ext4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a host without mkfs.ext4."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_ext4")
def test_hard_fails_closed() -> None:
    with pytest.raises(SandboxError) as caught, DockerEnvironment(limits=HARD):
        pass
    assert caught.value.code is ErrorCode.limit_not_enforced
    expected = "mkfs.ext4 is not installed" if os.geteuid() == 0 else "not root"
    assert expected in caught.value.message


def test_hard_does_not_go_with_a_writable_root() -> None:
    with pytest.raises(SandboxError) as caught, DockerEnvironment(profile="root", limits=Limits(disk="hard")):
        pass
    assert caught.value.code is ErrorCode.limit_not_enforced
    assert "writable root" in caught.value.message


FILLER = "i=0; while head -c 20M /dev/zero > part$i; do i=$((i+1)); sleep 0.1; done; echo ended"


@pytest.mark.usefixtures("no_ext4")
def test_a_watched_disk(docker_env: Make) -> None:
    env = docker_env(limits=BIG)
    assert "soft" in env.describe()["limits"]
    volumes = volumes_of(env.container_id)
    assert len(volumes) == 3
    assert env.run("stat -c %u /workspace ~; touch ~/mine").unwrap().output == "1000\n1000\n"
    filled = env.run(FILLER, timeout_seconds=60)
    assert filled.ok
    assert filled.unwrap().signal == "SIGKILL"
    assert [n for n in filled.notices if n.code == "no_space" and "400.0 MiB" in n.message]
    refused = env.write("file", "x")
    assert refused.code is ErrorCode.no_space  # type: ignore[union-attr]
    # it can still be looked at and tidied up
    assert int(env.run("du -sm /workspace | cut -f1").unwrap().output) < 1000
    assert env.run("rm /workspace/part*; echo clean").unwrap().output == "clean\n"
    assert eventually(lambda: all([place.free_bytes for place in env.usage().unwrap().places] or [0]))  # it was measured again
    assert env.write("file", "x").ok
    env.close()
    assert eventually(lambda: nothing_left(set(), volumes))


def test_the_root_of_profile_root_is_watched(docker_env: Make) -> None:
    env = docker_env(profile="root", limits=Limits(memory_bytes=256 * MIB, disk_bytes=100 * MIB))
    assert env.run("echo x > /small").unwrap().exit_code == 0
    filled = env.run(f"sleep 1.5; mkdir /fill; cd /fill; {FILLER}", timeout_seconds=60)
    assert filled.unwrap().signal == "SIGKILL"
    assert "no_space" in {notice.code for notice in filled.notices}
    assert env.run("rm -r /fill; echo clean").unwrap().output == "clean\n"
    # whoever watches was not spared: it comes back
    env.run("kill -9 -1")
    assert eventually(lambda: env.run("echo up").unwrap().output == "up\n")
    again = env.run(f"sleep 2.5; mkdir /fill; cd /fill; {FILLER}", timeout_seconds=60)
    assert "no_space" in {notice.code for notice in again.notices}


@pytest.mark.usefixtures("no_ext4")
def test_with_measured_volumes_and_a_writable_root_the_workspace_is_watched_too(docker_env: Make) -> None:
    """It was not: only / was measured, and volumes are file systems of their own."""
    env = docker_env(profile="root", limits=Limits(memory_bytes=256 * MIB, disk_bytes=100 * MIB))
    assert "soft: the whole file system is measured" in env.describe()["limits"]
    for place in ("/workspace", "/tmp"):
        filled = env.run(f"cd {place}; {FILLER}", timeout_seconds=60)
        assert filled.unwrap().signal == "SIGKILL", place
        assert "no_space" in {notice.code for notice in filled.notices}
        assert env.run(f"rm {place}/part*; echo clean").unwrap().output == "clean\n"
