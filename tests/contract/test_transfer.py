"""Upload and download of bytes, files and trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.environment.sandboxed import SandboxedEnvironment

from .backends import LIMITS, SHELL
from .checks import codes_of, done, refused


@pytest.mark.parametrize("data", [b"", b"\0\xff\r\n", os.urandom(3_000_000)], ids=["empty", "few", "3 MB"])
def test_bytes_come_back(env: SandboxedEnvironment, folder: str, data: bytes) -> None:
    uploaded = done(env.upload(data, f"{folder}/deep/a"))
    assert (uploaded.path, uploaded.files, uploaded.size_bytes) == (f"{folder}/deep/a", 1, len(data))
    downloaded = done(env.download(f"{folder}/deep/a"))
    assert (downloaded.content, downloaded.kind, downloaded.size_bytes, downloaded.saved_to) == (data, "file", len(data), None)


def test_a_file_of_the_host(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "a").chmod(0o750)
    done(env.upload(tmp_path / "a", f"{folder}/a"))
    saved = done(env.download(f"{folder}/a", to=tmp_path / "b"))
    assert (saved.content, saved.saved_to) == (None, str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"abc"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_tree(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "sub").mkdir()
    (source / "sub/run").write_bytes(b"#!/bin/sh\n")
    (source / "sub/run").chmod(0o755)
    (source / "é ü").write_bytes(b"\xff" * 70_000)
    (source / ("n" * 200)).write_bytes(b"long")
    (source / "link").symlink_to("sub/run")
    uploaded = done(env.upload(source, f"{folder}/tree"))
    assert (uploaded.files, uploaded.size_bytes) == (3, 70_014)
    saved = done(env.download(f"{folder}/tree", to=tmp_path / "back"))
    assert (saved.kind, saved.files, saved.size_bytes, saved.skipped) == ("tree", 3, 70_014, ())
    assert _tree(tmp_path / "back") == _tree(source)


def _tree(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.is_dir() or (path.read_bytes(), path.stat().st_mode)
    return found


def test_a_tree_is_merged_with_what_is_there(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / "both").write_text("after")
    done(env.write(f"{folder}/both", "before"))
    done(env.write(f"{folder}/old", "old"))
    done(env.upload(tmp_path, folder))
    contents = [done(env.read(f"{folder}/{name}")).content for name in ("new", "both", "old")]
    assert contents == ["new", "after", "old"]


def test_what_is_not_on_the_host(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    refused(env.upload(tmp_path / "none", f"{folder}/a"), "path_not_found", str(tmp_path / "none"))
    refused(env.upload("/dev/null", f"{folder}/a"), "not_a_regular_file", "/dev/null")
    assert done(env.list(folder)).entries == ()


def test_too_much(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    refused(env.upload(b"x" * (LIMITS.transfer_bytes + 1), f"{folder}/a"), "file_too_large", str(LIMITS.transfer_bytes))
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(LIMITS.transfer_bytes + 1)
    for source, name in ((tmp_path / "sparse", "file"), (tmp_path, "tree")):
        failure = env.upload(source, f"{folder}/{name}")
        assert not failure.ok
        assert failure.code == "file_too_large"
    assert not env.read(f"{folder}/file").ok


def test_downloads_that_cannot_be(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    done(env.write(f"{folder}/a", "x"))
    refused(env.download(f"{folder}/none"), "path_not_found", f"{folder}/none")
    refused(env.download(folder), "is_a_directory", "download(path, to=...)")
    refused(env.download(f"{folder}/a", to=tmp_path), "path_exists", str(tmp_path))
    refused(env.download(f"{folder}/a", to=tmp_path / "none/a"), "io_error", str(tmp_path / "none"))
    refused(env.download(f"{folder}/none", to=tmp_path / "b"), "path_not_found")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_host_that_cannot_be_read(env: SandboxedEnvironment, folder: str) -> None:
    # a file that says it can be read, and cannot
    refused(env.upload("/proc/self/mem", f"{folder}/a"), "io_error", "on the host", effects="unknown")
    assert not env.read(f"{folder}/a").ok


def test_upload_onto_a_folder(env: SandboxedEnvironment, folder: str) -> None:
    refused(env.upload(b"x", folder), "is_a_directory")
    refused(env.upload(b"x", ""), "invalid_arguments")


@pytest.mark.needs(SHELL)
def test_what_is_no_file_is_skipped_and_told(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    done(env.run("echo x >a; mkfifo pipe; ln -s /etc/passwd out; ln -s a in; ln a hard", cwd=folder))
    saved = done(env.download(folder, to=tmp_path / "back"))
    assert sorted(saved.skipped) == ["out", "pipe"]
    assert sorted(p.name for p in (tmp_path / "back").iterdir()) == ["a", "hard", "in"]
    assert (tmp_path / "back/in").read_text() == "x\n"


@pytest.mark.needs(SHELL)
def test_a_write_cannot_follow_a_link_out(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    (tmp_path / "tree/d").mkdir(parents=True)
    (tmp_path / "tree/d/f").write_text("x")
    done(env.run("mkdir t; ln -s /srv t/d; ln -s /srv/f t/f", cwd=folder))
    failure = env.upload(tmp_path / "tree", f"{folder}/t")
    assert not failure.ok
    assert failure.code in ("path_outside_roots", "not_a_directory", "unsafe_archive")
    refused(env.upload(b"x", f"{folder}/t/f"), "path_outside_roots")


def test_notices_are_none_for_a_plain_transfer(env: SandboxedEnvironment, folder: str) -> None:
    assert codes_of(env.upload(b"x", f"{folder}/a")) == codes_of(env.download(f"{folder}/a")) == []
