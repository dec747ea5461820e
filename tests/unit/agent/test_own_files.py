"""Files of the user's own: what another user could have written or read is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.own_files import NAMED, SECRET, SETTINGS, OwnFileError, Rule, config_folder, read_own_file

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")


def file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "file"
    path.write_bytes(b"text")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("rule", "mode", "is_read"),
    [
        (SETTINGS, 0o644, True),
        (SETTINGS, 0o664, False),
        (SETTINGS, 0o646, False),
        (NAMED, 0o664, True),
        (NAMED, 0o646, False),
        (SECRET, 0o600, True),
        (SECRET, 0o640, False),
        (SECRET, 0o604, False),
        (SECRET, 0o620, False),
    ],
)
def test_who_else_may_write_or_read_it(tmp_path: Path, rule: Rule, mode: int, is_read: bool) -> None:
    path = file(tmp_path, mode)
    if is_read:
        assert read_own_file(path, 10, rule) == b"text"
        return
    with pytest.raises(OwnFileError, match="other users can") as caught:
        read_own_file(path, 10, rule)
    assert "chmod" in caught.value.hint


@ROOT
@pytest.mark.parametrize("rule", [SETTINGS, NAMED, SECRET])
def test_a_file_of_another_user_is_not_read(tmp_path: Path, rule: Rule) -> None:
    path = file(tmp_path)
    os.chown(path, 1234, -1)
    with pytest.raises(OwnFileError, match="belongs to another user"):
        read_own_file(path, 10, rule)


def test_a_link_is_followed_for_settings_and_never_for_secrets(tmp_path: Path) -> None:
    file(tmp_path)
    link = tmp_path / "link"
    link.symlink_to("file")
    assert read_own_file(link, 10, SETTINGS) == b"text"
    with pytest.raises(OwnFileError, match="cannot be read"):
        read_own_file(link, 10, SECRET)


@pytest.mark.parametrize("rule", [SETTINGS, NAMED, SECRET])
def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path, rule: Rule) -> None:
    path = file(tmp_path)
    assert read_own_file(path, 4, rule) == b"text"
    with pytest.raises(OwnFileError, match="more than 3 bytes"):
        read_own_file(path, 3, rule)
    (tmp_path / "folder").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)  # opening it would wait for a writer
    for name in ("folder", "pipe"):
        with pytest.raises(OwnFileError, match="not a regular file"):
            read_own_file(tmp_path / name, 10, rule)
    assert read_own_file(tmp_path / "missing", 10, rule) is None
    assert read_own_file(path / "below", 10, rule) is None


def test_a_relative_folder_for_settings_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_folder() == tmp_path / "gamebox"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for base in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        assert config_folder() == tmp_path / "home/.config/gamebox"
