"""Archives are kept by name, bounded and pruned; the program that reads them refuses what lies."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.docker.builds import copy_program
from sandbox.docker.builds.archives import ArchiveStore
from sandbox.docker.builds.copy_program import RefusalError, find_sources, read_members
from sandbox.errors import ErrorCode, SandboxError

NAME = "b" * 64


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(tmp_path / "deep" / "folder", most_bytes=10)


def test_an_archive_is_kept_by_its_hash_or_a_name(store: ArchiveStore) -> None:
    name = store.put([b"ab", b"c"])
    assert name == hashlib.sha256(b"abc").hexdigest() == store.digest(name)
    assert store.put([b"abc"], name=NAME) == NAME
    assert (store.digest(NAME), store.path(NAME).read_bytes(), store.sizes()) == (name, b"abc", [3, 3])
    store.put([b"other"], name=NAME)
    assert store.digest(NAME) == hashlib.sha256(b"other").hexdigest()
    store.remove(NAME)
    store.remove(NAME)
    assert not store.has(NAME)
    with pytest.raises(SandboxError) as caught:
        store.path(NAME)
    assert caught.value.code is ErrorCode.path_not_found


def test_nothing_is_kept_of_what_is_too_large_or_breaks_off(store: ArchiveStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise ConnectionResetError

    with pytest.raises(SandboxError) as caught:
        store.put([b"x" * 11])
    assert caught.value.code is ErrorCode.file_too_large
    with pytest.raises(SandboxError):
        store.put(broken())
    assert store.sizes() == []


@pytest.mark.parametrize("name", ["", "../x", "B" * 64, "b" * 63, f"{NAME}/", f"{NAME}\n"])
def test_a_name_is_no_path(store: ArchiveStore, name: str) -> None:
    for call in (store.has, store.path, store.digest, store.remove, lambda each: store.put([b""], name=each)):
        with pytest.raises(SandboxError) as caught:
            call(name)
        assert caught.value.code is ErrorCode.invalid_arguments


def test_archives_that_no_build_uses_are_pruned(store: ArchiveStore) -> None:
    old, used = store.put([b"old"]), store.put([b"used"])
    left = store.path(old).parent / ".arriving-1"
    left.write_bytes(b"left")
    for path in (store.path(old), store.path(used), left):
        os.utime(path, (0, 0))
    store.path(used)  # a build takes it
    assert store.prune(3600) == 7
    assert (store.has(old), store.has(used), left.exists()) == (False, True, False)


def archive_of(*names: str, sizes: int = 0) -> tarfile.TarFile:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        for name in names:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size = 0 if name.endswith("/") else sizes
            made.addfile(member, io.BytesIO(bytes(member.size)))
    target.seek(0)
    return tarfile.open(fileobj=target)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (".", [""]),
        ("./", [""]),
        ("/", [""]),
        ("a", ["a"]),
        ("a/", ["a"]),
        ("./a/b.txt", ["a/b.txt"]),
        ("a/*.txt", ["a/b.txt", "a/c.txt"]),
        ("*", ["[x]", "a", "top"]),
        ("a/[bc].txt", ["a/b.txt", "a/c.txt"]),
        ("[x]", ["[x]"]),
        ("deep", []),
        ("a/d/e", ["a/d/e"]),
    ],
)
def test_sources_are_found_by_name_and_by_pattern(source: str, found: list[str]) -> None:
    # The folders a and a/d are only in the names of what is in them.
    members = read_members(archive_of("./a/b.txt", "a//c.txt", "a/d/e/f", "top", "[x]"), 100)
    assert find_sources(members, source) == found


def test_sources_that_lead_out_are_refused() -> None:
    with pytest.raises(RefusalError, match="leads out"):
        find_sources({}, "a/../../b")


def test_an_archive_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusalError, match="may write"):
        read_members(archive_of("a", "b", sizes=60), 100)
    monkeypatch.setattr(copy_program, "_MOST_MEMBERS", 2)
    with pytest.raises(RefusalError, match="more than 2 files"):
        read_members(archive_of("a", "b", "c"), 100)


def copied(tmp_path: Path, source: str, destination: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Copy from an archive into a root file system; answers the files that are there then."""
    monkeypatch.setattr(copy_program, "check_place", lambda _: None)
    archive = tmp_path / "archive"
    names = ("src/one.txt", "src/two.txt", "src/deep/three.txt", "only")
    with tarfile.open(archive, "w:gz") as made:
        for name in names:
            made.addfile(tarfile.TarInfo(name))
    root = tmp_path / "root"
    (root / "there").mkdir(parents=True, exist_ok=True)
    fields = {"owner": f"{os.getuid()}:{os.getgid()}", "mode": None, "bytes": 100, "root": str(root)}
    copy_program.copy({"archive": str(archive), "source": source, "destination": destination, **fields})
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("source", "destination", "found"),
    [
        pytest.param("only", "/a/b", ["a/b"], id="file_to_file"),
        pytest.param("only", "/a/b/", ["a/b/only"], id="file_into_folder"),
        pytest.param("only", "/there", ["there/only"], id="file_into_a_folder_that_is_there"),
        pytest.param("on*", "/a", ["a/only"], id="pattern_of_one_file"),
        pytest.param("src", "/a", ["a/deep/three.txt", "a/one.txt", "a/two.txt"], id="folder"),
        pytest.param("src", "/there", ["there/deep/three.txt", "there/one.txt", "there/two.txt"], id="merged_folder"),
        pytest.param("src/*.txt", "/a", ["a/one.txt", "a/two.txt"], id="pattern"),
        pytest.param("src/*", "/a", ["a/one.txt", "a/three.txt", "a/two.txt"], id="pattern_with_a_folder"),
        pytest.param(".", "/", ["only", "src/deep/three.txt", "src/one.txt", "src/two.txt"], id="everything"),
    ],
)
def test_destinations_are_those_of_a_dockerfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, destination: str, found: list[str]
) -> None:
    assert copied(tmp_path, source, destination, monkeypatch) == found
    assert copied(tmp_path, source, destination, monkeypatch) == found  # over what is there


def test_owners_are_those_of_the_image(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("broken\napp:x:10:20::/:/bin/sh\n7:x:8:9::/:\n", encoding="utf-8")
    (etc / "group").write_text("staff:x:50:\n", encoding="utf-8")
    root = str(tmp_path)
    owners = ("", "root", "app", "app:staff", "10", "99", "99:5", "7", ":staff")
    found = [copy_program.find_owner(owner, root) for owner in owners]
    assert found == [(0, 0), (0, 0), (10, 20), (10, 50), (10, 20), (99, 99), (99, 5), (8, 9), (0, 50)]
    for missing in ("gone", "app:gone"):
        with pytest.raises(RefusalError, match="gone"):
            copy_program.find_owner(missing, root)
