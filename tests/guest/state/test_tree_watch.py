"""The watch of a tree: what it says is unchanged is unchanged, whatever was done, and most looks need no read."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandbox.guest.kernel import ActingOnFiles, files_user
from sandbox.guest.state import changes, tree_states, tree_watch
from sandbox.guest.state.changes import Tracker
from sandbox.guest.state.tree_states import TreeReader
from sandbox.guest.state.tree_watch import TreeWatch
from tests.guest.calls import place_at
from tests.leaks import descriptors

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can have inotify instances of its own")

SECONDS = 60.0


@pytest.fixture(autouse=True, scope="module")
def _every_folder_is_a_mount() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tree_watch, "is_own_mount", lambda _: True)
        yield


IS_OWN_MOUNT = tree_watch.is_own_mount
INOTIFY = "anon_inode:inotify"
FOLDERS = ["", "src", "src/lib", "node_modules", "node_modules/pkg", ".git", ".git/objects", "new", "new/er"]
FILES = [f"{folder}/{name}".lstrip("/") for folder in FOLDERS for name in "ab"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "tree_states.so"
    checks = ["-fsanitize=undefined", "-fno-sanitize-recover", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", "-shared", "-fPIC", *checks, "-o", path, tree_states.__file__.replace(".py", ".c")], check=True)
    return path


@pytest.fixture(params=["disk", "memory"])
def top(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "disk":
        (tmp_path / "top").mkdir()
        yield tmp_path / "top"
        return
    held = Path("/dev/shm") / f"gamebox-test-{os.getpid()}-{os.urandom(4).hex()}"
    held.mkdir()
    yield held
    subprocess.run(["rm", "-rf", held], check=True)


class Watched:
    """A watched tree; ``look`` reads it if that is needed, and says whether it was."""

    def __init__(self, top: Path, library: Path, uid: int = 0) -> None:
        self.user = ActingOnFiles(uid, uid, wanted=uid != 0)
        self.reader = TreeReader(str(library))
        self.reader.load()
        self.top = os.fsencode(top)
        self.watch = TreeWatch(self.top, self.reader)
        self.watch.open()
        self.look()

    def look(self) -> bool:
        with self.user:
            if self.watch.is_unchanged():
                return False
            self.reader.read(self.top, SECONDS, SECONDS, self.watch)
            return True


@pytest.fixture
def watched(top: Path, library: Path) -> Watched:
    for folder in FOLDERS[1:-2]:
        (top / folder).mkdir()
        (top / folder / "a").write_text("a")
    return Watched(top, library)


def test_an_unchanged_tree_is_not_read(watched: Watched, top: Path) -> None:
    assert not watched.look()
    (top / "src/a").read_text()
    os.listdir(top / "src")
    assert [watched.look() for _ in range(3)] == [False] * 3


CHANGES = {
    "a new file": "touch src/new",
    "a new file in a new folder": "mkdir -p n/m; touch n/m/x",
    "contents": "echo b > src/lib/a",
    "a byte in place": "printf x | dd of=src/a conv=notrunc bs=1 status=none",
    "a shorter file": "truncate -s 0 src/a",
    "a mode": "chmod 600 src/a",
    "an owner": "chown 1000 src/a",
    "a time": "touch -d 2020-01-01 src/a",
    "a name": "mv src/a src/z",
    "a file that is gone": "rm src/a",
    "a file in place of another": "touch x; mv x src/a",
    "a folder that is gone": "rm src/lib/a; rmdir src/lib",
    "a symbolic link": "ln -s a src/l",
    "a pipe": "mkfifo src/p",
    "a skipped folder": "touch node_modules/b",
    "a file gone from a skipped folder": "rm node_modules/a",
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_noticed(watched: Watched, top: Path, what: str) -> None:
    subprocess.run(["sh", "-c", CHANGES[what]], cwd=top, check=True)
    assert watched.look()
    assert not watched.look()


def test_what_is_made_in_a_new_folder_is_noticed_later(watched: Watched, top: Path) -> None:
    (top / "n/m").mkdir(parents=True)
    assert watched.look()
    (top / "n/m/x").touch()
    assert watched.look()
    (top / "node_modules/pkg/deep/er").mkdir(parents=True)
    assert watched.look()
    os.link(top / "n/m/x", top / "node_modules/pkg/deep/er/x")
    assert watched.look()


def test_a_write_by_another_name_in_a_skipped_folder_is_noticed(watched: Watched, top: Path) -> None:
    """Decision 0014 did without notices for this."""
    os.link(top / "src/a", top / "node_modules/pkg/link")
    with open(top / "node_modules/pkg/link", "a") as file:
        file.write("more")
    assert watched.look()
    assert watched.look()  # from now on each look reads: no notice tells of the next write
    (top / "node_modules/pkg/link").unlink()
    watched.look()
    watched.look()
    assert not watched.look()


def test_a_write_into_a_mapped_file_is_noticed_when_its_process_has_ended(watched: Watched, top: Path) -> None:
    (top / "src/a").write_text("a" * 5000)
    watched.look()
    script = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); input(); m[7] = 1"
    command = ["/usr/bin/env", "python3", "-c", script, str(top / "src/a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        process.communicate(b"\n")
    assert watched.look()
    assert not watched.look()


def test_more_notices_than_the_kernel_keeps(watched: Watched, top: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    names = [top / "src" / name for name in "ab"]
    names[0].touch()
    for number in range(most):
        os.rename(names[number % 2], names[1 - number % 2])
    (top / "node_modules/pkg/unseen").mkdir()
    assert watched.look()
    assert not watched.look()
    os.link(top / "src/lib/a", top / "node_modules/pkg/unseen/a")
    assert watched.look()


def test_a_tree_with_a_file_of_two_names_is_read_each_time(top: Path, library: Path) -> None:
    (top / "a").touch()
    os.link(top / "a", top / "b")
    watched = Watched(top, library)
    assert [watched.look() for _ in range(3)] == [True] * 3


def test_a_tree_with_another_file_system_in_it_is_read_each_time(top: Path, library: Path) -> None:
    (top / "d").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", top / "d"], capture_output=True).returncode:
        pytest.skip("no mounts here")
    try:
        watched = Watched(top, library)
        assert [watched.look() for _ in range(3)] == [True] * 3
    finally:
        subprocess.run(["umount", top / "d"], check=True)


@pytest.mark.parametrize("top", ["memory"], indirect=True)
@pytest.mark.parametrize("folder", ["src", "node_modules"])
def test_a_tree_with_a_folder_that_the_user_cannot_read_is_read_each_time(top: Path, library: Path, folder: str) -> None:
    (top / folder).mkdir()
    (top / folder).chmod(0)
    top.chmod(0o755)
    watched = Watched(top, library, uid=1000)
    assert [watched.look() for _ in range(3)] == [True] * 3


def test_too_many_folders_end_the_watch(top: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_watch, "FOLDERS", 10)
    for number in range(9):
        (top / f"d{number}").mkdir()
    watched = Watched(top, library)
    assert not watched.look()
    number = watched.watch._inotify
    assert descriptors()[number] == INOTIFY
    (top / "node_modules").mkdir()
    assert [watched.look() for _ in range(3)] == [True] * 3
    assert descriptors().get(number) != INOTIFY


def test_folders_are_counted_once_however_much_room_they_take(top: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_watch, "FOLDERS", 50)
    for number in range(40):
        (top / "d" / str(number)).mkdir(parents=True)
        for file in range(30):
            (top / "d" / str(number) / f"{'f' * 200}{file}").touch()
    watched = Watched(top, library)
    assert not watched.look()


def test_watches_do_not_pile_up_where_no_read_comes(top: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_watch, "IN_VAIN", 5)
    deep = top.joinpath("z/node_modules", *["d"] * 60)
    deep.mkdir(parents=True)
    watched = Watched(top, library)
    for number in range(20):
        (top / str(number)).mkdir()
        assert [watched.look() for _ in range(3)] == [True] * 3
        (top / str(number)).rename(deep / str(number))
    assert watched.watch._inotify < 0


def test_too_many_hidden_entries_end_the_watch(top: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_watch, "ENTRIES", 100)
    (top / ".git/objects").mkdir(parents=True)
    for number in range(90):
        (top / f".git/objects/{number}").touch()
    watched = Watched(top, library)
    assert not watched.look()
    for number in range(20):
        (top / f".git/{number}").mkdir()
    assert [watched.look() for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("limits", [(0.0, SECONDS), (SECONDS, 0.0)], ids=["cpu", "clock"])
def test_hidden_folders_take_no_more_time_than_the_look_may(top: Path, library: Path, limits: tuple[float, float]) -> None:
    (top / ".git/objects").mkdir(parents=True)
    watched = Watched(top, library)
    (top / ".git/new").mkdir()
    watched.reader.read(watched.top, *limits, watched.watch)
    assert [watched.look() for _ in range(3)] == [True, True, False]


def test_a_tree_that_files_can_be_linked_out_of_is_read_each_time(
    top: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_watch, "is_own_mount", IS_OWN_MOUNT)
    watched = Watched(top, library)
    assert [watched.look() for _ in range(3)] == [True] * 3
    assert tree_watch.is_own_mount(b"/proc")


def test_hidden_folders_leave_half_of_the_time_for_the_states(top: Path, library: Path) -> None:
    (top / "src").mkdir()
    for number in range(1500):
        (top / f".venv/{number}").mkdir(parents=True)
    watched = Watched(top, library)
    (top / ".venv/new").mkdir()
    for _ in range(3):  # each may read what there is in the other half
        watched.reader.read(watched.top, 0.004, SECONDS, watched.watch)
    assert not watched.watch.is_unchanged()
    assert [watched.look() for _ in range(3)][-1] is False


def test_a_kernel_that_lacks_a_call_ends_the_watch(watched: Watched, top: Path) -> None:
    real = watched.reader.library
    watched.reader.library = SimpleNamespace(read_tree=lambda *_: -4, take_notices=real.take_notices)
    (top / "src/new").touch()
    assert [watched.look() for _ in range(3)] == [True] * 3
    assert watched.watch._inotify < 0


def test_another_folder_in_its_place_is_read(watched: Watched, top: Path) -> None:
    top.rename(f"{top}-old")
    try:
        top.mkdir()
        assert [watched.look() for _ in range(3)] == [True] * 3
    finally:
        subprocess.run(["rm", "-rf", f"{top}-old"], check=True)


def test_instances_are_counted_for_each_sandbox_alone(tmp_path: Path, library: Path) -> None:
    """Root has 128 of them on most machines, and there are more sandboxes."""
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, most + 1000), hard))
    many: list[Watched] = []
    try:
        many = [Watched(tmp_path, library) for _ in range(most + 50)]
        assert not any(each.look() for each in many)
    finally:
        for each in many:
            each.watch.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (os.getuid(), os.geteuid(), files_user()[0]) == (0, 0, 0)


def test_in_a_user_namespace_nothing_is_watched(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """There its instances are counted for the user of the engine as well."""
    monkeypatch.setattr(tree_watch, "_EVERY_UID", ["0", "100000", "65536"])
    watched.watch = TreeWatch(watched.top, watched.reader)
    watched.watch.open()
    watched.look()
    assert watched.look()


def add_to(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


@pytest.mark.parametrize("name", ["node_modules/n", "new/n"])
def test_a_write_by_a_name_that_is_gone_is_noticed_when_its_process_has_ended(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel notices it in the folder of the name by which the file was opened, and nowhere else."""
    monkeypatch.setattr(changes, "CLOCK_SECONDS", SECONDS)
    place = place_at(tmp_path)
    place.launcher = str(library)
    top = tmp_path / "workspace"
    (top / "node_modules").mkdir()
    tracker = Tracker(place, wanted=True)
    tracker.begin()
    assert tracker.look("c1", 10, left=False) is None
    (top / name).parent.mkdir(exist_ok=True)
    with (top / name).open("wb", buffering=0) as held:  # by a process that goes on
        os.link(top / name, top / "linked")
        (top / name).unlink()
        if name == "new/n":
            (top / name).parent.rmdir()
        for others in (False, True):
            tracker.begin()
            tracker.look("c2", 10, left=not others, others=others)
        held.write(b"more")
    tracker.begin()
    found = tracker.look("c3", 10, left=False)
    tracker._watch.close()
    assert found is not None
    assert found["names"] == ["~ linked"]


