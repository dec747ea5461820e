"""The program that makes folders for clients of E2B where only root may: root runs it, beside what the user has put there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sandbox.service.wire.e2b.envd.parents import PROGRAM


def make(folder: Path, home: Path, name: str = "") -> int:
    command = [sys.executable, "-I", "-c", PROGRAM, str(folder), str(home), name]
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_folders_are_made_and_belong_to_the_owner_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    folder = tmp_path / "there/a/b"
    assert make(folder, tmp_path) == 0
    assert make(folder, tmp_path) == 0
    assert folder.is_dir()
    assert folder.stat().st_uid == tmp_path.stat().st_uid


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "file").write_text("")
    assert make(tmp_path / "link/new", tmp_path) != 0
    assert make(tmp_path / "file/new", tmp_path) != 0
    assert not list((tmp_path / "secret").iterdir())


def test_only_a_file_with_one_name_is_given_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert make(tmp_path, tmp_path, "file") == 0
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert make(tmp_path, tmp_path, "link") != 0
    (tmp_path / "second").hardlink_to(tmp_path / "file")
    assert make(tmp_path, tmp_path, "file") != 0
    (tmp_path / "folder").mkdir()
    assert make(tmp_path, tmp_path, "folder") != 0
