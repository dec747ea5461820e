"""make_dir, move and delete."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest.files.tree import delete, make_dir, move
from sandbox.guest.loop.context import Place
from sandbox.guest.protocol.faults import Fault
from tests.guest.calls import RealCall, place_at


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_at(tmp_path)


@pytest.fixture
def workspace(place: Place) -> Path:
    return Path(os.fsdecode(place.workspace))


def call(place: Place, handler: Any, **args: Any) -> dict[str, Any]:
    result: dict[str, Any] = handler(RealCall(place, args))
    return result


def fault(place: Place, handler: Any, **args: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        call(place, handler, **args)
    return caught.value


def test_make_dir(place: Place, workspace: Path) -> None:
    assert call(place, make_dir, path="a/b") == {"path": "a/b", "created": True}
    assert call(place, make_dir, path="a/b") == {"path": "a/b", "created": False}
    (workspace / "f").touch()
    assert fault(place, make_dir, path="f").code == "path_exists"
    assert fault(place, make_dir, path="f/x").code == "not_a_directory"
    assert fault(place, make_dir, path="/etc/x").code == "path_outside_roots"


def test_move(place: Place, workspace: Path) -> None:
    (workspace / "a").write_text("a")
    (workspace / "b").write_text("b")
    assert fault(place, move, source="a", target="b").code == "path_exists"
    assert call(place, move, source="a", target="b", overwrite=True) == {"source": "a", "target": "b"}
    assert (workspace / "b").read_text() == "a"
    assert not (workspace / "a").exists()
    (workspace / "d/e").mkdir(parents=True)
    assert fault(place, move, source="d", target="d/e/f").code == "path_invalid"
    assert fault(place, move, source="b", target="d", overwrite=True).code == "is_a_directory"
    assert fault(place, move, source="d", target="b", overwrite=True).code == "not_a_directory"
    assert fault(place, move, source="none", target="x").code == "path_not_found"
    assert fault(place, move, source="b", target="none/x").code == "path_not_found"
    assert fault(place, move, source="b", target="../x").code == "path_outside_roots"
    call(place, move, source="d", target="../home/d")
    assert (workspace.parent / "home/d/e").is_dir()


def test_a_link_is_moved_and_deleted_itself(place: Place, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    (workspace / "l").symlink_to(tmp_path / "victim")
    call(place, move, source="l", target="m")
    assert os.readlink(workspace / "m") == str(tmp_path / "victim")
    assert call(place, delete, path="m")["entries_deleted"] == 1
    assert (tmp_path / "victim").exists()


def test_move_to_another_file_system(place: Place, workspace: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    other = workspace / "other"
    other.mkdir()
    assert libc.mount(b"none", os.fsencode(other), b"tmpfs", 0, b"size=1m") == 0
    try:
        (workspace / "tree/sub").mkdir(parents=True)
        (workspace / "tree/sub/f").write_text("text")
        (workspace / "tree/sub/f").chmod(0o751)
        (workspace / "tree/l").symlink_to("nowhere")
        call(place, move, source="tree", target="other/tree")
        assert not (workspace / "tree").exists()
        assert (other / "tree/sub/f").read_text() == "text"
        assert (other / "tree/sub/f").stat().st_mode & 0o777 == 0o751
        assert os.readlink(other / "tree/l") == "nowhere"
        (workspace / "big").write_bytes(bytes(2 << 20))
        assert fault(place, move, source="big", target="other/big").code == "no_space"
        assert os.listdir(other) == ["tree"]
        assert (workspace / "big").exists()
        os.mkfifo(workspace / "fifo")
        assert fault(place, move, source="fifo", target="other/fifo").code == "not_a_regular_file"
    finally:
        assert libc.umount2(os.fsencode(other), 2) == 0


def test_delete(place: Place, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/f").touch()
    (workspace / "d/e").mkdir(parents=True)
    (workspace / "d/f").touch()
    (workspace / "d/e/l").symlink_to(tmp_path / "victim")
    assert fault(place, delete, path="d").code == "directory_not_empty"
    assert call(place, delete, path="d", recursive=True) == {"path": "d", "entries_deleted": 4}
    assert (tmp_path / "victim/f").exists()
    assert fault(place, delete, path="d").code == "path_not_found"
    assert fault(place, delete, path=".", recursive=True).code == "path_invalid"
    assert fault(place, delete, path="../home", recursive=True).code == "path_invalid"
    (workspace / "empty").mkdir()
    assert call(place, delete, path="empty")["entries_deleted"] == 1


def test_delete_a_tree_deeper_than_descriptors_go(place: Place, workspace: Path) -> None:
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        assert call(place, delete, path="d", recursive=True)["entries_deleted"] == 1500
        assert os.listdir(workspace) == []
    finally:  # deeper than pytest can clean up
        subprocess.run(["rm", "-rf", str(workspace / "d")], check=True)


def test_what_the_user_may_not_delete_stays(place: Place, workspace: Path) -> None:
    for folder in (workspace.parent, *workspace.parent.parents[:-1]):
        if not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o711)
    workspace.chmod(0o777)
    (workspace / "d").mkdir()
    (workspace / "d/f").touch()
    answers: list[Fault] = []

    def as_user() -> None:
        libc = ctypes.CDLL(None)
        libc.setfsgid(65534)
        libc.setfsuid(65534)
        answers.append(fault(place, delete, path="d", recursive=True))

    thread = threading.Thread(target=as_user)
    thread.start()
    thread.join()
    assert (answers[0].code, answers[0].effects) == ("permission_denied", "none")
    assert (workspace / "d/f").exists()


FLIPS = """
import ctypes, os, sys
flip = ctypes.CDLL(None, use_errno=True).renameat2
print("flips", flush=True)
while os.getppid() == int(sys.argv[1]):
    if flip(-100, b"round/t/flip", -100, b"round/link", 2):
        assert ctypes.get_errno() in (2, 20), ctypes.get_errno()
"""


def test_no_race_deletes_outside(place: Place, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    outside = tmp_path / "outside/f"
    command = [sys.executable, "-c", FLIPS, str(os.getpid())]
    with subprocess.Popen(command, cwd=workspace, stdout=subprocess.PIPE) as flips:
        assert flips.stdout
        assert flips.stdout.readline() == b"flips\n"
        try:
            for n in range(300):
                outside.touch()
                (workspace / "next/t/flip").mkdir(parents=True)
                (workspace / "next/link").symlink_to(tmp_path / "outside")
                (workspace / "next").rename(workspace / "round")
                try:
                    call(place, delete, path="round/t", recursive=True)
                except Fault as refused:
                    if refused.code not in ("not_a_directory", "path_invalid", "path_not_found", "directory_not_empty"):
                        raise
                assert outside.exists()
                (workspace / "round").rename(workspace / f"over-{n}")
            assert flips.poll() is None
        finally:
            flips.kill()