ACTIONS: dict[str, Callable[[Path, Path], object]] = {
    "write": lambda one, other: one.write_text(other.name),
    "append": lambda one, _: add_to(one),
    "remove": lambda one, _: one.unlink(),
    "rename": lambda one, other: one.rename(other),
    "link": lambda one, other: os.link(one, other),
    "make a folder": lambda one, _: os.makedirs(one.parent),
    "remove a folder": lambda one, _: os.rmdir(one.parent),
    "change the mode": lambda one, _: os.chmod(one, one.stat().st_mode ^ 0o077),
    "link symbolically": lambda one, other: other.symlink_to(one),
    "move a folder": lambda one, other: one.parent.rename(other.parent / "moved"),
    "nothing": lambda *_: None,
}
_actions = st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(FILES), st.sampled_from(FILES))


@example(steps=[[("remove a folder", "a", "a"), ("make a folder", "node_modules/a", "a")], [("append", "node_modules/a", "a")]])
@given(steps=st.lists(st.lists(_actions, max_size=4), max_size=12))
@settings(max_examples=150, deadline=None)
def test_notices_are_those_without_a_watch(
    library: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[list[tuple[str, str, str]]]
) -> None:
    """After each command of some actions, two trackers report the same: one that watches, and one that reads each time."""
    base = tmp_path_factory.mktemp("both")
    place = place_at(base)
    top = base / "workspace"
    place.launcher = str(library)
    watching, reading = Tracker(place, wanted=True), Tracker(place_at(base), wanted=True)
    trackers = (watching, reading)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(changes, "CLOCK_SECONDS", SECONDS)
        for number, actions in enumerate(steps):
            for tracker in trackers:
                tracker.begin()
            for what, one, other in actions:
                with contextlib.suppress(OSError):
                    ACTIONS[what](top / one, top / other)
            found = [tracker.look(f"c{number}", 10, left=False) for tracker in trackers]
            assert found[0] == found[1], actions
    watching._watch.close()
