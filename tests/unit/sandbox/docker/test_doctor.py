"""What the doctor makes of engines that cannot be tried here, and how it says what it found."""

from __future__ import annotations

import dataclasses
import json
import platform
from typing import Any

import pytest

from sandbox.cli import doctor as doctor_shown
from sandbox.docker.doctor import probes
from sandbox.docker.doctor.doctor import Diagnosis, describe_engine
from sandbox.docker.doctor.probes import Finding

# As the API of each answers, shortened to what is read.
CGROUP_V1: dict[str, Any] = {
    "KernelVersion": "5.10.0-9-amd64", "OperatingSystem": "Debian GNU/Linux 11", "Architecture": "x86_64",
    "CgroupDriver": "cgroupfs", "CgroupVersion": "1", "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"], ["Supports d_type", "true"]],
    "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
    "SecurityOptions": ["name=seccomp,profile=default"],
}  # fmt: skip
CGROUP_V2 = CGROUP_V1 | {
    "CgroupDriver": "systemd", "CgroupVersion": "2",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": "/usr/local/bin/runsc"}},
}  # fmt: skip
CONTAINERD_STORE = CGROUP_V2 | {
    "Driver": "overlayfs",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
}
ROOTLESS = CGROUP_V2 | {
    "CgroupDriver": "none", "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
}  # fmt: skip
VERSION = {"Version": "28.2.2", "ApiVersion": "1.50"}


def test_cgroup_v1() -> None:
    engine = describe_engine(CGROUP_V1, VERSION, "unix:///socket")
    assert (engine.version, engine.api_version, engine.address) == ("28.2.2", "1.50", "unix:///socket")
    assert (engine.cgroup_version, engine.cgroup_driver, engine.storage_driver) == (1, "cgroupfs", "overlay2")
    assert engine.runtimes == ("io.containerd.runc.v2", "runc")
    assert engine.security == ("seccomp",)
    assert not engine.rootless
    assert not engine.same_kernel


def test_cgroup_v2_with_apparmor() -> None:
    engine = describe_engine(CGROUP_V2, VERSION, "")
    assert (engine.cgroup_version, engine.cgroup_driver) == (2, "systemd")
    assert engine.security == ("apparmor", "seccomp", "cgroupns")
    assert "runsc" in engine.runtimes


def test_the_containerd_image_store() -> None:
    assert describe_engine(CONTAINERD_STORE, VERSION, "").storage_driver == "overlayfs (containerd image store)"


def test_a_rootless_engine_and_this_kernel() -> None:
    engine = describe_engine(ROOTLESS | {"KernelVersion": platform.release()}, VERSION, "")
    assert engine.rootless
    assert engine.same_kernel


def test_an_engine_that_says_nothing() -> None:
    engine = describe_engine({"Runtimes": None, "SecurityOptions": None, "DriverStatus": None}, {}, "")
    assert (engine.cgroup_version, engine.runtimes, engine.security, engine.storage_driver) == (1, (), (), "")


def diagnosis(*states: str) -> Diagnosis:
    findings = tuple(
        Finding(f"promise {n}", state, "seen", "" if state == "enforced" else "do this")
        for n, state in enumerate(states)
    )
    return Diagnosis(describe_engine(CGROUP_V2, VERSION, "unix:///socket"), findings)


@pytest.mark.parametrize(
    ("states", "code"),
    [(["enforced"], 0), (["enforced", "partly"], 1), (["not", "enforced"], 1), ([], 1)],
)
def test_the_exit_code(states: list[str], code: int) -> None:
    assert diagnosis(*states).exit_code == code


def test_json_says_all_of_it() -> None:
    said = json.loads(json.dumps(diagnosis("enforced", "partly").to_dict()))
    assert said["engine"]["cgroup_version"] == 2
    assert said["promises"][1] == {"promise": "promise 1", "state": "partly", "how": "seen", "hint": "do this"}
    assert said["exit_code"] == 1


def test_plain_lines() -> None:
    lines = doctor_shown.lines(diagnosis("enforced", "not"))
    assert "cgroups   version 2, driver systemd" in lines
    assert lines[-4:] == [
        "enforced  promise 0: seen",
        "not       promise 1: seen",
        "          hint: do this",
        "2 promises: 1 enforced, 0 partly, 1 not",
    ]
    assert not any("\x1b" in line for line in lines)


def test_where_no_sandbox_starts_the_cause_is_said_once() -> None:
    first, *others = probes.untested("no image", "Run `gamebox setup`.")
    assert (first.state, first.how, first.hint) == ("not", "no image", "Run `gamebox setup`.")
    assert [first.promise, *(each.promise for each in others)] == list(probes.PROMISES)
    assert {(each.state, each.how, each.hint) for each in others} == {("untested", "not tested: no sandbox starts", "")}
    lines = doctor_shown.lines(Diagnosis(describe_engine({}, VERSION, ""), (first, *others)))
    assert lines[-1] == f"{len(others) + 1} promises: 0 enforced, 0 partly, 1 not, {len(others)} untested"
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.state = "enforced"  # type: ignore[misc]


def test_every_promise_has_one_name() -> None:
    assert len(set(probes.PROMISES)) == len(probes.PROMISES) == 1 + len(probes.INSIDE) + len(probes.ALONE)
