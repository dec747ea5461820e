"""Paths that lead out, through the whole environment: the host's calls read and write what lies below the roots, nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment
from sandbox.errors import ErrorCode

from .probing import probe

pytestmark = pytest.mark.engine

SECRET = "root:x:0:0"
TRAPS = """
rm -rf /workspace/traps; mkdir -p /workspace/traps/dir; cd /workspace/traps; echo inside > dir/file
ln -s /etc/passwd link; ln -s ../../etc/passwd relative; ln -s /etc etc; ln -s / root; ln -s /proc/self/root proc
ln -s /proc/1/environ environ; ln -s loop loop; ln -s /dev/zero zero; ln -s /proc/self/fd fds; ln -s dir/file good
mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'; mkdir closed; chmod 0 closed
ln /etc/passwd hard 2>/dev/null && echo LINKED; ln /etc/passwd /tmp/hard 2>/dev/null && echo LINKED; true
"""
OUTSIDE = [
    "/etc/passwd",
    "../etc/passwd",
    "../../../../etc/passwd",
    "traps/../../etc/passwd",
    "/workspace/../etc/passwd",
    "/proc/self/root/etc/passwd",
    "/proc/1/root/etc/passwd",
    "/proc/self/cwd/x",
    "/proc/1/environ",
    "/proc/1/mem",
    "/dev/zero",
    "/dev/stdin",
    "/sys/kernel",
    "/.gamebox/etc",
    "//etc/passwd",
    "/tmp/../etc/passwd",
    "/workspacex",
    "/run",
    "/dev/shm/x",
    "/",
    "traps/link",
    "traps/relative",
    "traps/etc/passwd",
    "traps/root/etc/passwd",
    "traps/proc/etc/passwd",
    "traps/environ",
    "traps/zero",
    "traps/fds/0",
    "traps/loop",
]
CALLS: dict[str, Callable[[DockerEnvironment, str], Any]] = {
    "read": lambda env, path: env.read(path),
    "read bytes": lambda env, path: env.read(path, offset=0, max_bytes=100),
    "write": lambda env, path: env.write(path, "overwritten"),
    "edit": lambda env, path: env.edit(path, "root", "toor"),
    "download": lambda env, path: env.download(path),
    "upload": lambda env, path: env.upload(b"overwritten", path),
    "upload below": lambda env, path: env.upload(b"overwritten", path + "/below"),
    "make_dir": lambda env, path: env.make_dir(path + "/below"),
    "move from": lambda env, path: env.move(path + "/hosts", "traps/stolen"),
    "move to": lambda env, path: env.move("traps/dir/file", path + "/moved"),
    "delete below": lambda env, path: env.delete(path + "/below", recursive=True),
    "list below": lambda env, path: env.list(path + "/below"),
}


@pytest.fixture
def traps(env: DockerEnvironment) -> DockerEnvironment:
    assert env.run(TRAPS, session=None).unwrap().output == ""  # no hard link to what is outside
    return env


@pytest.mark.parametrize("call", CALLS)
def test_no_call_leaves_the_roots(traps: DockerEnvironment, call: str) -> None:
    """Threat: a path, or a link that a command laid, has the guest read or write for the host what the tools may not touch."""
    before = traps.run("ls -lR --time-style=+ traps; sha256sum /etc/passwd", session=None).unwrap().stdout
    for path in OUTSIDE:
        answer = CALLS[call](traps, path)
        assert not answer.ok, (path, answer)
        assert SECRET not in str(answer), path
        assert answer.code is not ErrorCode.sandbox_unavailable
        assert answer.hint
        if path.startswith("/etc"):
            assert answer.code is ErrorCode.path_outside_roots
    after = traps.run("ls -lR --time-style=+ traps; sha256sum /etc/passwd", session=None).unwrap().stdout
    assert after == before, "a refused call changed something"


@pytest.mark.parametrize("name", ["fifo", "socket", "/dev/zero", "/dev/tty"])
@pytest.mark.parametrize("call", ["read", "read bytes", "download", "edit", "write"])
def test_what_is_no_file_is_not_opened(traps: DockerEnvironment, call: str, name: str) -> None:
    """Threat: a FIFO or a device keeps the guest waiting for ever, or feeds it without end."""
    path = name if name.startswith("/") else f"traps/{name}"
    answer = CALLS[call](traps, path)
    assert not answer.ok
    assert answer.code in {ErrorCode.not_a_regular_file, ErrorCode.path_outside_roots}, answer
    assert (
        traps.run(f"test -p traps/fifo && test -S traps/socket && echo {name}", session=None).unwrap().output
        == f"{name}\n"
    )


def test_searching_and_listing_stay_inside(traps: DockerEnvironment) -> None:
    """Threat: a search or a listing follows links out of the roots."""
    assert SECRET not in str(traps.search("root:", path="traps").unwrap())
    assert [m.path for m in traps.search("inside", path="traps").unwrap().matches] != []
    listed = traps.list("traps", depth=20).unwrap()
    assert all("/etc/" not in e.path.removeprefix("traps/") for e in listed.entries)
    assert {e.path.rsplit("/", 1)[-1]: e.type for e in listed.entries}["etc"] == "symlink"
    for path in ("traps/etc", "traps/root", "traps/proc", "/etc"):
        assert not traps.search("root:", path=path).ok
        assert not traps.list(path).ok


def test_deleting_a_link_deletes_the_link(traps: DockerEnvironment) -> None:
    """Threat: delete follows a link and removes what the tools may not touch, or another's files."""
    traps.run("mkdir /tmp/other; echo x > /tmp/other/kept; ln -s /tmp/other traps/other", session=None).unwrap()
    traps.delete("traps/other", recursive=True).unwrap()
    traps.delete("traps/root").unwrap()
    assert (
        traps.run("cat /tmp/other/kept; ls -d /etc/passwd; rm -r /tmp/other", session=None).unwrap().output
        == "x\n/etc/passwd\n"
    )


