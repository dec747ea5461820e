"""Counters of the sandbox as a whole, in the words of both versions of cgroups. Version 2 is only tried here."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.guest.watch.cgroup import Cgroup

V1 = {
    "memory/memory.usage_in_bytes": "36950016\n",
    "memory/memory.max_usage_in_bytes": "40000000\n",
    "memory/memory.stat": "cache 21594112\nrss 12926976\ninactive_file 1\nactive_file 1\n"
    "total_inactive_anon 12857344\ntotal_inactive_file 14573568\ntotal_active_file 7004160\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "pids/pids.current": "12\n",
    "pids/pids.events": "max 5\n",
    "cpuacct/cpuacct.usage": "94497999\n",
}
# As a kernel 6.1 shows them to a container under systemd.
V2 = {
    "memory.current": "36950016\n",
    "memory.peak": "40000000\n",
    "memory.stat": "anon 12926976\nfile 21594112\nkernel 1097728\nshmem 0\ninactive_anon 12857344\nactive_anon 4096\n"
    "inactive_file 14573568\nactive_file 7000064\nunevictable 0\nslab_reclaimable 4096\nslab_unreclaimable 200704\n",
    "memory.events": "low 0\nhigh 0\nmax 131\noom 3\noom_kill 3\noom_group_kill 0\n",
    "pids.current": "12\n",
    "pids.events": "max 5\n",
    "cpu.stat": "usage_usec 94498\nuser_usec 60000\nsystem_usec 34498\nnr_periods 20\nnr_throttled 0\nthrottled_usec 0\n",
}


def made(folder: Path, files: dict[str, str]) -> Cgroup:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Cgroup(str(folder))


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_counters(tmp_path: Path, files: dict[str, str]) -> None:
    cgroup = made(tmp_path, files)
    assert cgroup.memory_used() == 36950016
    assert cgroup.memory_needed() == 36950016 - 14573568 - 7004160  # file pages can be taken back
    assert cgroup.memory_peak() == 40000000
    assert cgroup.memory_kills() == 3
    assert cgroup.processes() == 12
    assert cgroup.forks_refused() == 5
    assert cgroup.cpu_seconds() == pytest.approx(0.0945, abs=1e-5)


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_they_are_read_anew_each_time(tmp_path: Path, files: dict[str, str]) -> None:
    cgroup = made(tmp_path, files)
    before = cgroup.forks_refused(), cgroup.memory_kills()
    for name in files:
        if name.endswith(("pids.events", "memory.events", "memory.oom_control")):
            (tmp_path / name).write_text(files[name].replace("5", "6").replace("oom_kill 3", "oom_kill 4"))
    assert (cgroup.forks_refused(), cgroup.memory_kills()) == (before[0] + 1, before[1] + 1)


def test_what_is_not_there_is_not_claimed(tmp_path: Path) -> None:
    cgroup = made(tmp_path, {"memory/memory.usage_in_bytes": "max\n", "cpu.stat": "user_usec 5\n"})
    assert cgroup.memory_used() is None
    assert cgroup.memory_needed() is None
    assert cgroup.processes() is None
    assert cgroup.cpu_seconds() is None
    assert (cgroup.memory_kills(), cgroup.forks_refused()) == (0, 0)


def test_without_the_details_all_that_is_used_counts(tmp_path: Path) -> None:
    assert made(tmp_path, {"memory.current": "5000\n"}).memory_needed() == 5000
