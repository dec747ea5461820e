"""The files that say what a repository depends on, in folders that strangers made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.docker.local_images import dependency_files
from sandbox.docker.local_images.dependency_files import pack_files, read_dependency_files
from sandbox.docker.local_images.setups import set_up
from sandbox.errors import ErrorCode, SandboxError


def test_all_that_counts_and_nothing_else(tmp_path: Path) -> None:
    others = ("web/node_modules/x/package.json", ".venv/pyproject.toml", "src/a.py")
    for path in ("requirements-dev.txt", "web/package.json", "Cargo.lock", *others):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    found = read_dependency_files(tmp_path)
    assert found == {path: path.encode() for path in ("Cargo.lock", "requirements-dev.txt", "web/package.json")}
    for file in (tmp_path / "Cargo.lock", tmp_path / "src/a.py"):
        os.utime(file, (1, 1))
        file.chmod(0o755)
    assert pack_files(read_dependency_files(tmp_path)) == pack_files(found)
    (tmp_path / "Cargo.lock").write_text("other")
    assert pack_files(read_dependency_files(tmp_path)) != pack_files(found)


def test_links_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub/package.json").write_text("secret")
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "package.json").symlink_to(outside / "sub/package.json")
    (repo / "folder").symlink_to(outside)
    os.mkfifo(repo / "requirements.txt")
    os.makedirs(repo / "a" / "go.mod")
    with pytest.raises(SandboxError) as caught:
        read_dependency_files(repo)
    assert caught.value.code is ErrorCode.path_not_found


def test_deep_many_and_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "deep" / "/".join("d" * 40)
    deep.mkdir(parents=True)
    (deep / "go.mod").write_text("deep")
    (tmp_path / "go.mod").write_text("x")
    assert list(read_dependency_files(tmp_path)) == ["go.mod"]
    with (tmp_path / "Cargo.lock").open("wb") as file:
        file.truncate(dependency_files.MOST_FILE_BYTES + 1)
    with pytest.raises(SandboxError, match=r"Cargo\.lock"):
        read_dependency_files(tmp_path)
    (tmp_path / "Cargo.lock").unlink()
    monkeypatch.setattr(dependency_files, "MOST_ENTRIES", 3)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    with pytest.raises(SandboxError, match="files and folders"):
        read_dependency_files(tmp_path)


@pytest.mark.parametrize("command", ["", "  ", "a\0b", "x" * 20_000])
def test_a_command_that_cannot_be_run(tmp_path: Path, command: str) -> None:
    with pytest.raises(SandboxError, match="--setup has no command"):
        set_up(command, tmp_path, image="gamebox/base")
