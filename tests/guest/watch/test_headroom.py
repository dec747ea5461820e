"""What is told before it runs out, and what a tree of processes used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.guest.loop.context import Place
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.watch import memory_watch
from sandbox.guest.watch.cgroup import Cgroup
from sandbox.guest.watch.headroom import Headroom
from sandbox.guest.watch.memory_watch import MemoryWatch, find_largest_processes
from sandbox.guest.watch.procfs import sum_tree_seconds

MIB = 1 << 20
LIMIT = 1024 * MIB


class _Place:
    def __init__(self, folder: Path) -> None:
        self.limits = {"memory_bytes": LIMIT, "pids": 100}
        self.workspace = self.home = os.fsencode(folder)


class _Sandbox:
    """What headroom looks at, with counters in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.isolated = True
        self.disk: Any = None
        self.place = _Place(folder)
        self.set(memory=100 * MIB, cached=0, processes=10)
        self.cgroup = Cgroup(str(folder))

    def set(self, memory: int, cached: int, processes: int) -> None:
        (self.folder / "memory.current").write_text(f"{memory}\n")
        (self.folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 0\n")
        (self.folder / "pids.current").write_text(f"{processes}\n")


class _Watch:
    def __init__(self, used: int, limit: int = 100) -> None:
        self.used, self.limit = used, limit


@pytest.fixture
def sandbox(tmp_path: Path) -> _Sandbox:
    made = _Sandbox(tmp_path)
    made.disk = _Watch(10)
    return made


def headroom_of(sandbox: _Sandbox) -> Headroom:
    headroom = Headroom(cast("Place", sandbox.place), sandbox.cgroup, sandbox.isolated)
    headroom.disk = sandbox.disk
    return headroom


def codes(headroom: Headroom) -> list[str]:
    return [notice["code"] for notice in headroom.notices()]


def test_each_threshold_is_told_once_until_it_was_better(sandbox: _Sandbox) -> None:
    headroom = headroom_of(sandbox)
    assert codes(headroom) == []
    sandbox.set(memory=950 * MIB, cached=0, processes=10)
    assert codes(headroom) == ["memory_nearly_full"]
    assert codes(headroom) == []
    sandbox.set(memory=900 * MIB, cached=0, processes=10)  # still above what counts as better
    assert codes(headroom) == []
    sandbox.set(memory=950 * MIB, cached=0, processes=95)
    assert codes(headroom) == ["processes_nearly_full"]
    sandbox.set(memory=500 * MIB, cached=0, processes=95)
    assert codes(headroom) == []
    sandbox.set(memory=950 * MIB, cached=0, processes=95)
    assert codes(headroom) == ["memory_nearly_full"]


def test_of_processes_that_ran_out_a_later_answer_tells(sandbox: _Sandbox) -> None:
    """Two notices in one answer said nearly the same; the one that is left out must not be lost."""
    headroom = headroom_of(sandbox)
    sandbox.set(memory=950 * MIB, cached=0, processes=95)
    assert [notice["code"] for notice in headroom.notices(out_of_processes=True)] == ["memory_nearly_full"]
    assert codes(headroom) == ["processes_nearly_full"]
    assert codes(headroom) == []


def test_what_can_be_taken_back_is_not_used(sandbox: _Sandbox) -> None:
    headroom = headroom_of(sandbox)
    sandbox.set(memory=1020 * MIB, cached=600 * MIB, processes=10)
    assert codes(headroom) == []
    assert headroom.usage()["memory_used_bytes"] == 420 * MIB


def test_disks_are_looked_at_when_what_is_written_can_have_filled_them(
    sandbox: _Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    sandbox.place.limits["memory_bytes"] = 1 << 50
    sandbox.disk = _Watch(10 << 30, 100 << 30)
    headroom = headroom_of(sandbox)
    assert codes(headroom) == []
    clock[0] += 80 / 4 - 0.1  # 80 GiB are left to what is nearly full, and 4 can be written in a second
    sandbox.disk.used = 95 << 30
    assert codes(headroom) == []
    clock[0] += 0.2
    assert codes(headroom) == ["disk_nearly_full"]
    assert codes(headroom) == []
    sandbox.disk.used = 10 << 30
    assert codes(headroom) == []
    sandbox.disk.used = 95 << 30
    assert codes(headroom) == []


def test_a_disk_that_was_filled_at_once_is_told_with_the_next_answer(sandbox: _Sandbox) -> None:
    """As fallocate does it: no look before the answer could be left out for it."""
    sandbox.disk = _Watch(0, 1 << 50)
    headroom = headroom_of(sandbox)
    headroom.notices()
    assert headroom.look_late() == []
    sandbox.disk.used = 1 << 50
    assert codes(headroom) == []
    assert [notice["code"] for notice in headroom.look_late()] == ["disk_nearly_full"]
    assert headroom.look_late() == []
    assert codes(headroom) == []


def test_after_a_command_that_took_longer_disks_are_looked_at(sandbox: _Sandbox) -> None:
    sandbox.disk = _Watch(0, 1 << 50)
    headroom = headroom_of(sandbox)
    headroom.notices()
    sandbox.disk.used = 1 << 50
    assert headroom.notices(seconds=0.01) == []
    assert [notice["code"] for notice in headroom.notices(seconds=0.03)] == ["disk_nearly_full"]
    assert headroom.look_late() == []


def test_memory_that_files_can_fill_is_looked_at_as_well(sandbox: _Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    sandbox.disk = _Watch(0, 1 << 50)
    headroom = headroom_of(sandbox)
    assert headroom.notices_after_write() == []
    assert headroom.notices(seconds=0.001) == headroom.look_late() == []
    sandbox.set(memory=950 * MIB, cached=0, processes=10)
    clock[0] += 0.19  # 822 MiB are left, and 4 GiB can be written in a second
    assert headroom.notices_after_write() == []
    clock[0] += 0.02
    assert [notice["code"] for notice in headroom.notices_after_write()] == ["memory_nearly_full"]


def test_after_writes_much_room_is_looked_at_once_a_second_and_little_at_times(
    sandbox: _Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command in the background may fill a disk at once. One that is nearly full must not slow down every write."""
    clock, looks = [1000.0], list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    sandbox.place.limits["memory_bytes"] = 1 << 50
    sandbox.disk = _Watch(0, 1 << 50)
    headroom = headroom_of(sandbox)
    crossed = headroom._crossed

    def counting(name: str, used: int, size: int) -> bool:
        looks.append(name)
        return crossed(name, used, size)

    monkeypatch.setattr(headroom, "_crossed", counting)

    def looks_in(seconds: float) -> int:
        looks.clear()
        for _ in range(1000):
            clock[0] += seconds / 1000
            headroom.notices_after_write()
        return looks.count("memory")

    assert looks_in(10.5) == 11
    sandbox.disk.used = 1 << 50
    assert 180 < looks_in(10) <= 200


def test_a_disk_that_is_measured(sandbox: _Sandbox) -> None:
    headroom = headroom_of(sandbox)
    sandbox.disk.used = 95
    (notice,) = headroom.notices()
    assert notice == {"code": "disk_nearly_full", "free": 5, "size": 100, "path": "the disk"}
    assert codes(headroom) == []
    assert headroom.notices(stopped_for_disk=True) == [{"code": "no_space", "used": 95, "limit": 100}]


def test_of_this_machine_nothing_is_told(sandbox: _Sandbox) -> None:
    sandbox.isolated = False
    sandbox.set(memory=LIMIT, cached=0, processes=100)
    assert headroom_of(sandbox).notices() == []


SPEND = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.2: pass\n"
PARENT = (
    "import os, subprocess, sys\n"
    f"subprocess.run([sys.executable, '-c', {SPEND!r}])\n"  # dead and waited for
    f"zombie = subprocess.Popen([sys.executable, '-c', {SPEND!r}])\n"
    "os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)\n"
    f"{SPEND}\n"
    "print('done', flush=True)\nsys.stdin.read()\n"
)


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "done\n"
        yield started
        started.communicate()


def test_a_tree_is_what_lives_and_what_was_waited_for(parent: subprocess.Popen[str]) -> None:
    of_children = sum_tree_seconds(parent.pid)
    assert 0.38 <= of_children < 2.0  # the waited-for one by its parent's account, the zombie by its own
    assert 0.18 <= sum_tree_seconds(parent.pid, before=0.2) <= of_children - 0.1
    assert sum_tree_seconds(os.getpid()) >= of_children + 0.18  # and the parent itself


HOG = "import sys\nx = b'x' * (200 << 20)\nprint('full', flush=True)\nsys.stdin.read()"


def test_the_largest_is_known_when_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(memory_watch, "MOST_SEEN", 1000)  # this machine may have larger ones
    (tmp_path / "memory.current").write_text(str(900 * MIB))
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    reactor = Reactor()
    watch = MemoryWatch(reactor, Cgroup(str(tmp_path)), LIMIT, lambda: True)
    started = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout is not None
        assert hog.stdout.readline() == "full\n"
        watch.wake()
        reactor.after(0.5, reactor.stop)
        reactor.run()
        assert watch.find_victim(os.getpid(), started) is None  # it is there
        hog.kill()
    gone = watch.find_victim(os.getpid(), started)
    assert gone is not None
    assert gone.pid == hog.pid
    assert gone.name.startswith("python")
    assert gone.bytes >= 200 * MIB
    assert watch.find_victim(os.getpid(), time.monotonic()) is None  # nothing of a later command
    assert watch.find_victim(hog.pid, started) is None  # nor of another one's


def test_one_that_is_killed_during_a_look_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills after the look has read the number of kills, and before it reads the processes."""
    monkeypatch.setattr(memory_watch, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(memory_watch, "MOST_SEEN", 1000)  # this machine may have larger ones
    monkeypatch.setattr(memory_watch, "MOST_SUSPECTS", 3000)
    (tmp_path / "memory.current").write_text(str(900 * MIB))
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    reactor = Reactor()
    watch = MemoryWatch(reactor, Cgroup(str(tmp_path)), LIMIT, lambda: True)
    started = time.monotonic()
    looks = 0
    with subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout is not None
        assert hog.stdout.readline() == "full\n"

        def look() -> list[memory_watch.Sighting]:
            nonlocal looks
            looks += 1
            if looks == 2:
                hog.kill()
                hog.wait()
                (tmp_path / "memory.events").write_text("oom_kill 1\n")
            elif looks == 4:
                reactor.stop()
            return find_largest_processes()

        monkeypatch.setattr(memory_watch, "find_largest_processes", look)
        watch.wake()
        reactor.run()
    gone = watch.find_victim(os.getpid(), started)
    assert gone is not None
    assert (gone.pid, gone.bytes >= 200 * MIB) == (hog.pid, True)
