"""The diff of changes that are no plain text, through the real ``git apply``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.repo import changes as module
from agent.repo.changes import changes, diff_text
from agent.repo.snapshot import take

BINARY = bytes(range(256)) * 40


def populate(folder: Path) -> None:
    folder.mkdir()
    (folder / "data.bin").write_bytes(BINARY)
    (folder / "gone.bin").write_bytes(b"\0gone")
    (folder / "latin.txt").write_bytes(b"caf\xe9\nline\nend\n")
    (folder / "file").write_text("text\n")
    (folder / "link").symlink_to("file")
    (folder / "other").symlink_to("file")
    (folder / "with space ").write_text("a\n")
    (folder / "sub").mkdir()
    (folder / "sub/inner").write_text("inner\n")


def applied(tmp_path: Path, work: Callable[[Path], object]) -> tuple[str, Path, Path]:
    """The diff of what ``work`` does, what came of it, and what ``git apply`` makes of the diff."""
    repo, after, other = tmp_path / "repo", tmp_path / "after", tmp_path / "other"
    populate(repo)
    snapshot = take(repo, tmp_path / "before")
    shutil.copytree(snapshot.copy, after, symlinks=True)
    shutil.copytree(snapshot.copy, other, symlinks=True)
    work(after)
    diff = diff_text(snapshot, after, changes(snapshot, after))
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"], cwd=other, input=os.fsencode(diff), capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stderr, diff[:2000])
    return diff, after, other


def same(one: Path, two: Path) -> None:
    done = subprocess.run(["diff", "-r", "--no-dereference", one, two], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def relink(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def folder_from_file(folder: Path) -> None:
    (folder / "file").unlink()
    (folder / "file").mkdir()
    (folder / "file/x").write_text("x\n")


def file_from_folder(folder: Path) -> None:
    shutil.rmtree(folder / "sub")
    (folder / "sub").write_text("a file now\n")


def folder_from_link(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").mkdir()
    (folder / "link/x").write_bytes(b"\0")


def changed_and_executable(folder: Path) -> None:
    (folder / "data.bin").write_bytes(b"\0")
    (folder / "data.bin").chmod(0o755)


WORKS: dict[str, Callable[[Path], object]] = {
    "binary changed": lambda f: (f / "data.bin").write_bytes(BINARY[::-1] + b"more"),
    "binary changed, executable": changed_and_executable,
    "binary added": lambda f: (f / "new.bin").write_bytes(os.urandom(5000)),
    "binary deleted": lambda f: (f / "gone.bin").unlink(),
    "binary emptied": lambda f: (f / "data.bin").write_bytes(b""),
    "text became binary": lambda f: (f / "file").write_bytes(b"\0"),
    "no UTF-8": lambda f: (f / "latin.txt").write_bytes(b"caf\xe8\nline\nend\xff"),
    "link replaced by a file": lambda f: rewrite(f / "link", b"a file\n"),
    "link replaced by a binary file": lambda f: rewrite(f / "link", b"\0"),
    "file replaced by a link": lambda f: relink(f / "file", "latin.txt"),
    "link led elsewhere": lambda f: relink(f / "other", "latin.txt"),
    "folder from a file": folder_from_file,
    "file from a folder": file_from_folder,
    "folder from a link": folder_from_link,
    "a name that ends in a space": lambda f: (f / "with space ").write_text("b\n"),
    "a name that is no UTF-8": lambda f: Path(os.fsdecode(os.fsencode(f) + b"/n\xe9")).write_bytes(b"\0"),
    "very many lines": lambda f: (f / "file").write_text("line\n" * 30_000),
}


@pytest.mark.parametrize("name", WORKS)
def test_git_applies_it(tmp_path: Path, name: str) -> None:
    _, after, other = applied(tmp_path, WORKS[name])
    same(after, other)


def test_a_text_that_is_no_utf_8_is_shown_as_text(tmp_path: Path) -> None:
    diff, _, _ = applied(tmp_path, WORKS["no UTF-8"])
    assert b"-caf\xe9\n+caf\xe8\n line\n" in os.fsencode(diff)


def test_what_is_too_large_is_said_and_the_rest_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BINARY_BYTES", 20_000)

    def work(folder: Path) -> None:
        (folder / "data.bin").write_bytes(b"\0" * 20_001)
        (folder / "file").write_text("changed\n")

    diff, _, other = applied(tmp_path, work)
    assert "Not in this diff, too large: a/data.bin (10240 bytes) to b/data.bin (20001 bytes)\n" in diff
    assert (other / "file").read_text() == "changed\n"
    assert (other / "data.bin").read_bytes() == BINARY


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_can_be_applied(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    _, after, other = applied(tmp_path_factory.mktemp("diff"), lambda f: (f / "data.bin").write_bytes(data))
    same(after, other)
