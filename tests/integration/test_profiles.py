"""Profiles, runtimes and limits on a real engine."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from agent.cli.app import main
from sandbox import DockerEnvironment, Limits, SandboxError
from sandbox.docker.engine.client import connect
from sandbox.errors import ErrorCode

from .own_engine import need_loop_devices

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (("--profile", "root"), "id -u; touch /here && echo written", "0\nwritten\n"),
        (("--profile", "root-on-request", "--user", "root"), "id -u; touch /here && echo written", "0\nwritten\n"),
        (("--runtime", "runc"), "id -u", "1000\n"),
        (("--memory", "128m", "--disk", "400m"), "df -B1M --output=fstype /workspace | tail -1", "ext4\n"),
    ],
)
def test_options_of_gamebox_run(
    options: tuple[str, ...], command: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if "ext4" in said:
        need_loop_devices()
    with pytest.raises(SystemExit) as ended:
        main(["run", *options, "--", "sh", "-c", command])
    assert (ended.value.code or 0, capfd.readouterr().out) == (0, said)


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_runtime_that_the_engine_has_not(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--runtime", "no-such-runtime", *(["--", "true"] if command == "run" else [])])
    assert ended.value.code == (125 if command == "run" else 2)
    assert "no runtime 'no-such-runtime'" in capfd.readouterr().err
Make = Callable[..., DockerEnvironment]

SMALL = Limits(memory_bytes=256 << 20, pids=128)
PACKAGE = r"""
mkdir -p pkg/DEBIAN pkg/usr/bin && printf '#!/bin/sh\necho installed\n' > pkg/usr/bin/gamebox-probe
chmod 755 pkg/usr/bin/gamebox-probe
printf 'Package: gamebox-probe\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.com>\nDescription: probe\n' \
    > pkg/DEBIAN/control
printf '#!/bin/sh\nadduser --system --quiet probe && chown probe /var/probe\n' > pkg/DEBIAN/postinst
chmod 755 pkg/DEBIAN/postinst && mkdir /var/probe && dpkg-deb -b pkg /tmp/probe.deb
"""


def test_root_installs_packages(docker_env: Make) -> None:
    env = docker_env(profile="root", limits=SMALL)
    env.run(PACKAGE).unwrap()
    done = env.run("apt-get install -y --no-install-recommends /tmp/probe.deb 2>&1; gamebox-probe", timeout_seconds=110)
    assert done.unwrap().stdout.endswith("installed\n"), done.unwrap().stdout
    assert env.run("stat -c %U /var/probe").unwrap().output == "probe\n"
    assert env.run("dpkg -r gamebox-probe >/dev/null && ! command -v gamebox-probe").unwrap().exit_code == 0


def test_root_may_change_all_of_the_system(docker_env: Make) -> None:
    env = docker_env(profile="root", limits=SMALL, env={"WHERE": "/new"})
    done = env.run(
        "mkdir $WHERE && echo x > $WHERE/file && mv $WHERE/file /etc/file && id -u && echo ~ && chown 5:5 /etc/file"
    )
    assert done.unwrap().output == "0\n/root\n"
    assert env.run("stat -c %u:%g /etc/file").unwrap().output == "5:5\n"
    assert env.write("kept", "x").ok
    assert env.run("stat -c %u kept").unwrap().output == "0\n"


def test_root_on_request_installs_packages_for_uid_1000(docker_env: Make) -> None:
    """FOREIGN 1: uid 1000 everywhere, and the system changed as root by the host's program alone."""
    env = docker_env(profile="root-on-request", limits=SMALL)
    env.run(PACKAGE.replace("mkdir /var/probe", "mkdir -p /var/probe"), user="root", cwd="/tmp").unwrap()
    env.run("apt-get install -y --no-install-recommends /tmp/probe.deb", user="root", timeout_seconds=110).unwrap()
    assert env.run("gamebox-probe; id -u").unwrap().output == "installed\n1000\n"
    assert env.run("rm /usr/bin/gamebox-probe").unwrap().exit_code != 0
    env.write("agent.txt", "x").unwrap()
    assert env.run("stat -c %u agent.txt", user="root").unwrap().output == "1000\n"
    described = env.describe()["sandbox"]
    assert "uid 1000" in described
    assert "as root" in described


def test_what_the_profile_gives_is_described(docker_env: Make) -> None:
    root = docker_env(profile="root", limits=SMALL).describe()
    assert "You are root" in root["sandbox"]
    assert "disk limit of everything else is soft" in root["limits"]
    default = docker_env(limits=SMALL).describe()
    assert "uid 1000" in default["sandbox"]
    assert "enforced" in default["limits"]


def test_conformance_opens_files_everywhere_and_warns(docker_env: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sandbox"):
        env = docker_env(profile="conformance", limits=SMALL)
    assert "for foreign test suites" in caplog.text
    assert env.read("/etc/hostname").unwrap().content == "sandbox\n"
    assert env.read("/etc").code is ErrorCode.is_a_directory  # type: ignore[union-attr]
    assert env.write("/opt/made/here.txt", "x" * (9 << 20)).ok
    assert env.read("../opt/made/here.txt", max_bytes=10).unwrap().content == "x" * 10
    assert "/etc" in {entry.path.rstrip("/") for entry in env.list("/").unwrap().entries}
    env.run("ln -s /etc/hostname link").unwrap()
    assert env.read("link").unwrap().content == "sandbox\n"


def test_a_runtime_that_the_engine_has(docker_env: Make) -> None:
    known = connect().info()["Runtimes"]
    other = next((name for name in known if name == "io.containerd.runc.v2"), "runc")
    env = docker_env(limits=SMALL, runtime=other)
    assert connect().api.inspect_container(env.container_id)["HostConfig"]["Runtime"] == other
    assert env.run("echo there").unwrap().output == "there\n"


def test_a_runtime_that_it_has_not() -> None:
    with pytest.raises(SandboxError) as caught, DockerEnvironment(limits=SMALL, runtime="no-such-runtime"):
        pass
    assert caught.value.code is ErrorCode.invalid_configuration
    assert "'no-such-runtime'" in caught.value.message
    assert "runc" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "said"), [("open_files", 1 << 30, f"open_files={1 << 30}"), ("cpus", 4096.0, "A limit of 4096 processors")]
)
def test_a_limit_that_the_host_does_not_allow(name: str, value: float, said: str) -> None:
    with pytest.raises(SandboxError) as caught, DockerEnvironment(limits=Limits(**{name: value})):  # type: ignore[arg-type]
        pass
    assert caught.value.code is ErrorCode.invalid_limits
    assert said in caught.value.message
