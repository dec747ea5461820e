"""Nothing outside the roots is ever opened, and what lies inside always is."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.guest.files import roots as roots_module
from sandbox.guest.files.roots import Roots
from sandbox.guest.protocol.faults import Fault

SECRET = b"secret of the outside"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("workspace/sub/deep", "home", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside/secret").write_bytes(SECRET)
    (tmp_path / "outside/secret2").write_bytes(SECRET)
    (tmp_path / "workspace/a.txt").write_text("a")
    (tmp_path / "workspace/sub/b.txt").write_text("b")
    (tmp_path / "home/h.txt").write_text("h")
    return tmp_path


@pytest.fixture(params=["openat2", "walk"])
def roots(base: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Roots:
    if request.param == "walk":

        def refused(dir_fd: int, path: bytes, flags: int) -> int:
            raise OSError(38, "not there")

        monkeypatch.setattr(roots_module, "openat2", refused)
    return made(base)


def made(base: Path) -> Roots:
    return Roots(os.fsencode(base / "workspace"), (os.fsencode(base / "workspace"), os.fsencode(base / "home")))


def content(roots: Roots, path: str) -> bytes:
    fd, _ = roots.open_regular(path)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def code(roots: Roots, path: str) -> str:
    with pytest.raises(Fault) as caught:
        roots.open_regular(path)
    return caught.value.code


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.txt", b"a"),
        ("./sub//b.txt", b"b"),
        ("sub/../a.txt", b"a"),
        ("sub/deep/../../a.txt", b"a"),
        ("../home/h.txt", b"h"),
        ("../workspace/a.txt", b"a"),
        ("sub/../../home/../workspace/sub/b.txt", b"b"),
    ],
)
def test_paths_inside(roots: Roots, base: Path, path: str, expected: bytes) -> None:
    assert content(roots, path) == expected
    assert content(roots, str(base / "workspace" / path)) == expected


@pytest.mark.parametrize(
    ("link", "target", "expected"),
    [
        ("l", "a.txt", b"a"),
        ("l", "sub/b.txt", b"b"),
        ("l", "{base}/workspace/sub/b.txt", b"b"),
        ("l", "{base}/home/h.txt", b"h"),
        ("l", "../home/h.txt", b"h"),
        ("sub/l", "../../home/h.txt", b"h"),
    ],
)
def test_links_inside(roots: Roots, base: Path, link: str, target: str, expected: bytes) -> None:
    (base / "workspace" / link).symlink_to(target.format(base=base))
    assert content(roots, link) == expected


def test_links_of_folders_into_another_root(roots: Roots, base: Path) -> None:
    (base / "workspace/one").symlink_to(base / "workspace/two")
    (base / "workspace/two").symlink_to(base / "home")
    assert content(roots, "one/h.txt") == b"h"
    assert content(roots, "one/../home/h.txt") == b"h"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside/secret",
        "/proc/self/root/etc/passwd",
        "/",
        "..",
        "sub/../../outside/secret",
        "/dev/zero",
    ],
)
def test_paths_outside(roots: Roots, path: str) -> None:
    with pytest.raises(Fault) as caught:
        roots.open_regular(path)
    assert caught.value.code == "path_outside_roots"
    assert len(caught.value.fields["roots"]) == 2


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../outside/secret", "{base}/outside/secret", "/proc/self/root/etc/passwd", "/proc/self/fd/0"],
)
def test_links_outside(roots: Roots, base: Path, target: str) -> None:
    (base / "workspace/l").symlink_to(target.format(base=base))
    (base / "workspace/dir").symlink_to(os.path.dirname(target.format(base=base)))
    assert code(roots, "l") == "path_outside_roots"
    assert code(roots, "dir/" + os.path.basename(target)) == "path_outside_roots"
    with pytest.raises(Fault) as caught:
        roots.follow("l")
    assert caught.value.code == "path_outside_roots"
    with pytest.raises(Fault) as caught:
        roots.make_dirs("dir/new")
    assert caught.value.code == "path_outside_roots"
    assert not (base / "outside/new").exists()


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 256, "y/" * 2048, "\ud800"])
def test_paths_that_no_file_can_have(roots: Roots, path: str) -> None:
    assert code(roots, path) == "path_invalid"


def test_a_loop_of_links(roots: Roots, base: Path) -> None:
    (base / "workspace/x").symlink_to("y")
    (base / "workspace/y").symlink_to(base / "workspace/x")
    assert code(roots, "x") == "path_invalid"
    with pytest.raises(Fault) as caught:
        roots.follow("x")
    assert caught.value.code == "path_invalid"


def test_anything_but_a_regular_file_is_refused_at_once(roots: Roots, base: Path) -> None:
    os.mkfifo(base / "workspace/fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(base / "workspace/sock"))
    for path, kind in (("fifo", "fifo"), ("sock", "socket or fifo")):
        with pytest.raises(Fault) as caught:
            roots.open_regular(path)
        assert (caught.value.code, caught.value.fields["kind"]) == ("not_a_regular_file", kind)
    assert code(roots, "sub") == "is_a_directory"
    for path in ("a.txt/x", "a.txt/", f"{base}/workspace/a.txt/", "a.txt/."):
        assert code(roots, path) == "not_a_directory"
    assert code(roots, "nothing") == "path_not_found"


def test_invalid_utf8_names(roots: Roots, base: Path) -> None:
    raw = os.fsencode(base / "workspace") + b"/b\xffd"
    with open(raw, "wb") as file:
        file.write(b"x")
    assert content(roots, "b\udcffd") == b"x"
    assert roots.display("b\udcffd") == "b\ufffdd"


def test_make_dirs_through_links_and_up(roots: Roots, base: Path) -> None:
    (base / "workspace/l").symlink_to(base / "home")
    fd, count = roots.make_dirs("l/p/q")
    os.close(fd)
    assert count == 2
    assert (base / "home/p/q").is_dir()
    with pytest.raises(Fault) as caught:
        roots.make_dirs("new/../../outside/x")
    assert caught.value.code == "path_not_found"
    assert not (base / "workspace/new").exists()


def test_deep_trees(roots: Roots, base: Path) -> None:
    try:
        fd, count = roots.make_dirs("/".join(["d"] * 1500))
        os.close(fd)
        assert count == 1500
    finally:  # deeper than pytest can clean up
        subprocess.run(["rm", "-rf", str(base / "workspace/d")], check=True)


def test_roots_themselves_have_no_parent_here(roots: Roots, base: Path) -> None:
    for path in (".", "..", str(base / "home"), "../home", "sub/.."):
        with pytest.raises(Fault) as caught:
            roots.open_parent(path)
        assert caught.value.code in ("path_invalid", "path_outside_roots")


@pytest.fixture
def flipping(base: Path) -> Iterator[Path]:
    """Make workspace/flip a folder and a link to the outside in turns, without a pause."""
    workspace = base / "workspace"
    (workspace / "flip").mkdir()
    (workspace / "flip/secret").write_text("inside")
    (workspace / "other").symlink_to(base / "outside")
    stop = threading.Event()
    libc = ctypes.CDLL(None, use_errno=True)
    one, two = os.fsencode(workspace / "flip"), os.fsencode(workspace / "other")

    def flip() -> None:
        while not stop.is_set():
            assert libc.renameat2(-100, one, -100, two, 2) == 0

    thread = threading.Thread(target=flip)
    thread.start()
    yield workspace
    stop.set()
    thread.join()


def test_no_race_opens_the_outside(roots: Roots, flipping: Path) -> None:
    seen = {"inside": 0, "refused": 0}
    until = time.monotonic() + 60  # on a busy machine the two threads may take turns that are long
    while sum(seen.values()) < 3000 or (not min(seen.values()) and time.monotonic() < until):
        try:
            assert content(roots, "flip/secret") == b"inside"
            seen["inside"] += 1
        except Fault as fault:
            if fault.code not in ("path_outside_roots", "not_a_directory", "path_invalid"):
                raise
            seen["refused"] += 1
    assert min(seen.values()) > 0


_parts = st.sampled_from(
    ["..", ".", "", "sub", "deep", "a.txt", "secret", "outside", "home", "workspace", "out", "up", "abs", "loop", "x"]
)
_targets = st.lists(_parts, min_size=1, max_size=5).map("/".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.lists(_parts, min_size=1, max_size=8).map("/".join),
    targets=st.lists(_targets, min_size=4, max_size=4),
    absolute=st.booleans(),
)
def test_no_path_opens_the_outside(base: Path, path: str, targets: list[str], absolute: bool) -> None:
    for folder in ("workspace", "workspace/sub", "home"):
        for name, target in zip(("out", "up", "abs", "loop"), targets, strict=True):
            link = base / folder / name
            link.unlink(missing_ok=True)
            link.symlink_to((str(base) + "/" + target if name == "abs" else target) or ".")
    roots = made(base)
    path = f"{base}/{path}" if absolute else path or "."
    answers = []
    for walked in (False, True):
        try:
            fd = roots.walk(roots_module.encode_path(path), os.O_RDONLY) if walked else roots.open(path, os.O_RDONLY)
        except (Fault, OSError) as error:
            answers.append(error.code if isinstance(error, Fault) else roots.fault_for(error, path).code)
            continue
        real = os.readlink(f"/proc/self/fd/{fd}")
        os.close(fd)
        answers.append(real)
        assert real.startswith((f"{base}/workspace", f"{base}/home"))
    assert answers[0] == answers[1]


def test_roots_may_be_known_by_other_paths_than_their_own(tmp_path: Path) -> None:
    for name in ("w/a", "h"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "h" / "f").write_text("x")
    (tmp_path / "w" / "a" / "link").symlink_to("/home/agent/f")
    (tmp_path / "w" / "out").symlink_to(tmp_path / "h" / "f")
    names, folders = (b"/workspace", b"/home/agent"), (os.fsencode(tmp_path / "w"), os.fsencode(tmp_path / "h"))
    roots = Roots(names[0], names, folders)
    for path in ("/home/agent/f", "a/link", "../home/agent/f", "/workspace/a/link"):
        fd, _ = roots.open_regular(path)
        assert os.read(fd, 9) == b"x", path
        os.close(fd)
    assert roots.display("/workspace/a") == "a"
    for path in ("out", str(tmp_path / "h" / "f"), "../x"):
        with pytest.raises(Fault) as raised:
            roots.open(path, os.O_RDONLY)
        assert raised.value.code == "path_outside_roots", path


@pytest.mark.parametrize("way", ["openat2", "walk"])
def test_what_proc_says_of_the_guest_itself_is_closed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "walk":
        monkeypatch.setattr(roots_module, "openat2", lambda *_: (_ for _ in ()).throw(OSError(38, "not there")))
    roots = Roots(b"/tmp", (b"/",))
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, args=(20,))
    thread.start()
    child = subprocess.Popen(["sleep", "20"])
    try:
        for own in ("self", "thread-self", str(os.getpid()), str(thread.native_id), f"self/task/{thread.native_id}"):
            for path in (f"/proc/{own}/maps", f"/proc/{own}"):
                with pytest.raises(Fault) as refused:
                    roots.open(path, os.O_RDONLY)
                assert refused.value.code == "permission_denied", path
        with pytest.raises(Fault):
            roots.follow("/proc/self/comm")
        for path in ("/proc/sys/kernel/random/boot_id", "/proc/version", f"/proc/{child.pid}/maps", "/proc"):
            os.close(roots.open(path, os.O_RDONLY))
    finally:
        ended.set()
        thread.join()
        child.kill()
        child.wait()
