"""When the bytes of a replaced file leave memory: before the answer, or right after it, and what is said of those that are lost."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.guest import write_out
from sandbox.guest.write_out import LATER_SECONDS, MARGIN_BYTES, MOST_WAITING, WriteOut

SIZE = 4 << 20


class Disk:
    """Stands for the host's disk: ``free`` bytes; notes in which thread which file was written out; full if ``full``.

    Its time stands still, so that nothing is written out before a test lets it pass.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.free = MARGIN_BYTES + 3 * SIZE
        self.full = False
        self.written: list[tuple[bool, int]] = []  # whether by the test's own thread; inode

    def fsync(self, file: int) -> None:
        self.written.append((threading.current_thread() is threading.main_thread(), os.fstat(file).st_ino))
        if self.full:
            raise OSError(errno.ENOSPC, "full")

    def statvfs(self, folder: bytes) -> SimpleNamespace:
        assert folder == b"/host"
        return SimpleNamespace(f_bavail=self.free // 4096, f_frsize=4096)

    def let_pass(self, out: WriteOut) -> None:
        """Let the time pass in which files wait, and wait until none does."""
        self.seconds += LATER_SECONDS
        until(lambda: not out._works)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    made = Disk()
    monkeypatch.setattr(write_out, "_LOOP_MAJOR", os.major(tmp_path.stat().st_dev))
    monkeypatch.setattr(os, "fsync", made.fsync)
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    clock = SimpleNamespace(monotonic=lambda: made.seconds, sleep=lambda seconds: time.sleep(min(seconds, 0.001)))
    monkeypatch.setattr(write_out, "time", clock)
    return made


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    files: list[int] = []

    def made(size: int) -> int:
        files.append(os.open(tmp_path / f"file{len(files)}", os.O_RDWR | os.O_CREAT))
        os.ftruncate(files[-1], size)
        return files[-1]

    yield made
    for file in files:
        os.close(file)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def settle(out: WriteOut, file: int, path: str) -> None:
    out.settle(file, os.fstat(file), path)


def inode(file: int) -> int:
    return os.fstat(file).st_ino


def test_no_more_files_wait_than_may_be_open(disk: Disk, make: Callable[[int], int]) -> None:
    file, out = make(1), WriteOut(b"/host")
    for _ in range(MOST_WAITING + 1):
        settle(out, file, "file")
    assert disk.written == [(True, inode(file))]
    disk.let_pass(out)
    assert len(disk.written) == MOST_WAITING + 1


def test_a_file_that_was_replaced_meanwhile_keeps_no_other_from_waiting(
    disk: Disk, make: Callable[[int], int], tmp_path: Path
) -> None:
    replaced, file, out = make(SIZE), make(1), WriteOut(b"/host")
    disk.free = 1 << 50
    (tmp_path / "file0").unlink()
    for _ in range(MOST_WAITING):
        settle(out, replaced, "file")
    for _ in range(MOST_WAITING):
        settle(out, file, "file")
    assert disk.written == []
    disk.let_pass(out)
    assert disk.written == [(False, inode(file))] * MOST_WAITING
    assert out._bytes == 0


def test_files_that_were_replaced_are_let_go_of_before_their_time(
    disk: Disk, make: Callable[[int], int], tmp_path: Path
) -> None:
    """Else one call would let go of all of them, in 10 ms, when as many wait as may."""
    out = WriteOut(b"/host")
    files = [make(1) for _ in range(3)]
    for number, file in enumerate(files):
        settle(out, file, "file")
        if number < 2:
            (tmp_path / f"file{number}").unlink()
    until(lambda: len(out._waiting) == 1)
    assert disk.written == []
    disk.let_pass(out)
    assert disk.written == [(False, inode(files[2]))]


@pytest.mark.parametrize("size", [1, SIZE])
def test_a_file_is_written_out_after_the_answer_while_the_host_has_much_room(
    disk: Disk, make: Callable[[int], int], size: int
) -> None:
    files, out = [make(size), make(size)], WriteOut(b"/host")
    for file in files:
        settle(out, file, "file")
    assert disk.written == []
    disk.let_pass(out)
    assert disk.written == [(False, inode(file)) for file in files]
    assert out.notices() == []
    settle(out, files[0], "file")  # by another thread: the first has ended
    disk.let_pass(out)
    assert len(disk.written) == 3


def test_a_program_that_still_waits_can_be_run(disk: Disk, tmp_path: Path) -> None:
    """The kernel refuses to run a file that is open for writing ("Text file busy")."""
    program, out = tmp_path / "program", WriteOut(b"/host")
    file = os.open(program, os.O_WRONLY | os.O_CREAT, 0o755)
    data = Path("/bin/sh").read_bytes()
    os.write(file, data)
    settle(out, file, "program")
    os.close(file)
    assert disk.written == []
    assert subprocess.run([program, "-c", "exit 7"], check=False).returncode == 7
    disk.let_pass(out)
    assert len(disk.written) == 1


@pytest.mark.parametrize("host_disk", [b"/host", None])
def test_a_file_is_written_out_before_the_answer_where_room_is_short_or_unknown(
    disk: Disk, make: Callable[[int], int], host_disk: bytes | None
) -> None:
    file = make(SIZE)
    if host_disk is not None:
        disk.free = MARGIN_BYTES + SIZE - 4096
    settle(WriteOut(host_disk), file, "file")
    assert disk.written == [(True, inode(file))]


def test_what_still_waits_counts_as_used(disk: Disk, make: Callable[[int], int]) -> None:
    files, out = [make(SIZE) for _ in range(3)], WriteOut(b"/host")
    disk.free = MARGIN_BYTES + 2 * SIZE
    for file in files:
        settle(out, file, "file")
    assert disk.written == [(True, inode(files[2]))]
    disk.let_pass(out)


def test_a_full_disk_is_a_failure_at_once_or_a_notice_later(disk: Disk, make: Callable[[int], int]) -> None:
    out, disk.full = WriteOut(b"/host"), True
    with pytest.raises(OSError, match="full"):
        settle(WriteOut(), make(1), "file")
    settle(out, make(SIZE), "/workspace/long")
    disk.let_pass(out)
    assert out.notices() == [{"code": "write_lost", "names": ["/workspace/long"], "count": 1}]
    assert out.notices() == []


def test_no_lost_file_is_left_out_of_the_count(disk: Disk, make: Callable[[int], int]) -> None:
    out, disk.full = WriteOut(b"/host"), True
    file = make(1)
    for number in range(MOST_WAITING):
        settle(out, file, f"/workspace/{number}")
    disk.let_pass(out)
    assert out.notices() == [{"code": "write_lost", "names": [f"/workspace/{n}" for n in range(5)], "count": MOST_WAITING}]


def test_no_descriptor_is_left(disk: Disk, make: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    file = make(SIZE)
    monkeypatch.setattr(os, "open", refuse)
    settle(WriteOut(b"/host"), file, "file")
    assert disk.written == [(True, inode(file))]


def test_a_file_that_was_deleted_meanwhile_is_never_written_out(
    disk: Disk, make: Callable[[int], int], tmp_path: Path
) -> None:
    out = WriteOut(b"/host")
    settle(out, make(SIZE), "file")
    (tmp_path / "file0").unlink()
    disk.let_pass(out)
    assert disk.written == []


def test_no_thread_can_be_started(disk: Disk, make: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    file = make(SIZE)
    monkeypatch.setattr(write_out, "start_thread", refuse)
    settle(WriteOut(b"/host"), file, "file")
    assert disk.written == [(True, inode(file))]


def test_files_in_memory_have_nowhere_to_go(
    disk: Disk, make: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_out, "_LOOP_MAJOR", 4000)
    settle(WriteOut(b"/host"), make(SIZE), "file")
    assert disk.written == []