FLIP = """
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <fcntl.h>
int main(void) {
    chdir("/workspace/race");
    for (;;) syscall(SYS_renameat2, AT_FDCWD, "dir", AT_FDCWD, "link", 2);
}
"""


def test_races_with_exchanged_names(env: DockerEnvironment) -> None:
    """Threat: between the check of a path and its use, a command exchanges a folder with a link that leads out."""
    env.write("/tmp/flip.c", FLIP).unwrap()
    prepare = (
        "gcc -O2 -o /tmp/flip /tmp/flip.c; mkdir -p race/dir; echo inside > race/dir/passwd; ln -sfn /etc race/link"
    )
    env.run(prepare, timeout_seconds=60, session=None).unwrap()
    before = env.run("sha256sum /etc/passwd; ls /etc | wc -l", session=None).unwrap().output
    flipping = env.run("exec /tmp/flip", background=True).unwrap().id
    seen = {"inside": 0, "refused": 0}
    for count in range(2000):
        if count % 2:
            answer: Any = env.read("race/dir/passwd")
            text = answer.result.content if answer.ok else ""
        elif count % 100 == 0:
            answer = env.download("race/dir")
            text = str(answer.result)
        else:
            answer = env.write(f"race/dir/new{count % 10}", "inside\\n")
            text = "inside"
        assert SECRET not in str(answer)
        if answer.ok:
            assert "inside" in text
        seen["inside" if answer.ok else "refused"] += 1
    env.kill(flipping).unwrap()
    assert min(seen.values()) > 20, f"no race took place: {seen}"
    assert env.run("sha256sum /etc/passwd; ls /etc | wc -l", session=None).unwrap().output == before


