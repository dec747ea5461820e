"""The program that watches a folder: by inotify, and by looking where the kernel has no instance of it left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.service.wire.e2b.envd import watching as watching_module
from sandbox.service.wire.e2b.envd.watching import Watcher, Watchers, _parsed, program


@contextmanager
def watching(folder: Path, *options: str, source: str = "") -> Iterator[Iterator[tuple[str, str]]]:
    argv = [sys.executable, "-I", "-c", source or program(), str(folder), *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = (tuple(json.loads(line)) for line in process.stdout)
        assert next(lines) == ("READY", "scan" if "scan" in options else "inotify")
        try:
            yield lines
        finally:
            process.kill()


def test_each_change_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("1")
    with watching(tmp_path, "flat") as changes:
        (tmp_path / "old").write_text("2")
        (tmp_path / "old").chmod(0o600)
        # It is truncated and written: the kernel may make one event of that.
        assert {*takewhile(lambda change: change[0] != "CHMOD", changes)} == {("WRITE", "old")}
        (tmp_path / "old").rename(tmp_path / "new")
        (tmp_path / "new").unlink()
        assert [next(changes) for _ in range(3)] == [("RENAME", "old"), ("CREATE", "new"), ("REMOVE", "new")]
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep/file").touch()
        (tmp_path / "last").touch()
        assert [next(changes) for _ in range(2)] == [("CREATE", "deep"), ("CREATE", "last")]


@pytest.mark.parametrize("read_bytes", ["1 << 16", "32"])
def test_what_the_service_writes_is_a_write(tmp_path: Path, read_bytes: str) -> None:
    """Also where the kernel gives each event on its own: 32 bytes have room for one with a name of 15 characters."""
    assert "os.read(self.fd, 1 << 16)" in program()
    with watching(tmp_path, "flat", source=program().replace("1 << 16", read_bytes)) as changes:
        for _ in range(2):
            (tmp_path / ".gamebox-0011").write_text("content")
            (tmp_path / ".gamebox-0011").rename(tmp_path / "file")
        expected = [("CREATE", "file"), ("WRITE", "file"), ("CHMOD", "file"), ("WRITE", "file"), ("CHMOD", "file")]
        assert [next(changes) for _ in expected] == expected


@pytest.mark.parametrize("options", [("recursive",), ("recursive", "scan")])
def test_folders_below(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    with watching(tmp_path, *options) as changes:
        (tmp_path / "a/b/one").touch()
        assert ("CREATE", "a/b/one") in changes  # reads as far as that
        (tmp_path / "a/new").mkdir()
        (tmp_path / "a/new/two").touch()
        assert ("CREATE", "a/new/two") in changes


@pytest.mark.parametrize("options", [("recursive",), ("recursive", "scan")])
def test_a_file_that_came_with_its_folder_was_written(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/file").write_text("content")
    (tmp_path / "watched").mkdir()
    with watching(tmp_path / "watched", *options) as changes:
        (tmp_path / "made").rename(tmp_path / "watched/made")
        assert [next(changes) for _ in range(3)] == [("CREATE", "made"), ("CREATE", "made/file"), ("WRITE", "made/file")]


def test_a_sandbox_has_one_instance_and_all_of_them_half_of_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "most").write_text("5\n")
    monkeypatch.setattr(watching_module, "_INSTANCES", tmp_path / "most")
    lives = [SimpleNamespace(beside={}) for _ in range(4)]
    house = SimpleNamespace(fleet=SimpleNamespace(all=lambda: lives))

    def begin(live: Any) -> tuple[Watcher, bool]:
        session: Any = SimpleNamespace(live=live, house=house)
        watcher = Watcher(session, "/home/user", recursive=False, with_entry=False)
        return watcher, Watchers.of(live).may_use_inotify(watcher, session)

    first, *others = [begin(each) for each in (lives[0], lives[0], lives[1], lives[2])]
    assert [first[1], *(uses for _, uses in others)] == [True, False, True, False], "two of five, one a sandbox"
    first[0].stop()
    assert begin(lives[3])[1]
    assert not begin(lives[0])[1]
    monkeypatch.setattr(watching_module, "_INSTANCES", tmp_path / "missing")
    others[1][0].stop()
    assert not begin(lives[1])[1], "nothing is known of the kernel"


def test_lines_of_the_sandbox_are_checked() -> None:
    assert _parsed(b'["WRITE", "name"]') == ("WRITE", "name")
    for line in (b"", b"{", b"[]", b'["WRITE", 5]', b'["OTHER", "x"]', b"[" * 9999, b'{"WRITE": "x"}', b'[["WRITE"], "x"]'):
        assert _parsed(line) is None, line
