"""Measuring folders, and killing all but what is to be kept."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.guest.commands.killer import kill_below
from sandbox.guest.watch import disk_usage
from sandbox.guest.watch.disk_usage import measure_sizes
from sandbox.guest.watch.procfs import find_descendants


def measured(*folders: Path) -> int:
    return sum(measure_sizes([os.fsencode(folder) for folder in folders]))


def test_blocks_count_and_not_sizes(tmp_path: Path) -> None:
    before = measured(tmp_path)
    (tmp_path / "full").write_bytes(b"x" * 1_000_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert 1_000_000 <= measured(tmp_path) - before < 1_100_000


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "one").write_bytes(b"x" * 1_000_000)
    once = measured(tmp_path)
    os.link(tmp_path / "one", tmp_path / "sub" / "two")
    assert measured(tmp_path) - once < 100_000


def test_a_folder_below_another_counts_once_and_for_itself(tmp_path: Path) -> None:
    """On engines without overlays the workspace has the device of the root, so that measuring the root would count it, too."""
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "deep" / "one").write_bytes(b"x" * 1_000_000)
    (tmp_path / "two").write_bytes(b"x" * 2_000_000)
    outer, inner = measure_sizes([os.fsencode(tmp_path), os.fsencode(tmp_path / "sub")])
    assert 1_000_000 <= inner < 1_100_000
    assert 2_000_000 <= outer < 2_100_000


def test_links_are_not_followed_and_what_is_gone_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    assert measured(tmp_path, tmp_path / "none") < 1_000_000


def test_a_measurement_that_waited_for_a_processor_does_not_put_off_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pauses = list[float]()

    def measure(folders: Sequence[bytes]) -> list[int]:
        time.sleep(0.5)  # others have the processor
        return [7 for _ in folders]

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        reader.close()  # ends it

    monkeypatch.setattr(disk_usage, "measure_sizes", measure)
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr(disk_usage, "time", SimpleNamespace(process_time=time.process_time, sleep=pause))
    monkeypatch.setattr("sys.argv", ["disk_usage", str(writer.detach()), "/a", "/b"])
    disk_usage.main()
    assert pauses == [disk_usage.LEAST_SECONDS]


def test_what_is_kept_lives_on_with_all_below_it() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with (
        subprocess.Popen([sys.executable, "-c", program]) as kept,
        subprocess.Popen([sys.executable, "-c", program]) as victim,
    ):
        while not (find_descendants(kept.pid) and find_descendants(victim.pid)):
            pass
        below = find_descendants(kept.pid)
        found = find_descendants(os.getpid(), {kept.pid})
        assert victim.pid in found
        assert not {kept.pid, *below} & set(found)
        for process in (kept, victim):
            killed, alive = kill_below(process.pid, 60)
            assert killed
            assert not alive
