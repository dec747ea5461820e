"""The scan of the workspace after a command: what it finds, what it leaves out, and what it may cost."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.guest.state import changes, tree_states, tree_watch
from sandbox.guest.state.changes import Tracker
from tests.guest.calls import place_at


@pytest.fixture(autouse=True)
def _no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep other work on the machine from delaying a scan."""
    monkeypatch.setattr(changes, "CLOCK_SECONDS", 60)
    monkeypatch.setattr(tree_watch, "is_own_mount", lambda _: True)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    place_at(tmp_path)
    return tmp_path / "workspace"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The function in C, as the runtime image has it."""
    path = tmp_path_factory.mktemp("compiled") / "tree_states.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, tree_states.__file__.replace(".py", ".c")], check=True)
    return path


@pytest.fixture(params=["C", "Python"])
def tracker(top: Path, compiled: Path, request: pytest.FixtureRequest) -> Tracker:
    place = place_at(top.parent)
    place.launcher = str(compiled if request.param == "C" else top)
    return Tracker(place, wanted=True)


def told(tracker: Tracker, ident: str = "c1", seconds: float = 10, left: bool = False) -> dict[str, Any]:
    return tracker.look(ident, seconds, left) or {}


def test_no_notice_if_nothing_changed(tracker: Tracker, top: Path) -> None:
    (top / "a").write_text("a")
    tracker.begin()
    assert told(tracker) == {}


def test_a_tree_that_was_looked_at_ahead_is_not_looked_at_again(tracker: Tracker, top: Path) -> None:
    tracker.get_ready()
    (top / "a").write_text("a")
    tracker.begin()
    assert told(tracker)["names"] == ["+ a"]


def test_files_links_and_folders(tracker: Tracker, top: Path) -> None:
    for name in ("edited", "gone", "chmod", "kind"):
        (top / name).write_text("a")
    (top / "d").mkdir()
    tracker.begin()
    (top / "edited").write_text("bb")
    (top / "gone").unlink()
    (top / "chmod").chmod(0o600)
    (top / "kind").unlink()
    (top / "kind").symlink_to("edited")
    (top / "d/sub").mkdir()
    (top / "d/sub/new").write_text("n")
    (top / "empty").mkdir()
    os.mkfifo(top / "pipe")
    found = told(tracker)
    assert found["names"] == ["+ d/sub/new", "+ empty", "+ pipe", "~ chmod", "~ edited", "~ kind", "- gone"]
    assert (found["created"], found["modified"], found["deleted"]) == (3, 3, 1)
    assert (found["since"], found["others"]) == (None, False)
    assert tracker.last["deleted"] == ["gone"]


def test_times_that_were_set_back_hide_nothing(tracker: Tracker, top: Path) -> None:
    (top / "a").write_text("a")
    tracker.begin()
    status = (top / "a").stat()
    (top / "a").write_text("b")
    os.utime(top / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert told(tracker)["names"] == ["~ a"]


def test_leftovers_are_one_name(tracker: Tracker, top: Path) -> None:
    (top / "node_modules").mkdir()
    tracker.begin()
    for number in range(50):
        (top / f"node_modules/{number}").write_text("")
    assert told(tracker)["names"] == ["~ node_modules"]


def test_own_operations_are_absorbed(tracker: Tracker, top: Path) -> None:
    (top / "d").mkdir()
    (top / "d/old").write_text("")
    (top / "link").symlink_to("d")
    tracker.begin()
    assert told(tracker) == {}
    (top / "d/new").write_text("n")
    tracker.absorb("link/new")
    (top / "d/old").unlink()
    tracker.absorb(str(top / "d/old"))
    (top / "x/y").mkdir(parents=True)
    (top / "x/y/z").write_text("")
    tracker.absorb("x/y/z", "a\0b", "../outside", "/")
    tracker.begin()
    assert told(tracker, "c2") == {}
    (top / "x/y/z").write_text("more")
    tracker.begin()
    assert told(tracker, "c3")["names"] == ["~ x/y/z"]


def test_other_running_commands_are_mentioned(tracker: Tracker, top: Path) -> None:
    tracker.begin()
    tracker.begin()
    (top / "a").write_text("")
    assert told(tracker, "c1")["others"] is True
    (top / "b").write_text("")
    assert told(tracker, "c2")["others"] is True
    tracker.begin()
    (top / "c").write_text("")
    assert told(tracker, "c3", left=True)["others"] is False
    tracker.begin()
    (top / "d").write_text("")
    assert told(tracker, "c4")["others"] is True  # what c3 left running may have done it


def test_changes_that_were_not_reported_are_reported_later(tracker: Tracker, top: Path) -> None:
    tracker.begin()
    (top / "a").write_text("")
    tracker.skip("c1")
    tracker.begin()
    found = told(tracker, "c2")
    assert (found["names"], found["since"]) == (["+ a"], "c1")


def test_a_scan_that_costs_too_much_is_postpone(tracker: Tracker, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3000):
        (top / f"f{number}").write_text("")
    tracker.absorb(".")
    monkeypatch.setattr(changes, "LEAST_SECONDS", 0.00001)
    tracker.begin()
    (top / "f7").write_text("changed")
    assert told(tracker, "c1", seconds=0.0001) == {}
    tracker.begin()
    found = told(tracker, "c2", seconds=1000)
    assert (found["names"], found["since"]) == (["~ f7"], "c1")


def test_a_tree_that_is_too_large_is_not_reported(tracker: Tracker, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_states, "ENTRIES", 100)
    for number in range(200):
        (top / f"f{number}").write_text("")
    tracker.absorb(".")
    tracker.begin()
    (top / "f7").write_text("changed")
    assert told(tracker) == {}


def test_names_are_few_and_short(tracker: Tracker, top: Path) -> None:
    tracker.begin()
    for number in range(30):
        (top / ("n" * 200 + str(number))).write_text("")
    found = told(tracker)
    assert (found["created"], len(found["names"])) == (30, 10)
    assert max(map(len, found["names"])) <= 102


def test_a_tracker_that_is_not_wanted_scans_nothing(top: Path) -> None:
    tracker = Tracker(place_at(top.parent), wanted=False)
    tracker.begin()
    (top / "a").write_text("")
    tracker.absorb("a")
    assert told(tracker) == {}


def test_deep_folders_silence_nothing(tracker: Tracker, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_states, "LEVELS", 5)
    tracker.begin()
    os.makedirs(top / "/".join("abcdefg"))
    assert told(tracker)["names"] == ["+ a/b/c/d/e"]
    tracker.begin()
    (top / "evil").write_text("")
    (top / "a/b/c/d/e/new").write_text("")
    assert told(tracker, "c2")["names"] == ["+ evil", "~ a/b/c/d/e"]


def test_a_tree_that_became_smaller_is_scanned_again(
    tracker: Tracker, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tree_states, "ENTRIES", 0)
        (top / "a").write_text("")
        tracker.begin()
    for number in range(60):
        tracker.begin()
        told(tracker, f"c{number}")
    (top / "b").write_text("")
    tracker.begin()
    assert "+ b" in told(tracker)["names"]


def test_a_first_scan_on_a_busy_machine_is_repeated_with_the_next_command(
    tracker: Tracker, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About thirty commands then reported no changed files, as if the tree were too large."""
    (top / "d").mkdir()
    with monkeypatch.context() as patched:
        passing = itertools.count(step=100)
        patched.setattr(tree_states, "time", SimpleNamespace(monotonic=lambda: next(passing), thread_time=time.thread_time))
        tracker.begin()
        assert told(tracker) == {}
    tracker.begin()
    (top / "d/new").write_text("")
    assert told(tracker, "c2")["names"] == ["+ d/new"]


def test_the_folder_of_git_is_not_reported(tracker: Tracker, top: Path) -> None:
    """s05: git status was reported to change "~ .git"."""
    (top / ".git").mkdir()
    (top / "lib/.git").mkdir(parents=True)
    tracker.begin()
    (top / ".git/index").write_text("x")
    (top / "lib/.git/index").write_text("x")
    assert told(tracker) == {}
    (top / "a").write_text("a")
    assert told(tracker)["names"] == ["+ a"]
