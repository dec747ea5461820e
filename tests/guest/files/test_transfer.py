"""Upload and download, with archives made to do harm and files that change while they are read."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.guest.files.transfer import download, upload
from sandbox.guest.loop.context import Place
from sandbox.guest.protocol.faults import Fault
from tests.guest.calls import RealCall, place_at
from tests.leaks import descriptors, left_open


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_at(tmp_path)


@pytest.fixture
def workspace(place: Place) -> Path:
    return Path(os.fsdecode(place.workspace))


def put(place: Place, path: str, *chunks: bytes, complete: bool = True, **args: Any) -> dict[str, Any]:
    return upload(RealCall(place, {"path": path, **args}, incoming=list(chunks), complete=complete))


def got(place: Place, path: str) -> tuple[dict[str, Any], bytes]:
    call = RealCall(place, {"path": path})
    return download(call), bytes(call.sent)


def archive(*members: tuple[str, dict[str, Any], bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, fields, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


LINK, HARD, FOLDER = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}, {"type": tarfile.DIRTYPE, "mode": 0o755}


def test_a_file(place: Place, workspace: Path) -> None:
    assert put(place, "d/f", b"one ", b"two") == {"path": "d/f", "files": 1, "size_bytes": 7}
    assert (workspace / "d/f").read_bytes() == b"one two"
    put(place, "d/f", b"x", mode=0o755)
    assert (workspace / "d/f").stat().st_mode & 0o777 == 0o755
    assert got(place, "d/f") == ({"path": "d/f", "kind": "file", "files": 1, "size_bytes": 1, "skipped": []}, b"x")


def test_a_broken_upload_leaves_nothing(place: Place, workspace: Path) -> None:
    (workspace / "f").write_text("old")
    with pytest.raises(Fault) as caught:
        put(place, "f", b"half", complete=False)
    assert (caught.value.code, caught.value.effects) == ("transfer_incomplete", "none")
    assert (workspace / "f").read_text() == "old"
    assert os.listdir(workspace) == ["f"]


def test_limits(tmp_path: Path) -> None:
    place = place_at(tmp_path, transfer_bytes=1000)
    with pytest.raises(Fault) as caught:
        put(place, "f", *[bytes(300)] * 4)
    assert caught.value.code == "file_too_large"
    with pytest.raises(Fault) as caught:
        put(place, "t", archive(("a", {}, bytes(600)), ("b", {}, bytes(600))), kind="tree")
    assert (caught.value.code, caught.value.effects) == ("file_too_large", "partial")
    assert caught.value.result == {"path": "t", "files": 1, "size_bytes": 600}
    with open(tmp_path / "workspace/huge", "wb") as file:
        file.truncate(1 << 40)
    for path in ("huge", "."):
        with pytest.raises(Fault) as caught:
            got(place, path)
        assert caught.value.code == "file_too_large"


def test_a_tree_there_and_back(place: Place, workspace: Path) -> None:
    long = "n" * 200
    sent = archive(
        ("./", FOLDER, b""),
        ("./bin", {**FOLDER, "mode": 0o555}, b""),
        ("./bin/run", {"mode": 0o4755}, b"#!/bin/sh\n"),
        ("empty", FOLDER, b""),
        ("link", {**LINK, "linkname": "/etc/passwd"}, b""),
        (f"{long}/{long}/ü", {}, b"deep"),
        ("bin/second", {**HARD, "linkname": "bin/run"}, b""),
        ("b\udcff", {}, b"raw name"),
    )
    result = put(place, "tree", *(sent[i : i + 1000] for i in range(0, len(sent), 1000)), kind="tree")
    assert result == {"path": "tree", "files": 4, "size_bytes": 22}
    assert (workspace / "tree/bin").stat().st_mode & 0o777 == 0o555
    assert (workspace / "tree/bin/run").stat().st_mode & 0o7777 == 0o755
    back, stream = got(place, "tree")
    assert (back["kind"], back["files"], back["size_bytes"], back["skipped"]) == ("tree", 4, 32, [])
    with tarfile.open(fileobj=io.BytesIO(stream), encoding="utf-8", errors="surrogateescape") as tar:
        members = {m.name: m for m in tar}
        assert set(members) == {
            "bin",
            "bin/run",
            "bin/second",
            "b\udcff",
            "empty",
            "link",
            long,
            f"{long}/{long}",
            f"{long}/{long}/ü",
        }
        assert (members["link"].type, members["link"].linkname) == (tarfile.SYMTYPE, "/etc/passwd")
        extracted = tar.extractfile(f"{long}/{long}/ü")
        assert extracted is not None
        assert extracted.read() == b"deep"


def test_a_tree_merges(place: Place, workspace: Path) -> None:
    (workspace / "t/d").mkdir(parents=True)
    (workspace / "t/keep").write_text("kept")
    (workspace / "t/f").write_text("old")
    (workspace / "t/l").symlink_to("keep")
    put(place, "t", archive(("f", {}, b"new"), ("l", {}, b"file now")), kind="tree")
    assert (workspace / "t/f").read_text() == "new"
    assert (workspace / "t/keep").read_text() == "kept"
    assert (workspace / "t/l").read_text() == "file now"
    with pytest.raises(Fault) as caught:
        put(place, "t", archive(("d", {}, b"a file where a folder is")), kind="tree")
    assert caught.value.code == "is_a_directory"


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", {}, b"x")],
        [("a/../../evil", {}, b"x")],
        [("/tmp/evil", {}, b"x")],
        [("ln", {**LINK, "linkname": "../../outside"}, b""), ("ln/evil", {}, b"x")],
        [("ln", {**LINK, "linkname": "/"}, b""), ("ln/evil", FOLDER, b"")],
        [("hard", {**HARD, "linkname": "../../outside/secret"}, b"")],
        [("hard", {**HARD, "linkname": "/etc/passwd"}, b"")],
        [("ln", {**LINK, "linkname": "../../outside"}, b""), ("hard", {**HARD, "linkname": "ln/secret"}, b"")],
        [("ln", {**LINK, "linkname": "../../outside/secret"}, b""), ("hard", {**HARD, "linkname": "ln"}, b"")],
        [("dev", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}, b"")],
        [("fifo", {"type": tarfile.FIFOTYPE}, b"")],
    ],
)
def test_archives_made_to_do_harm(place: Place, workspace: Path, tmp_path: Path, members: list[Any]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    with pytest.raises(Fault) as caught:
        put(place, "t", archive(*members), kind="tree")
    assert caught.value.code in ("unsafe_archive", "path_outside_roots")
    assert os.listdir(tmp_path / "outside") == ["secret"]
    assert (tmp_path / "outside/secret").stat().st_nlink == 1
    assert sorted(os.listdir(tmp_path)) == ["home", "outside", "spill", "workspace"]
    assert not {"dev", "fifo", "hard", "evil"} & set(os.listdir(workspace / "t"))


def test_writing_through_a_link_replaces_the_link_only(place: Place, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("old")
    put(
        place,
        "t",
        archive(("ln", {**LINK, "linkname": str(tmp_path / "victim")}, b""), ("ln", {}, b"new")),
        kind="tree",
    )
    assert (tmp_path / "victim").read_text() == "old"
    assert (workspace / "t/ln").read_text() == "new"


@pytest.mark.parametrize("data", [b"no archive at all" * 100, bytes(range(256)) * 8])
def test_a_stream_that_is_not_an_archive(place: Place, workspace: Path, data: bytes) -> None:
    with pytest.raises(Fault) as caught:
        put(place, "t", data, kind="tree")
    assert caught.value.code == "unsafe_archive"


def test_headers_that_would_fill_the_memory(place: Place, workspace: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 6 << 30
    with pytest.raises(Fault) as caught:
        put(place, "t", info.tobuf(tarfile.PAX_FORMAT), *[bytes(1 << 20)] * 4, kind="tree")
    assert caught.value.code == "unsafe_archive"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.integers(1, 5000),
)
def test_damaged_archives_end_in_a_fault_or_stay_inside(
    place: Place, tmp_path: Path, flips: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(
        archive(("d", FOLDER, b""), ("d/f", {}, b"x" * 700), ("l", {**LINK, "linkname": "d"}, b""), ("l/g", {}, b"y"))
    )
    for at, value in flips:
        data[at % len(data)] = value
    try:
        put(place, "t", bytes(data[:cut]), kind="tree")
    except Fault as fault:
        if fault.code in ("io_error", "path_invalid"):
            raise
    assert sorted(os.listdir(tmp_path)) == ["home", "spill", "workspace"]


def test_files_that_cannot_be_sent_are_named(place: Place, workspace: Path) -> None:
    (workspace / "t").mkdir()
    os.mkfifo(workspace / "t/fifo")
    (workspace / "t/f").write_text("x")
    result, stream = got(place, "t")
    assert (result["skipped"], result["files"]) == (["fifo"], 1)
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert tar.getnames() == ["f"]


def test_files_that_shrink_and_grow_do_not_break_the_archive(place: Place, workspace: Path) -> None:
    (workspace / "t").mkdir()
    for n in range(20):
        (workspace / f"t/{n:02}").write_bytes(b"x" * 300_000)
    stop = threading.Event()

    def resize() -> None:
        while not stop.is_set():
            for n in range(20):
                os.truncate(workspace / f"t/{n:02}", 10)
                os.truncate(workspace / f"t/{n:02}", 300_000)

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for _ in range(5):
            _, stream = got(place, "t")
            with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
                assert len(tar.getnames()) == 20
    finally:
        stop.set()
        thread.join()


def test_the_caller_can_give_up(place: Place, workspace: Path) -> None:
    (workspace / "f").write_bytes(bytes(1 << 20))

    class GivenUp(RealCall):
        def send(self, chunk: bytes) -> None:
            raise Fault("cancelled")

    got(place, "f")  # its root stays open
    for path in ("f", "."):
        before = descriptors()
        with pytest.raises(Fault) as caught:
            download(GivenUp(place, {"path": path}))
        assert caught.value.code == "cancelled"
        assert left_open(before, 30) == []


def test_a_file_that_says_it_is_empty_and_is_not(place: Place) -> None:
    call = RealCall(place, {"path": "/proc/sys/kernel/ostype"})
    call.place.read_roots = (b"/proc/sys/kernel",)
    assert (download(call)["size_bytes"], bytes(call.sent)) == (6, b"Linux\n")


def test_attributes_come_with_the_file_and_go_with_the_next(place: Place, workspace: Path) -> None:
    put(place, "a", b"1", attributes={"user.e2b.author": "me"})
    assert os.getxattr(workspace / "a", "user.e2b.author") == b"me"
    put(place, "a", b"2")
    assert os.listxattr(workspace / "a") == []
