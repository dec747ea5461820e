"""The program that watches a folder: by inotify, and by looking where the kernel has no instance of it left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from sandbox.service.wire.e2b.watching import _parsed, program


@contextmanager
def watching(folder: Path, *options: str) -> Iterator[Iterator[tuple[str, str]]]:
    argv = [sys.executable, "-I", "-c", program(), str(folder), *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = (tuple(json.loads(line)) for line in process.stdout)
        assert next(lines) == ("READY", "")
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


def test_what_the_service_writes_is_a_write(tmp_path: Path) -> None:
    with watching(tmp_path, "flat") as changes:
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


def test_lines_of_the_sandbox_are_checked() -> None:
    assert _parsed(b'["WRITE", "name"]') == ("WRITE", "name")
    for line in (b"", b"{", b"[]", b'["WRITE", 5]', b'["OTHER", "x"]', b"[" * 9999, b'{"WRITE": "x"}', b'[["WRITE"], "x"]'):
        assert _parsed(line) is None, line
