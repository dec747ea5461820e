"""The host's side of a transfer: in one step or not at all."""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sandbox.errors import ErrorCode, OperationError
from sandbox.operations import DownloadResult
from sandbox.transfers.copying import Incoming, outgoing

LIMIT = 1 << 20


def tree(*names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return packed.getvalue()


def refused(code: ErrorCode, *words: str) -> AbstractContextManager[object]:
    def fits(error: OperationError) -> bool:
        return error.code is code and bool(error.hint) and all(word in error.message for word in words)

    return pytest.raises(OperationError, check=fits)


def test_bytes_into_memory() -> None:
    with Incoming(None, LIMIT) as incoming:
        incoming.take(b"ab")
        incoming.take(b"c")
        result = incoming.finish(DownloadResult(path="a", files=1, size_bytes=999))
    assert (result.content, result.size_bytes, result.saved_to) == (b"abc", 3, None)


def test_nothing_is_there_before_all_of_it(tmp_path: Path) -> None:
    with Incoming(tmp_path / "a", LIMIT) as incoming:
        incoming.take(b"abc")
        assert not (tmp_path / "a").exists()
        result = incoming.finish(DownloadResult(path="a"))
    assert (result.saved_to, result.content, result.size_bytes) == (str(tmp_path / "a"), None, 3)
    assert os.listdir(tmp_path) == ["a"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Incoming(tmp_path / "a", LIMIT) as incoming:  # noqa: PT012
        incoming.take(b"abc")
        raise KeyError
    with refused(ErrorCode.unsafe_archive), Incoming(tmp_path / "a", LIMIT) as incoming:
        incoming.take(b"no tar" * 200)
        incoming.finish(DownloadResult(path="a", kind="tree"))
    assert os.listdir(tmp_path) == []


def test_a_tree_with_fewer_files_than_there_were_is_refused(tmp_path: Path) -> None:
    whole = tree("a", "b")
    for packed, files in ((whole, 3), (whole[:600], 2)):
        with refused(ErrorCode.transfer_incomplete, f"of {files} files"), Incoming(tmp_path / "t", LIMIT) as incoming:
            incoming.take(packed)
            incoming.finish(DownloadResult(path="t", kind="tree", files=files))
    assert os.listdir(tmp_path) == []
    with Incoming(tmp_path / "t", LIMIT) as incoming:
        incoming.take(whole)
        result = incoming.finish(DownloadResult(path="t", kind="tree", files=2, skipped=("pipe",)))
    assert (result.files, result.skipped) == (2, ("pipe",))
    assert sorted(os.listdir(tmp_path / "t")) == ["a", "b"]


def test_a_tree_needs_a_place(tmp_path: Path) -> None:
    with refused(ErrorCode.is_a_directory, "'t' is a folder"), Incoming(None, LIMIT) as incoming:
        incoming.take(tree("a"))
        incoming.finish(DownloadResult(path="t", kind="tree", files=1))


@pytest.mark.parametrize("there", ["file", "folder", "dangling link"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    place = tmp_path / "a"
    if there == "file":
        place.touch()
    elif there == "folder":
        place.mkdir()
    else:
        place.symlink_to("nowhere")
    with refused(ErrorCode.path_exists, str(place)), Incoming(place, LIMIT):
        pass


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with refused(ErrorCode.io_error, str(tmp_path / "none")), Incoming(tmp_path / "none/a", LIMIT):
        pass


def test_a_stream_without_end_is_cut_off(tmp_path: Path) -> None:
    with refused(ErrorCode.file_too_large, "the limit of 10 bytes"), Incoming(tmp_path / "a", 10) as incoming:
        for _ in range(1000):
            incoming.take(bytes(1 << 20))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("kind", "code"), [("none", ErrorCode.path_not_found), ("fifo", ErrorCode.not_a_regular_file)])
def test_what_cannot_be_sent(tmp_path: Path, kind: str, code: ErrorCode) -> None:
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
    with refused(code, str(tmp_path / kind)):
        outgoing(tmp_path / kind, LIMIT)


def test_what_can_be_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "a").chmod(0o640)
    kind, mode, body = outgoing(str(tmp_path / "a"), LIMIT)
    assert (kind, mode, b"".join(body)) == ("file", 0o640, b"abc")
    kind, mode, body = outgoing(memoryview(b"abc"), LIMIT)  # type: ignore[arg-type]
    assert (kind, mode, b"".join(body)) == ("file", None, b"abc")
    kind, mode, body = outgoing(tmp_path, LIMIT)
    assert (kind, mode) == ("tree", None)
    assert len(b"".join(body)) == 4 * 512
    with refused(ErrorCode.file_too_large, "4 bytes", "limit of 3"):
        outgoing(b"abcd", 3)
