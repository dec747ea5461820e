"""Folders of the host deeper than Python's recursion limit are copied or refused with an envelope (trials, A10, A11, C10)."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import LocalEnvironment
from sandbox.docker.container.preflight import check_workspace
from sandbox.errors import ErrorCode, OperationError
from sandbox.transfers.archives import tree_chunks, unpack
from sandbox.transfers.folders import remove, walk

LIMIT = 1 << 24


def _deep(top: Path, levels: int) -> Path:
    """A chain of folders with a file at its end; its path may be longer than the system allows."""
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    return top


@pytest.fixture(scope="module", autouse=True)
def _in_memory() -> Iterator[None]:
    """Thousands of folders take a disk seconds."""
    before = tempfile.tempdir
    tempfile.tempdir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    yield
    tempfile.tempdir = before


@pytest.fixture
def house() -> Iterator[Path]:
    """A folder that is removed by ``remove``: pytest cannot."""
    top = Path(tempfile.mkdtemp(prefix="gamebox-test-"))
    yield top / "house"
    remove(top)
    assert not top.exists()


@pytest.fixture(scope="module")
def env(_in_memory: None) -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


def test_1500_levels_are_uploaded_and_counted(house: Path) -> None:
    _deep(house, 1500)
    assert sum(1 for _ in walk(house)) == 1501
    archive = io.BytesIO(b"".join(tree_chunks(house, LIMIT)))
    with tarfile.open(fileobj=archive) as tar:
        assert tar.getnames()[-1] == "d/" * 1500 + "file"
    check_workspace(house, LIMIT)


def test_1100_levels_arrive_in_a_sandbox(house: Path, env: LocalEnvironment) -> None:
    assert env.upload(_deep(house, 1100), "deep").unwrap().files == 1
    assert Path(env.workspace, "deep", *["d"] * 1100, "file").exists()


def test_2500_levels_are_refused_in_words(house: Path, env: LocalEnvironment) -> None:
    answer = env.upload(_deep(house, 2500), "deeper")
    assert not answer.ok
    assert answer.code is ErrorCode.path_invalid
    assert "folders deep" in answer.error
    assert len(answer.error) < 500
    check_workspace(house, LIMIT)  # it is refused when it is copied


def test_2500_levels_are_downloaded_as_far_as_they_go(env: LocalEnvironment, house: Path) -> None:
    _deep(Path(env.workspace, "made"), 2500)
    assert env.download("made", house).unwrap().skipped


def test_an_environment_with_2500_levels_is_closed(tmp_path: Path) -> None:
    """It raised RecursionError."""
    with LocalEnvironment() as env:
        folder = Path(env.workspace)
        _deep(folder / "made", 2500)
        (folder / "made/closed").mkdir(mode=0)
    assert not folder.parent.exists()


def test_an_archive_of_a_deep_file_alone_is_unpacked(house: Path) -> None:
    """The folders above it are not in the archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("d/" * 1500 + "file"))
    archive.seek(0)
    assert unpack(archive, house, LIMIT)[0] == 1


def test_links_that_lead_to_one_another_do_not_end_in_a_recursion(house: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in range(1200):
            link = tarfile.TarInfo(f"l{number}")
            link.type, link.linkname = tarfile.SYMTYPE, f"l{number + 1}"
            tar.addfile(link)
    archive.seek(0)
    files, _, skipped = unpack(archive, house, LIMIT)
    assert files == 0
    assert skipped


def test_what_a_link_leads_to_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "gone/inner").mkdir(parents=True)
    (tmp_path / "gone/inner/link").symlink_to(tmp_path / "kept")
    (tmp_path / "gone/link").symlink_to("../kept")
    remove(tmp_path / "gone")
    remove(tmp_path / "gone")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["kept", "kept/file"]


def test_odd_names_go_there_and_back(house: Path, env: LocalEnvironment) -> None:
    house.mkdir()
    names = [b"x\ny", "\u202eabc".encode(), b"a" * 255, b"--option", b"C:\\x", b"\xff\xfe", b"\x1b[31m", b" ", b"*"]
    for name in names:
        Path(os.fsdecode(os.fsencode(house) + b"/" + name)).mkdir()
    os.mkfifo(house / "fifo")  # left out
    env.upload(house, "odd").unwrap()
    env.download("odd", house / "back").unwrap()
    assert sorted(os.listdir(os.fsencode(house / "back"))) == sorted(names)


def test_a_name_too_long_for_the_system_is_an_envelope(env: LocalEnvironment, tmp_path: Path) -> None:
    for name in ("a" * 300, "a/" * 3000):
        upload = env.upload(name, "x")
        download = env.download("odd", tmp_path / name)
        assert not upload.ok
        assert not download.ok
        assert {upload.code, download.code} <= {ErrorCode.path_invalid, ErrorCode.path_not_found, ErrorCode.io_error}


def test_an_error_of_a_deep_archive_is_one_of_ours(house: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("d/" * 2500 + "file"))
    archive.seek(0)
    with pytest.raises((OSError, OperationError)):
        unpack(archive, house, LIMIT)
