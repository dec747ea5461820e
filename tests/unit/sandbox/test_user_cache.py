"""What is kept in the user's cache: found again by what was asked, and those that were used last stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.user_cache import keep, read_kept


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gamebox/answers"


def test_an_answer_is_found_by_what_was_asked() -> None:
    keep("answers", b"one", b"1", most=8)
    keep("answers", b"two", b"2", most=8)
    assert (read_kept("answers", b"one"), read_kept("answers", b"two")) == (b"1", b"2")
    with pytest.raises(FileNotFoundError):
        read_kept("answers", b"three")


def test_an_answer_is_not_taken_for_that_to_another_question(folder: Path) -> None:
    keep("answers", b"one", b"1", most=8)
    (one,) = folder.iterdir()
    keep("answers", b"two", b"2", most=8)
    (two,) = set(folder.iterdir()) - {one}
    one.replace(two)
    with pytest.raises(ValueError, match="not what was written"):
        read_kept("answers", b"two")


def test_the_answers_that_were_used_last_stay(folder: Path) -> None:
    for age, asked in ((200, b"unused"), (300, b"used")):
        known = set(folder.iterdir()) if folder.exists() else set()
        keep("answers", asked, asked, most=2)
        (path,) = set(folder.iterdir()) - known
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    read_kept("answers", b"used")
    keep("answers", b"new", b"new", most=2)
    assert (read_kept("answers", b"used"), read_kept("answers", b"new")) == (b"used", b"new")
    with pytest.raises(FileNotFoundError):
        read_kept("answers", b"unused")
