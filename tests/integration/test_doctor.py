"""The doctor on a real engine: what it says is true, and its probes find what is missing where it is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cli.app import main
from sandbox import DockerEnvironment, Limits, Network
from sandbox.docker.container.disks import loop_device as loop
from sandbox.docker.doctor import doctor as doctor_module
from sandbox.docker.doctor import probe_programs, probes

pytestmark = pytest.mark.engine

KEPT_BY_ANY_ENGINE = {
    "a sandbox starts", "memory", "out-of-memory attribution", "processes", "disk in memory", "open files and file size",
    "no network", "no egress", "network by rules", "read-only root", "no new privileges", "guest out of reach", "kill everything",
    "pause", "kept and attached", "removed with its orchestrator",
}  # fmt: skip


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *options])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_promises_of_this_engine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = doctor(capsys, "--json")
    said = json.loads(out)
    states = {finding["promise"]: finding["state"] for finding in said["promises"]}
    assert list(states) == list(probes.PROMISES)
    assert {name for name, state in states.items() if state == "enforced"} >= KEPT_BY_ANY_ENGINE, said
    assert code == said["exit_code"] == (0 if set(states.values()) == {"enforced"} else 1)
    assert said["engine"]["api_version"]
    assert all(finding["how"] for finding in said["promises"])
    assert all(finding["hint"] for finding in said["promises"] if finding["state"] != "enforced")
    assert states["disk"] == ("partly" if loop.problem() else "enforced")


def test_another_runtime(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "INSIDE", {"memory": probes.INSIDE["memory"]})
    code, out = doctor(capsys, "--json", "--runtime", "io.containerd.runc.v2")
    said = json.loads(out)
    assert said["runtime"] == "io.containerd.runc.v2"
    states = {finding["promise"]: finding["state"] for finding in said["promises"]}
    assert (states["memory"], states["removed with its orchestrator"]) == ("enforced", "enforced")
    assert code == (0 if set(states.values()) == {"enforced"} else 1)


def test_every_action_of_agents_answers_as_expected(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = doctor(capsys, "--agents", "--json")
    run = json.loads(out)
    assert (code, run["status"]) == (0, "finished"), run


def test_a_disk_that_is_only_watched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no mkfs.ext4
    code, out = doctor(capsys)
    assert code == 1
    assert "partly    disk: soft" in out
    assert "          hint: As root beside the engine" in out


def test_an_engine_where_no_sandbox_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "PROBED", Limits(open_files=1 << 30))
    code, out = doctor(capsys, "--json")
    said = json.loads(out)
    assert code == said["exit_code"] == 1
    first, *others = said["promises"]
    assert (first["state"], first["hint"]) == ("not", "Give a smaller open_files.")
    assert {(finding["state"], finding["hint"]) for finding in others} == {("untested", "")}
    assert [finding["promise"] for finding in said["promises"]] == list(probes.PROMISES)


def test_no_engine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 2
    assert "No Docker Engine answers" in capsys.readouterr().err


@pytest.fixture(scope="module")
def open_sandbox() -> Iterator[DockerEnvironment]:
    """Keeps few of the promises: root on a writable root, with a network."""
    limits = Limits(memory_bytes=512 << 20, pids=200)
    with DockerEnvironment(profile="root", limits=limits, network=Network.bridge()) as env:
        yield env


@pytest.mark.parametrize(
    ("promise", "state", "seen"),
    [
        ("no network", "not", "interface eth0"),
        ("no egress", "not", "datagram to"),
        ("read-only root", "not", "/etc"),
        ("no new privileges", "not", "CapEff"),
        ("no writes below /proc", "partly", "oom_score_adj"),
        ("guest out of reach", "not", "signal 9"),
        ("system call filter", "enforced", "all refused"),
    ],
)
def test_probes_find_what_is_open(open_sandbox: DockerEnvironment, promise: str, state: str, seen: str) -> None:
    probe: Callable[[DockerEnvironment], probes.Seen] = probes.INSIDE[promise]
    if promise == "guest out of reach":  # it leaves the guest without descriptors where it succeeds
        with DockerEnvironment(profile="root", limits=open_sandbox.limits) as victim:
            found = probe(victim)
    else:
        found = probe(open_sandbox)
    assert found[0] == state, found
    assert seen in found[1]


@pytest.mark.parametrize("promise", ["processes", "open files and file size", "cpus"])
def test_probes_find_limits_that_do_not_hold(promise: str) -> None:
    """The same probe, told of tighter limits than those in force."""
    wide = Limits(memory_bytes=1 << 30, pids=200, open_files=1024, cpus=2)
    with DockerEnvironment(limits=wide) as env:
        env.limits = Limits(memory_bytes=1 << 30, pids=100, open_files=512, cpus=0.01)  # less than on the busiest machine
        state, how, hint = probes.INSIDE[promise](env)
    assert state == "not", how
    assert hint


def test_the_probe_of_a_pause_asks_what_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PAUSE_SECONDS", 4.0)  # longer than a busy machine lets a command stand still
    with DockerEnvironment(limits=Limits(memory_bytes=256 << 20)) as env:
        monkeypatch.setattr(env.backend, "freeze", lambda: None)
        monkeypatch.setattr(env.backend, "thaw", lambda: None)
        state, how, hint = probes.INSIDE["pause"](env)
    assert state == "not", how
    assert hint


def test_the_probe_of_attaching_asks_for_what_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox is there; its shell is not the one that was left."""
    monkeypatch.setattr(probe_programs, "KEEPER", probe_programs.KEEPER.replace("cd /tmp", "unset LEFT"))
    state, how, hint = probes.ALONE["kept and attached"](None)
    assert state == "not", how
    assert hint
