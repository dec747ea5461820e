"""The name of the runtime volume is known from an earlier process until a file that goes into it changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.docker.images import known_volume
from sandbox.docker.images.known_volume import KnownVolume, recall, remember, take_snapshot
from sandbox.user_cache import keep

KNOWN = KnownVolume("gamebox-runtime-1", "gamebox/base", "content")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose guest has two modules, and a library that goes into the volume, instead of the installed ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    guest = tmp_path / "package" / "guest"
    (guest / "files").mkdir(parents=True)
    (guest / "main.py").write_text("a = 1\n")
    (guest / "files/tree.py").write_text("b = 1\n")
    monkeypatch.setattr(known_volume, "_PACKAGE", guest.parent)
    install(tmp_path / "libraries")
    (tmp_path / "earlier").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "earlier"), str(tmp_path / "libraries"), *sys.path])
    monkeypatch.setattr(known_volume, "BUNDLED_DISTRIBUTIONS", ("travelling",))
    remember(KNOWN, take_snapshot())
    return guest.parent


def install(folder: Path) -> None:
    (folder / "travelling-1.dist-info").mkdir(parents=True)
    (folder / "travelling-1.dist-info/METADATA").write_text("Name: travelling\nVersion: 1\n")
    (folder / "travelling-1.dist-info/RECORD").write_text("travelling.py,,\n")
    (folder / "travelling.py").write_text("c = 1\n")


def test_what_was_remembered_is_recalled() -> None:
    assert recall() == KNOWN


def test_nothing_was_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert recall() is None


def change_content(guest: Path) -> None:
    (guest / "files/tree.py").write_text("b = 22\n")


def change_to_the_same_size(guest: Path) -> None:
    (guest / "files/tree.py").write_text("b = 2\n")


def add_a_file(guest: Path) -> None:
    (guest / "files/new.py").write_text("")


def remove_a_file(guest: Path) -> None:
    (guest / "main.py").unlink()


def add_a_folder(guest: Path) -> None:
    (guest / "more").mkdir()


@pytest.mark.parametrize("change", [change_content, change_to_the_same_size, add_a_file, remove_a_file, add_a_folder])
def test_a_change_of_the_guest_is_noticed(package: Path, change: Callable[[Path], None]) -> None:
    change(package / "guest")
    assert recall() is None


def test_a_change_that_leaves_time_and_size_is_noticed(package: Path) -> None:
    """As in images whose files all have the same time."""
    file = package / "guest/files/tree.py"
    found = file.stat()
    file.write_text("b = 2\n")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert recall() is None


def test_a_change_of_a_library_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "libraries/travelling.py").write_text("c = 22\n")
    assert recall() is None


def test_a_library_that_is_found_before_another_is_noticed(tmp_path: Path) -> None:
    install(tmp_path / "earlier")
    assert recall() is None


def test_the_working_directory_is_a_place_of_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path / "one")
    remember(KNOWN, take_snapshot())
    assert recall() == KNOWN
    monkeypatch.chdir(tmp_path / "two")
    assert recall() is None


def test_code_that_was_replaced_since_it_was_loaded_is_not_taken_for_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tmp_path / "recipes.py"
    loaded.write_text("A = 1\n")
    monkeypatch.setattr(known_volume, "_CODE", [known_volume._stamp(str(loaded))])
    remember(KNOWN, take_snapshot())
    assert recall() == KNOWN
    loaded.write_text("A = 2\n")
    remember(KNOWN, take_snapshot())  # what the loaded code found, beside the files of the new code
    assert recall() is None


def test_another_installation_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        assert recall() is None
    monkeypatch.setattr(known_volume, "_PACKAGE", tmp_path / "other")
    assert recall() is None


def test_a_record_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (kept,) = (tmp_path / "cache/gamebox/runtime").iterdir()
    kept.chmod(0o666)
    assert recall() is None


@pytest.mark.parametrize("content", [b"", b"nothing", b"[]", b"[1, 2]", b'[["name"], []]', b'[["a", "b", "c"], [["x"]]]'])
def test_a_record_of_another_form_is_not_used(content: bytes) -> None:
    keep("runtime", known_volume._asked(), content, most=2)
    assert recall() is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember(KNOWN, take_snapshot())
    assert recall() is None


def test_a_working_directory_that_was_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    remember(KNOWN, take_snapshot())
    assert recall() == KNOWN
