"""The states of a tree: the function in C and the one in Python find the same, whatever the tree is like."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.guest.state import tree_states
from sandbox.guest.state.tree_states import TooMuchError, TreeReader, state_of, to_dictionary

NAMES = [b"a", b"b", b"\xff\xfe", b"new\nline", b"n" * 255, b"node_modules", b".git", b".venv", b"..."]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> TreeReader:
    """A reader by the function in C, with the compiler's checks for memory errors."""
    path = tmp_path_factory.mktemp("compiled") / "tree_states.so"
    checks = ["-fsanitize=undefined", "-fno-sanitize-recover", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", "-shared", "-fPIC", *checks, "-o", path, tree_states.__file__.replace(".py", ".c")], check=True)
    return TreeReader(str(path))


def read_twice(compiled: TreeReader, top: Path) -> tuple[dict[bytes, int], dict[bytes, int]]:
    in_c, in_python = compiled.read(os.fsencode(top), 60, 60), TreeReader("/nothere").read(os.fsencode(top), 60, 60)
    assert isinstance(in_c, bytes)
    assert isinstance(in_python, dict)
    return to_dictionary(in_c), in_python


_trees = st.recursive(
    st.sampled_from(["file", "link", "fifo"]),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


def make(path: bytes, tree: object) -> None:
    if isinstance(tree, dict):
        os.mkdir(path)
        for name, inner in tree.items():
            if len(path) + len(name) < 3000:
                make(os.path.join(path, name), inner)
    elif tree == "file":
        Path(os.fsdecode(path)).write_text("x")
    elif tree == "link":
        os.symlink(b"..", path)
    else:
        os.mkfifo(path)


@given(tree=st.dictionaries(st.sampled_from(NAMES), _trees, max_size=5))
@settings(max_examples=100, deadline=None)
def test_both_find_the_same(compiled: TreeReader, tmp_path_factory: pytest.TempPathFactory, tree: dict[bytes, object]) -> None:
    top = tmp_path_factory.mktemp("tree")
    make(os.fsencode(top / "top"), tree)
    in_c, in_python = read_twice(compiled, top / "top")
    assert in_c == in_python
    assert not [path for path in in_c if b".git" in path.split(b"/")]
    for path, state in in_c.items():
        assert state == state_of(os.lstat(os.path.join(os.fsencode(top / "top"), path)), os.path.basename(path))


def test_an_unchanged_tree_has_the_same_records(compiled: TreeReader, tmp_path: Path) -> None:
    for number in range(2000):  # more than the room at first
        (tmp_path / f"{number % 7}").mkdir(exist_ok=True)
        (tmp_path / f"{number % 7}" / f"{'n' * 50}{number}").touch()
    first = compiled.read(os.fsencode(tmp_path), 60, 60)
    assert compiled.read(os.fsencode(tmp_path), 60, 60) == first
    (tmp_path / "3" / f"{'n' * 50}10").write_text("x")
    assert compiled.read(os.fsencode(tmp_path), 60, 60) != first


def test_paths_that_are_too_long_end_the_descent(compiled: TreeReader, tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(40):
        os.mkdir(b"n" * 200, dir_fd=here)
        here, above = os.open(b"n" * 200, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    records = compiled.read(os.fsencode(tmp_path), 60, 60)
    assert isinstance(records, bytes)
    assert 10 < len(to_dictionary(records)) <= 20


def test_links_lead_nowhere(compiled: TreeReader, tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    (tmp_path / "top/link").symlink_to("../outside")
    in_c, in_python = read_twice(compiled, tmp_path / "top")
    assert list(in_c) == list(in_python) == [b"link"]


def test_limits_hold_in_c(compiled: TreeReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").mkdir()
    monkeypatch.setattr(tree_states, "ENTRIES", 1)
    with pytest.raises(TooMuchError):
        compiled.read(os.fsencode(tmp_path), 60, 60)
    monkeypatch.setattr(tree_states, "ENTRIES", 2)
    compiled.read(os.fsencode(tmp_path), 60, 60)
    for seconds in ((-1, 60), (60, -1)):
        with pytest.raises(TooMuchError):
            compiled.read(os.fsencode(tmp_path), *seconds)
    with pytest.raises(OSError, match="No such file"):
        compiled.read(os.fsencode(tmp_path / "nothere"), 60, 60)
