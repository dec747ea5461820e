"""Profiles, runtimes and refusals as values; what is read back from either kind of cgroup."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits, Network, PackageCache
from sandbox.docker.container import enforcement
from sandbox.docker.container.disks.disk import Disk
from sandbox.docker.container.profiles import CONFORMANCE, DEFAULT, ROOT, find_profile
from sandbox.errors import ErrorCode, SandboxError
from sandbox.guest.watch import limits
from sandbox.limits import MIB
from sandbox.messages.faults import word_fault
from sandbox.readers import hint_for


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(SandboxError) as caught:
        DockerEnvironment(profile="privileged")
    assert caught.value.code is ErrorCode.invalid_configuration
    assert "'privileged'" in caught.value.message
    assert caught.value.hint == "Use one of: default, root-on-request, root, conformance, e2b, e2b-root."


def test_the_model_is_told_the_runtime_and_how_far_the_file_tools_reach() -> None:
    said = DockerEnvironment(profile="conformance", runtime="runsc").describe()["sandbox"]
    assert "OCI runtime runsc" in said
    assert "You are root" in said
    assert "File tools reach every path" in said
    plain = DockerEnvironment(profile="root").describe()["sandbox"]
    assert "runtime" not in plain
    assert "every path" not in plain


def test_only_the_default_keeps_its_commands_unprivileged() -> None:
    assert (DEFAULT.uid, DEFAULT.read_only_root, DEFAULT.capabilities) == (1000, True, ("SETUID", "SETGID", "KILL"))
    for profile in (ROOT, CONFORMANCE):
        assert (profile.uid, profile.read_only_root, profile.capabilities) == (0, False, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ROOT.uid = 1  # type: ignore[misc]


def test_conformance_raises_limits_and_lowers_none() -> None:
    fitted = find_profile("conformance").with_least_limits(Limits(write_bytes=100 * MIB))
    assert (fitted.read_bytes, fitted.write_bytes) == (64 * MIB, 100 * MIB)
    assert find_profile("default").with_least_limits(Limits()) == Limits()


LIMITS = Limits(memory_bytes=512 * MIB, cpus=1.5, disk_bytes=256 * MIB)
DISK = Disk("memory", (("/workspace", 192 * MIB), ("/home/agent", 64 * MIB)))
FACTS: dict[str, Any] = {
    "memory_bytes": 512 * MIB, "swap_bytes": 0, "pids": 512, "cpus": 1.5, "open_files": 4096, "file_bytes": 1 << 30,
    "places": {"/workspace": 192 * MIB, "/home/agent": 64 * MIB, "/tmp": 64 * MIB}, "boot_id": "x",
    "machine": "x86_64", "filtered": True,
}  # fmt: skip


def test_what_was_asked_passes() -> None:
    enforcement.check(LIMITS, DISK, {"/tmp": 64 * MIB}, FACTS)


def test_an_older_guest_does_not_say_whether_it_filters() -> None:
    facts = {name: fact for name, fact in FACTS.items() if name not in ("machine", "filtered")}
    enforcement.check(LIMITS, DISK, {}, facts)


@pytest.mark.parametrize("said", [{"machine": "sparc64", "filtered": False}, {"machine": "sparc64", "filtered": 1}])
def test_a_machine_without_a_filter_of_system_calls_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        enforcement.check(LIMITS, DISK, {}, FACTS | said)
    assert caught.value.code is ErrorCode.limit_not_enforced
    assert "x86_64 or aarch64" in caught.value.hint
    assert "sparc64" in caught.value.message


@pytest.mark.parametrize("name", ["memory_bytes", "swap_bytes", "pids", "cpus", "open_files", "file_bytes"])
@pytest.mark.parametrize("found", [None, -1, 1 << 40, True, "512"])
def test_every_limit_is_compared(name: str, found: object) -> None:
    with pytest.raises(SandboxError) as caught:
        enforcement.check(LIMITS, DISK, {}, {**FACTS, name: found})
    assert caught.value.code is ErrorCode.limit_not_enforced
    assert f"does not enforce {name}=" in caught.value.message


@pytest.mark.parametrize("path", ["/workspace", "/home/agent", "/tmp"])
@pytest.mark.parametrize("found", [None, 1 << 40])
def test_every_place_is_compared(path: str, found: object) -> None:
    with pytest.raises(SandboxError, match=f"does not enforce the size of {path}="):
        enforcement.check(LIMITS, DISK, {"/tmp": 64 * MIB}, {**FACTS, "places": {**FACTS["places"], path: found}})


def test_a_disk_of_another_host_is_no_disk() -> None:
    with pytest.raises(SandboxError, match="runs on another one"):
        enforcement.check(LIMITS, dataclasses.replace(DISK, kind="ext4"), {}, FACTS)


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ("OCI runtime create failed: error setting rlimit type 7: operation not permitted", "open_files"),
        ("container init caused: error setting rlimits for ready process: error setting rlimit type 1", "file_bytes"),
        ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", "cpus"),
        ("Minimum memory limit allowed is 6MB", "memory_bytes"),
    ],
)
def test_refusals_name_the_limit(said: str, limit: str) -> None:
    error = enforcement.refusal(SandboxError(ErrorCode.start_failed, said), LIMITS)
    assert error.code is ErrorCode.invalid_limits
    assert f"{limit}={getattr(LIMITS, limit)}" in error.message
    assert limit in error.hint


def test_other_refusals_stay_what_they_are() -> None:
    error = SandboxError(ErrorCode.start_failed, "no such image")
    assert enforcement.refusal(error, LIMITS) is error


def cgroup(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


V1 = {
    "memory/memory.limit_in_bytes": "536870912", "memory/memory.memsw.limit_in_bytes": "536870912", "pids/pids.max": "64",
    "cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000",
}  # fmt: skip
V2 = {"memory.max": "536870912", "memory.swap.max": "0", "pids.max": "64", "cpu.max": "150000 100000"}


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_cgroups_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    cgroup(tmp_path, files)
    monkeypatch.setattr(limits, "_CGROUP", str(tmp_path))
    found = limits.read_enforced_limits([])
    assert {name: found[name] for name in ("memory_bytes", "swap_bytes", "pids", "cpus")} == {
        "memory_bytes": 512 * MIB, "swap_bytes": 0, "pids": 64, "cpus": 1.5,
    }  # fmt: skip


UNSET_V1 = V1 | {
    "cpu/cpu.cfs_quota_us": "-1",
    "pids/pids.max": "max",
    "memory/memory.memsw.limit_in_bytes": "1073741824",
}
UNSET_V2 = {"memory.max": "max", "memory.swap.max": "max", "pids.max": "max", "cpu.max": "max 100000"}


def test_what_is_not_set_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CGROUP", str(tmp_path))
    assert not {"memory_bytes", "pids", "cpus"} & set(limits.read_enforced_limits([]))
    cgroup(tmp_path, UNSET_V1)
    found = limits.read_enforced_limits([])
    assert not {"pids", "cpus"} & set(found)
    assert found["swap_bytes"] == 512 * MIB
    for name in UNSET_V1:
        (tmp_path / name).unlink()
    cgroup(tmp_path, UNSET_V2)
    assert not {"memory_bytes", "pids", "cpus"} & set(limits.read_enforced_limits([]))


NO_PACKAGES = {"notices": [{"code": "not_possible", "kind": "packages", "program": "apt-get", "installers": "forged"}]}


def packages_notice(env: DockerEnvironment) -> str:
    (notice,) = env._notices_in(NO_PACKAGES)
    return f"{notice.message} {notice.hint}"


def test_the_notice_on_packages_says_what_this_sandbox_has(tmp_path: Path) -> None:
    """Review: it named pip and npm where neither can install, and a read-only / in a profile that has none."""
    assert packages_notice(DockerEnvironment()) == (
        "apt-get: system packages cannot be installed here: you are not root, and / is read-only. "
        "Use what the image has; say in your answer what is missing."
    )
    assert "read-only" not in packages_notice(DockerEnvironment(profile="root-on-request"))
    assert "or what pip (in a venv) or npm (if the image has it) can install" in packages_notice(
        DockerEnvironment(network=Network.open())
    )
    cached = DockerEnvironment(cache=PackageCache(tmp_path, pypi="http://127.0.0.1:9/simple/", npm=""))
    assert cached._services.packages is not None
    cached._services.packages.find()
    assert "Use what the image has, or what pip (in a venv) can install;" in packages_notice(cached)


def test_the_words_on_a_disk_that_is_hard_in_part_say_both() -> None:
    """Review: root-on-request called the whole file system soft, though workspace, home and /tmp are bounded there."""
    places = (("/workspace", 192 * MIB), ("/home/agent", 64 * MIB), ("/tmp", 64 * MIB))
    on_devices = Disk("ext4", places, watched=("/",), why="the root is writable")
    assert on_devices.describe() == (
        "The sizes of /workspace, /home/agent and /tmp are enforced: a full one refuses further writes. The disk limit of "
        "everything else is soft: it is measured from time to time, and commands that write past it are ended."
    )
    assert "soft" not in Disk("ext4", places).describe()
    measured = Disk("volume", places, watched=tuple(path for path, _ in places))
    assert measured.describe().startswith("The disk limit is soft: workspace, home and /tmp")
    in_memory = Disk("memory", places, watched=("/",), in_memory=frozenset(path for path, _ in places)).describe()
    assert "further writes. Their files are kept in memory and count against it. The disk limit of everything else" in in_memory


@pytest.mark.parametrize("isolated", [True, False])
def test_a_refused_user_names_options_on_the_command_line(isolated: bool) -> None:
    """Review: `gamebox run --user root` advised Python."""
    hint = word_fault(ErrorCode.user_not_allowed, {"user": "root", "own": "agent", "isolated": isolated}, "run").hint
    assert "--profile root-on-request" in hint_for("cli", hint)
    assert ("or --local" in hint_for("cli", hint)) is not isolated
    assert "profile='root-on-request'" in hint_for("host", hint)