def test_names_that_are_hard_to_say(env: DockerEnvironment) -> None:
    """Threat: a name that is no text, or too long, breaks the reply, hides a file, or names another one."""
    assert not env.read("a\0b").ok
    assert not env.write("nul\0", "x").ok
    assert env.write("n" * 255, "x").ok
    assert env.write("n" * 256, "x").code is ErrorCode.path_invalid  # type: ignore[union-attr]
    assert not env.read("d/" * 4096 + "x").ok
    assert not env.read("n" * 5000).ok
    names = [b"\xff\xfe", b"line\nbreak", b"\x1b[31mred", b" ", b"-rf", b"caf\xc3\xa9", b"quote'\"$(id)`id`"]
    source = f"import os\nos.makedirs('names', exist_ok=True)\nfor n in {names!r}: open(b'names/' + n, 'wb').write(b'content')"
    assert probe(env, source) == ""
    listed = env.list("names").unwrap()
    assert len(listed.entries) == len(names)
    assert "names/\ufffd\ufffd" in [e.path for e in listed.entries]  # no text can name it; run can
    for entry in listed.entries:
        if "\ufffd" in entry.path:
            assert env.read(entry.path).code is ErrorCode.path_not_found  # type: ignore[union-attr]
            continue
        assert env.read(entry.path).unwrap().content == "content", entry
    assert env.search("content", path="names").unwrap().files_with_matches == len(names)
    env.delete("names", recursive=True).unwrap()


def test_downloads_of_hostile_trees(env: DockerEnvironment, tmp_path: Path) -> None:
    """Threat: a downloaded tree writes outside its target on the host, or lays links, devices or set-id files there."""
    lay = (
        "rm -rf tree; mkdir -p tree/a; echo x > tree/a/file; ln -s /etc/passwd tree/out; ln -s ../../.. tree/a/up; "
        "mkfifo tree/fifo; "
        "ln -s file tree/a/good; cp /bin/true tree/suid; chmod 6777 tree/suid; truncate -s 2T tree/sparse 2>/dev/null; "
        "ln tree/a/file tree/hard; mkdir 'tree/..  '; echo x > 'tree/..  /odd'"
    )
    env.run(lay, session=None).unwrap()
    target = tmp_path / "target"
    answer = env.download("tree", to=target)
    if not answer.ok:  # the sparse file may be too large for all of it
        env.run("rm tree/sparse", session=None).unwrap()
        answer = env.download("tree", to=target)
    answer.unwrap()
    assert (target / "a/file").read_text() == "x\n"
    for folder, folders, files in os.walk(target):
        for name in [*folders, *files]:
            path = Path(folder, name)
            status = path.lstat()
            assert not status.st_mode & 0o6000, path
            if path.is_symlink():
                assert Path(os.path.realpath(path)).is_relative_to(target), path
            else:
                assert path.is_file() or path.is_dir(), path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["target"]
    assert answer.unwrap().skipped


def test_a_tree_too_deep_to_be_copied_is_left_alone(env: DockerEnvironment) -> None:
    """Threat: a tree deeper than descriptors go is moved by half, or taken for one that may not be read."""
    made = "import os\nos.makedirs('deep'); os.chdir('deep')\nfor _ in range(600): os.mkdir('d'); os.chdir('d')\nopen('last', 'w')"
    env.run(argv=["python3", "-c", made]).unwrap()
    answer = env.move("deep/d", "/tmp/there")
    assert not answer.ok
    assert answer.code is ErrorCode.path_invalid, answer.to_text()
    assert (answer.effects, answer.next_tool) == ("none", "run")
    assert "500" in answer.error
    left = "find deep/d | wc -l; find deep -name last | wc -l; find /tmp -name there -o -name '.gamebox*' | wc -l"
    assert env.run(left).unwrap().output.split() == ["601", "1", "0"]
    env.move("deep/d", "deep/e").unwrap()  # a rename
    env.delete("deep", recursive=True).unwrap()
    env.run(argv=["python3", "-c", made.replace("600", "400")]).unwrap()
    env.move("deep/d", "/tmp/there").unwrap()
    assert env.run("find /tmp/there -name last | wc -l; ls deep").unwrap().output.split() == ["1"]
    env.delete("/tmp/there", recursive=True).unwrap()
    env.delete("deep").unwrap()
