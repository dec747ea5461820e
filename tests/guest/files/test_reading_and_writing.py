"""Reading and writing files through the handlers, as the dispatcher calls them."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest.files.reading import read
from sandbox.guest.files.writing import edit, write
from sandbox.guest.loop.context import Place
from sandbox.guest.protocol.faults import Fault
from tests.guest.calls import RealCall, place_at


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_at(tmp_path)


@pytest.fixture
def workspace(place: Place) -> Path:
    return Path(os.fsdecode(place.workspace))


def reading(place: Place, path: str, **args: Any) -> tuple[dict[str, Any], bytes]:
    return read(RealCall(place, {"path": path, **args}))


def writing(place: Place, path: str, content: str) -> dict[str, Any]:
    return write(RealCall(place, {"path": path, "content": content}))


def fault(call: Any, *args: Any, **more: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        call(*args, **more)
    return caught.value


def test_read_whole(place: Place, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"one\r\ntwo\nthree")
    result, content = reading(place, "f")
    assert content == b"one\r\ntwo\nthree"
    assert result == {
        "path": "f",
        "size_bytes": 14,
        "start_line": 1,
        "end_line": 3,
        "total_lines": 3,
        "truncated": False,
        "encoding_errors": False,
    }


@pytest.mark.parametrize(
    ("start", "end", "expected", "shown"),
    [
        (1, 1, b"l1\n", (1, 1)),
        (2, 3, b"l2\nl3\n", (2, 3)),
        (9, 20, b"l9\nl10\n", (9, 10)),
        (10, None, b"l10\n", (10, 10)),
        (None, 2, b"l1\nl2\n", (1, 2)),
    ],
)
def test_read_lines(
    place: Place, workspace: Path, start: int | None, end: int | None, expected: bytes, shown: tuple[int, int]
) -> None:
    (workspace / "f").write_text("".join(f"l{n}\n" for n in range(1, 11)))
    result, content = reading(place, "f", start_line=start, end_line=end)
    assert content == expected
    assert (result["start_line"], result["end_line"], result["total_lines"], result["truncated"]) == (*shown, 10, False)


def test_read_numbered(place: Place, workspace: Path) -> None:
    (workspace / "f").write_text("a\nb\nc")
    assert reading(place, "f", start_line=2, numbered=True)[1] == b"     2\tb\n     3\tc"


def test_read_empty(place: Place, workspace: Path) -> None:
    (workspace / "f").touch()
    result, content = reading(place, "f")
    assert (content, result["total_lines"], result["end_line"]) == (b"", 0, None)


@pytest.mark.parametrize("text", ["a\n", "a", ""])
def test_read_beyond_the_end(place: Place, workspace: Path, text: str) -> None:
    (workspace / "f").write_text(text)
    refused = fault(reading, place, "f", start_line=2)
    assert refused.code == "range_outside_file"
    assert refused.fields["total_lines"] == bool(text)
    assert fault(reading, place, "f", offset=9).code == "range_outside_file"


def test_long_files_are_cut_at_whole_lines(tmp_path: Path) -> None:
    place = place_at(tmp_path, read_bytes=1000)
    (tmp_path / "workspace/f").write_text("123456789\n" * 500)
    result, content = reading(place, "f", start_line=11)
    assert content == b"123456789\n" * 100
    assert (result["start_line"], result["end_line"], result["total_lines"], result["truncated"]) == (
        11,
        110,
        500,
        True,
    )
    assert len(reading(place, "f", numbered=True)[1]) <= 1000


def test_a_line_longer_than_the_limit_is_cut_inside(tmp_path: Path) -> None:
    place = place_at(tmp_path, read_bytes=1000)
    (tmp_path / "workspace/f").write_text("short\n" + "ä" * 5000 + "\nend\n")
    result, content = reading(place, "f", start_line=2)
    assert content.decode() == "ä" * 500
    assert (result["end_line"], result["truncated"], result["offset"], result["next_offset"]) == (None, True, 6, 1006)
    assert result["total_lines"] == 3
    onward, more = reading(place, "f", offset=result["next_offset"], max_bytes=11)
    assert more.decode() == "ä" * 5
    assert onward["next_offset"] == 1016


def test_bytes_cover_a_file_exactly(tmp_path: Path) -> None:
    place = place_at(tmp_path, read_bytes=7)
    text = "aä€😀" * 9
    (tmp_path / "workspace/f").write_text(text)
    at, pieces = 0, []
    while True:
        result, content = reading(place, "f", offset=at)
        assert not result["encoding_errors"]
        pieces.append(content.decode())
        at = result["next_offset"]
        if not result["truncated"]:
            break
    assert "".join(pieces) == text


def test_binary_files_are_described_and_read_by_bytes(place: Place, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"\x7fELF\0\xff")
    assert reading(place, "f") == ({"path": "f", "size_bytes": 6, "binary": True}, b"")
    result, content = reading(place, "f", offset=1, max_bytes=100)
    assert (content, result["encoding_errors"], result.get("binary", False)) == (b"ELF\0\xff", True, False)


def test_a_sparse_tebibyte_answers(place: Place, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.guest.files.reading.SKIPPED", 64 << 20)
    with open(workspace / "zeros", "wb") as file:
        file.truncate(1 << 40)
    with open(workspace / "text", "wb") as file:
        file.write(b"line\n" * 4000)
        file.truncate(1 << 40)
    assert reading(place, "zeros")[0]["binary"] is True
    result, content = reading(place, "text", end_line=2)
    assert (content, result["total_lines"]) == (b"line\nline\n", None)
    assert "total_lines" not in fault(reading, place, "text", start_line=5000).fields


def test_arguments_that_exclude_each_other(place: Place, workspace: Path) -> None:
    (workspace / "f").touch()
    assert fault(reading, place, "f", offset=0, start_line=1).code == "invalid_arguments"
    assert fault(reading, place, "f", start_line=3, end_line=2).code == "invalid_arguments"


def test_write_makes_parents_and_keeps_the_mode(place: Place, workspace: Path) -> None:
    assert writing(place, "a/b/c.sh", "é") == {"path": "a/b/c.sh", "size_bytes": 2, "created": True}
    (workspace / "a/b/c.sh").chmod(0o751)
    assert writing(place, str(workspace / "a/b/c.sh"), "new")["created"] is False
    assert (workspace / "a/b/c.sh").read_text() == "new"
    assert (workspace / "a/b/c.sh").stat().st_mode & 0o7777 == 0o751
    assert os.listdir(workspace / "a/b") == ["c.sh"]


def test_write_through_a_link_inside_writes_its_target(place: Place, workspace: Path, tmp_path: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "l").symlink_to(tmp_path / "home/target")
    (workspace / "m").symlink_to("l")
    writing(place, "m", "text")
    assert (workspace / "l").is_symlink()
    assert (workspace / "m").is_symlink()
    assert (tmp_path / "home/target").read_text() == "text"


def test_write_through_a_link_outside_fails(place: Place, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("old")
    (workspace / "l").symlink_to("../victim")
    assert fault(writing, place, "l", "new").code == "path_outside_roots"
    assert (workspace / "l").is_symlink()
    assert (tmp_path / "victim").read_text() == "old"
    assert os.listdir(workspace) == ["l"]


def test_write_refuses_anything_but_a_regular_file(place: Place, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    (workspace / "d").mkdir()
    assert fault(writing, place, "fifo", "x").code == "not_a_regular_file"
    assert fault(writing, place, "d", "x").code == "is_a_directory"
    assert fault(writing, place, "/etc/new", "x").fields["path"] == "/etc/new"
    assert fault(writing, place, "new/", "x").code == "is_a_directory"
    assert fault(writing, place, "made/a\0b", "x").code == "path_invalid"
    assert fault(writing, place, "made/..", "x").code == "path_invalid"
    assert not (workspace / "made").exists(), "no folder is made for an impossible name"
    assert fault(writing, place, "fifo/x", "x").code == "not_a_directory"
    assert fault(writing, place, "f", "x" * (8 << 20) + "x").code == "file_too_large"
    assert fault(writing, place, "f", "\ud800").code == "invalid_arguments"
    assert sorted(os.listdir(workspace)) == ["d", "fifo"]


def test_a_full_disk_leaves_the_file_as_it_was(place: Place, workspace: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    small = workspace / "small"
    small.mkdir()
    assert libc.mount(b"none", os.fsencode(small), b"tmpfs", 0, b"size=64k") == 0
    try:
        (small / "f").write_text("old")
        refused = fault(writing, place, "small/f", "x" * 200_000)
        assert (refused.code, refused.effects, refused.fields["existed"]) == ("no_space", "none", True)
        refused = fault(writing, place, "small/d/new", "x" * 200_000)
        assert (refused.effects, refused.fields["existed"], refused.fields["folder_made"]) == ("partial", False, True)
        (small / "d").rmdir()
        assert (small / "f").read_text() == "old"
        assert os.listdir(small) == ["f"]
    finally:
        assert libc.umount2(os.fsencode(small), 2) == 0


def test_the_user_needs_the_permission_to_write(place: Place, workspace: Path) -> None:
    (workspace / "theirs").write_text("old")
    (workspace / "theirs").chmod(0o644)
    workspace.chmod(0o777)
    for folder in (workspace.parent, *workspace.parent.parents[:-1]):
        if not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o711)
    answers: list[Fault] = []

    def as_user() -> None:
        libc = ctypes.CDLL(None)
        libc.setfsgid(65534)
        libc.setfsuid(65534)
        answers.append(fault(writing, place, "theirs", "new"))

    thread = threading.Thread(target=as_user)
    thread.start()
    thread.join()
    assert answers[0].code == "permission_denied"
    assert (workspace / "theirs").read_text() == "old"


def test_writes_are_never_torn(place: Place, workspace: Path) -> None:
    versions = {letter * 100_000 for letter in "abc"}
    writing(place, "f", "a" * 100_000)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for version in versions:
                writing(place, "f", version)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(200):
            assert reading(place, "f")[1].decode() in versions
    finally:
        stop.set()
        thread.join()


def test_no_race_writes_outside(place: Place, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (workspace / "flip").mkdir()
    (workspace / "other").symlink_to(tmp_path / "outside")
    libc = ctypes.CDLL(None, use_errno=True)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            libc.renameat2(-100, os.fsencode(workspace / "flip"), -100, os.fsencode(workspace / "other"), 2)

    thread = threading.Thread(target=flip)
    thread.start()
    written = refused = 0
    try:
        until = time.monotonic() + 60  # on a busy machine the two threads may take turns that are long
        while written + refused < 2000 or (not (written and refused) and time.monotonic() < until):
            try:
                writing(place, "flip/f", str(written + refused))
                written += 1
            except Fault as fault:
                if fault.code not in ("path_outside_roots", "not_a_directory", "path_exists"):
                    raise
                refused += 1
    finally:
        stop.set()
        thread.join()
    assert os.listdir(tmp_path / "outside") == []
    assert written > 0
    assert refused > 0


def editing(place: Place, path: str, old: str, new: str, replace_all: bool = False) -> dict[str, Any]:
    return edit(RealCall(place, {"path": path, "old_text": old, "new_text": new, "replace_all": replace_all}))


def test_edit(place: Place, workspace: Path) -> None:
    (workspace / "f.py").write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n\xff = 3")
    (workspace / "f.py").chmod(0o640)
    result = editing(place, "f.py", "a = 1\nb = 2", "a = 1\nx = 0\nb = 3")
    assert (workspace / "f.py").read_bytes() == b"\xef\xbb\xbfa = 1\r\nx = 0\r\nb = 3\r\n\xff = 3"
    assert (workspace / "f.py").stat().st_mode & 0o777 == 0o640
    assert (result["replacements"], result["first_line"], result["size_bytes"]) == (1, 1, 29)
    assert "-b = 2\r\n+x = 0\r\n+b = 3\r\n" in result["diff"]


def test_edit_failures_show_where(place: Place, workspace: Path) -> None:
    (workspace / "f").write_text("def one():\n    return 1\n\ndef two():\n    return 1\n")
    missing = fault(editing, place, "f", "def three():\n    return 1\n", "x")
    assert missing.code == "text_not_found"
    assert missing.result is not None
    assert {c["start_line"] for c in missing.result["candidates"]} >= {1, 4}
    several = fault(editing, place, "f", "return 1", "return 2")
    assert (several.code, several.fields["count"]) == ("text_not_unique", 2)
    assert several.result is not None
    assert [c["start_line"] for c in several.result["candidates"]] == [2, 5]
    assert editing(place, "f", "return 1", "return 2", replace_all=True)["replacements"] == 2
    assert fault(editing, place, "f", "x", "x").code == "invalid_arguments"
    (workspace / "bin").write_bytes(b"a\0b")
    assert fault(editing, place, "bin", "a", "b").code == "not_text"


def test_simultaneous_edits_never_lose_one(place: Place, workspace: Path) -> None:
    (workspace / "f").write_text("".join(f"<{n}>\n" for n in range(60)))
    changed: list[int] = []

    def work(mine: range) -> None:
        for n in mine:
            while True:
                try:
                    editing(place, "f", f"<{n}>", f"[{n}]")
                except Fault as refused:
                    if refused.code != "path_changed":
                        raise
                    continue
                changed.append(n)
                break

    threads = [threading.Thread(target=work, args=(range(i, 60, 3),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(changed) == 60
    assert (workspace / "f").read_text() == "".join(f"[{n}]\n" for n in range(60))
