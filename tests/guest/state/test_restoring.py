"""A rollback removes folders whatever their modes and depth."""

from __future__ import annotations

import os
from pathlib import Path

from sandbox.guest.files.tree import remove_tree
from sandbox.guest.state.restoring import grant_access
from tests.leaks import descriptors, left_open

DEPTH = 1500  # more than the interpreter recurses, and than there may be descriptors


def test_closed_folders_are_opened_up_however_deep_they_are(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    here = os.dup(top)
    for level in range(DEPTH):
        os.mkdir(b"a", dir_fd=here)
        os.mkdir(b"b", 0o500, dir_fd=here)
        inner = os.open(b"a", os.O_RDONLY, dir_fd=here)
        if level:
            os.fchmod(here, 0o500)
        os.close(here)
        here = inner
    os.fchmod(here, 0)
    os.close(here)
    before = descriptors()
    grant_access(top, b"a")
    grant_access(top, b"b")
    assert left_open(before, 30) == []
    assert (tmp_path / "a/a/b").stat().st_mode & 0o777 == 0o700
    assert remove_tree(top, b"a") == 2 * DEPTH - 1
    os.close(top)
