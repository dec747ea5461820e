"""Checkpoints, rollbacks, forks and patches of real sandboxes, on memory and on a disk of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.aio import AsyncEnvironment
from tests.contract.checks import codes_of, done, refused, seen_until
from tests.integration.observing import guest_pid

pytestmark = pytest.mark.engine
MIB = 1 << 20
PLACES = {"memory": Limits(disk="memory"), "disk": Limits(memory_bytes=512 * MIB)}
# Everything about every path below both roots, as a person would compare it.
LOOK = (
    "cd / && for top in workspace home/agent; do find $top -printf '%p %y %m %T@ %l %n\\n' | grep -v ' d .* [0-9]*$' | sort;"
    " find $top -type d -printf '%p %m %T@\\n' | sort; find $top -type f -readable -exec sha256sum {} + | sort; done"
)
FILL = r"""
mkdir -p a/b/empty 'odd
name' ~/.cache; echo one > a/one; ln a/one a/b/same; ln -s ../one a/b/link; ln -s /etc/passwd out; ln -s nowhere dangling
printf 'x\0y' > a/binary; : > none; chmod 640 a/one; printf x > "$(printf 'bad\377name')"; echo h > ~/.cache/h
truncate -s 64M sparse; printf end >> sparse; printf '#!/bin/sh\n' > tool; chmod 755 tool; echo x > 'odd
name/x'; mkdir locked; echo l > locked/l; chmod 555 locked; touch -d '2001-02-03 04:05:06.789' a/one none a/b/empty a
"""
RUIN = r"""
chmod 755 locked; rm -rf locked a/b out 'odd
name' ~/.cache none; mkdir none; echo q > none/q; echo two > a/one; echo new > a/new; chmod 600 tool; rm sparse; mkdir out
ln -s a sparse; echo z > "$(printf 'bad\377name')"; mkdir deep; chmod 000 deep; touch a/binary; cp tool tool2; chmod 000 a/new
"""


@pytest.fixture(params=PLACES, ids=list(PLACES))
def kept(request: pytest.FixtureRequest) -> Iterator[DockerEnvironment]:
    with DockerEnvironment(limits=PLACES[request.param]) as env:
        yield env


def look(env: DockerEnvironment) -> str:
    return done(env.run(LOOK, session=None, keep_output_bytes=MIB)).output


def test_a_rollback_is_exact(kept: DockerEnvironment, tmp_path: Path) -> None:
    assert done(kept.run(FILL)).exit_code == 0
    before = look(kept)
    made = kept.checkpoint("before")
    assert codes_of(made) == []
    assert made.ok
    assert made.result.added_bytes < MIB  # the hole of 64 MiB is none of them
    ruined = done(kept.run(RUIN))
    assert ruined.exit_code == 0, ruined.output
    assert look(kept) != before
    back = done(kept.rollback("before"))
    assert back.differs == ()
    assert look(kept) == before
    assert int(done(kept.run("stat -c %b sparse")).output) < 100  # still sparse
    # and once more, elsewhere
    saved = done(kept.save_checkpoint("before", tmp_path / "saved.tar"))
    assert saved.size_bytes == (tmp_path / "saved.tar").stat().st_size
    with DockerEnvironment(limits=kept.limits) as other:
        done(other.rollback(done(other.load_checkpoint(tmp_path / "saved.tar")).id))
        assert look(other) == before
    # and from an empty place
    done(kept.run("chmod -R u+rwx . ; find . -mindepth 1 -delete; rm -rf ~/.cache"))
    done(kept.rollback("before"))
    assert look(kept) == before


def test_only_what_changed_is_read_and_sent_again(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env()
    env.run("for i in $(seq 200); do head -c 10000 /dev/urandom > f$i; done").unwrap()
    time.sleep(0.05)
    assert done(env.checkpoint("a")).read_files == 200
    env.run("echo x > f7; rm f8").unwrap()
    second = done(env.checkpoint("b"))
    assert (second.read_files, second.added_bytes < 1000) == (1, True)
    back = done(env.rollback("a"))
    assert back.restored == 2
    assert back.sent_bytes < 40_000


def test_a_full_disk_can_be_rolled_back(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env(limits=Limits(memory_bytes=512 * MIB, disk_bytes=64 * MIB))
    env.run("head -c 20000000 /dev/urandom > kept").unwrap()
    made = done(env.checkpoint())
    assert done(env.run("rm kept; cat /dev/zero > hog", session=None)).exit_code != 0
    assert done(env.rollback(made.id)).differs == ()
    assert done(env.list()).entries[0].size_bytes == 20_000_000


def test_forks_have_the_files_and_go_their_own_way(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env(env={"SHARED": "yes"})
    env.run("echo base > a; echo h > ~/h; export INSIDE=also").unwrap()
    forks = env.fork(2).unwrap().environments
    try:
        for number, fork in enumerate(forks):
            ran = done(fork.run(f"cat a ~/h; echo $SHARED $INSIDE; echo {number} >> a; touch new"))
            assert ran.output == "base\nh\nyes also\n"
            assert fork.limits == env.limits
        env.close()  # they do not need it any more
        for number, fork in enumerate(forks):
            assert [c.path for c in done(fork.changes()).changes] == ["a", "new"]
            assert f"+{number}\n".encode() in fork.export_patch().unwrap().patch
    finally:
        for fork in forks:
            fork.close()


def test_a_fork_says_what_it_cannot_have(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env()
    env.run("echo a > secret; chmod 000 secret; mkfifo pipe; mkdir shut; echo b > shut/x; chmod 000 shut; echo c > kept").unwrap()
    kept = done(env.checkpoint()).id
    for ident in (None, kept):
        answer = env.fork(1, ident)
        forked = answer.unwrap().environments[0]
        try:
            assert [notice.code for notice in answer.notices] == ["not_kept"]
            assert done(forked.run("cat kept; ls")).output == "c\nkept\n"
        finally:
            forked.close()


def test_a_fork_that_cannot_be_made_leaves_nothing(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env()
    refused(env.fork(1, "nothing"), "checkpoint_not_found")
    for count in (0, 65):
        assert env.fork(count).to_dict()["code"] == "invalid_arguments"


def test_profile_root_says_what_is_not_kept(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env(profile="root")
    env.run("echo w > w; chown 33:33 w; echo r > ~/r").unwrap()
    made = env.checkpoint()
    assert codes_of(made) == ["root_not_kept"]
    env.run("rm w ~/r").unwrap()
    done(env.rollback(made.unwrap().id))
    assert done(env.run("stat -c %u:%g w; cat ~/r")).output == "33:33\nr\n"


def workspace_at(folder: Path) -> None:
    folder.mkdir()
    files: dict[str, bytes] = {
        "text": b"one\ntwo\nthree\n", "no newline": b"a\nb", "crlf": b"a\r\nb\r\n", "binary": bytes(range(256)) * 9, "gone": b"g\n",
        "latin": "é\n".encode("latin-1"), "empty": b"", "mode": b"#!/bin/sh\n", "becomes link": b"x\n", 'q"uote\\': b"q\n",
        "newline\nname": b"n\n", "ünï": b"u\n", "becomes folder": b"f\n", "sub/deep/file": b"d\n", "tab\tname": b"t\n",
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / os.fsdecode(b"bad\xff")).write_bytes(b"b\n")
    (folder / "link").symlink_to("text")


CHANGE = r"""
set -e; sed -i s/two/2/ text; printf 'a\nc' > 'no newline'; printf 'a\r\nc\r\n' > crlf; printf '\0\1\2' > binary; rm gone
printf '\350\n' > latin; echo full > empty; chmod 755 mode; rm 'becomes link'; ln -s text 'becomes link'; echo 2 > 'q"uote\'
echo 2 > 'newline
name'; echo 2 > ünï; rm 'becomes folder'; mkdir 'becomes folder'; echo in > 'becomes folder/in'
rm -r sub; echo 2 > "$(printf 'bad\377')"
ln -sfn binary link; : > new-empty; printf 'no end' > new; cp binary 'new binary'; echo 2 > 'tab	name'; mkdir only; mkfifo pipe
"""


def states(folder: Path) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_file():
            found[name] = ("x" if path.stat().st_mode & 0o100 else "file", path.read_bytes())
    return found


def test_git_applies_the_patch_of_the_whole_run(docker_env: Callable[..., DockerEnvironment], tmp_path: Path) -> None:
    workspace_at(tmp_path / "repo")
    env = docker_env(workspace=tmp_path / "repo")
    (tmp_path / "repo" / "text").write_text("changed on the host meanwhile\n")  # what counts is what was copied in
    ran = done(env.run(CHANGE))
    assert ran.exit_code == 0, ran.output
    made = env.export_patch(to=tmp_path / "patch").unwrap()
    assert made.left_out == {"only": "an empty folder", "pipe": "neither a file nor a folder nor a link"}
    (tmp_path / "repo" / "text").write_text("one\ntwo\nthree\n")
    subprocess.run(["git", "apply", "--unsafe-paths", str(tmp_path / "patch")], cwd=tmp_path / "repo", check=True)
    env.run("rm pipe").unwrap()
    env.download(".", tmp_path / "now").unwrap()
    assert states(tmp_path / "repo") == states(tmp_path / "now")
    subprocess.run(["git", "apply", "-R", str(tmp_path / "patch")], cwd=tmp_path / "repo", check=True)
    workspace_at(tmp_path / "again")
    assert states(tmp_path / "repo") == states(tmp_path / "again")
    refused(env.export_patch(to=tmp_path / "patch"), "path_exists", "patch")


async def _async(env: DockerEnvironment) -> tuple[Any, Any]:
    aio = AsyncEnvironment(env)
    made = await aio.checkpoint("a")
    await aio.write("new", "x")
    changed = await aio.changes("a")
    await aio.rollback("a")
    return made, changed


def test_the_same_with_asyncio(docker_env: Callable[..., DockerEnvironment]) -> None:
    import asyncio

    env = docker_env()
    made, changed = asyncio.run(_async(env))
    assert made.ok
    assert changed.result.created == 1
    assert done(env.list()).entries == ()


def test_tracking_can_be_switched_off(docker_env: Callable[..., DockerEnvironment]) -> None:
    env = docker_env(track_changes=False)
    assert codes_of(env.run("touch a")) == []
    refused(env.changes(), "checkpoint_not_found")
    refused(env.export_patch(), "checkpoint_not_found")
    assert env.checkpoint().ok


@pytest.mark.parametrize("limits", PLACES.values(), ids=PLACES)
def test_the_folders_of_a_workspace_are_watched(limits: Limits) -> None:
    """On both kinds of file system; by an instance of the guest, not of root, who has 128 on a machine. Not for one command."""

    def watched() -> list[int]:
        infos = []
        for path in Path(f"/proc/{guest_pid(env)}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                infos.append(path.read_text())
        return [info.count("inotify wd:") for info in infos if "inotify" in info]

    def watched_after_another() -> list[int]:
        env.run("sleep 0.5").unwrap()
        return watched()

    with DockerEnvironment(limits=limits) as env:
        env.run("mkdir -p a/b .git/objects; touch a/b/c").unwrap()
        assert watched() == []
        # A busy machine may put off a look at the files to a later command.
        assert seen_until(watched_after_another, lambda seen: seen == [5]) == [5]
        assert codes_of(env.run("true")) == []
        commands = itertools.chain(["echo new > a/b/c"], itertools.repeat("sleep 0.5"))
        told = seen_until(lambda: env.run(next(commands)), lambda answer: bool(answer.notices))
        assert [notice.code for notice in told.notices] == ["files_changed"]
