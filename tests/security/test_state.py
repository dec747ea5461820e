"""Threat: code in the sandbox spoils the host, a checkpoint, or what the caller is told of its files, while they are looked at."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from tests.contract.checks import codes_of, done

from .probing import probe

pytestmark = pytest.mark.engine
MIB = 1 << 20


@pytest.fixture
def own(docker_env: Callable[..., DockerEnvironment]) -> DockerEnvironment:
    """A sandbox of this test's own: forks and rollbacks are about all of its files."""
    return docker_env(limits=Limits(memory_bytes=1024 * MIB, pids=256))


def test_links_that_lead_out_are_kept_as_links(own: DockerEnvironment) -> None:
    """Threat: a link makes the checkpoint read, or the rollback write, what is not the workspace's."""
    own.run("ln -s / root; ln -s /proc/1/mem mem; ln -s ../run/gamebox up; mkdir d; echo inside > d/f").unwrap()
    made = done(own.checkpoint())
    assert (made.links, made.files) == (3, 1)
    own.run("rm -r d; ln -s /tmp d; echo outside > /tmp/f; rm root; mkdir root").unwrap()
    assert done(own.rollback(made.id)).differs == ()
    assert done(own.run("cat /tmp/f d/f; readlink root")).output == "outside\ninside\n/\n"


def test_a_folder_exchanged_for_a_link_meanwhile_leads_nowhere(own: DockerEnvironment) -> None:
    """Threat: a race between looking at a path and opening it."""
    own.run("mkdir -p real/d other; echo real > real/d/f; echo other > /tmp/f; cp -r real/d d").unwrap()
    racer = (
        "import os,time\nend=time.time()+6\nwhile time.time()<end:\n"
        " os.rename('d','e'); os.symlink('/tmp','d'); os.unlink('d'); os.rename('e','d')\n"
    )
    ran = done(own.run(argv=["python3", "-c", racer], background=True))
    store = []
    for number in range(15):
        assert own.checkpoint(f"n{number}").ok
        checkpoint = own.state.history.checkpoints[f"n{number}"]
        store += [own.state.history.store.read(digest, 100) for digest in checkpoint.digests.values()]
    assert b"real\n" in store
    assert b"other\n" not in store
    own.kill(ran.id).unwrap()


def test_files_that_change_while_they_are_read_are_told(own: DockerEnvironment) -> None:
    """Threat: a checkpoint that never was the state of the files is taken for one."""
    own.run("head -c 60000000 /dev/zero | tr '\\0' x > large").unwrap()
    writer = "f=open('large','r+b')\nprint('writes', flush=True)\nwhile True:\n f.seek(0); f.write(b'y'); f.flush()\n"
    ran = done(own.run(argv=["python3", "-c", writer], background=True))
    own.wait_for(id=ran.id, log="writes").unwrap()
    answer = own.checkpoint()
    notice = next(n for n in answer.notices if n.code == "changed_meanwhile")
    assert "1 files changed while they were read: large" in notice.message
    assert ran.id in notice.message
    own.kill(ran.id).unwrap()


def test_what_was_mapped_while_it_was_kept_is_read_again(own: DockerEnvironment) -> None:
    """Threat: memory that is mapped is written without any sign in the file's times."""
    source = (
        "import mmap,time,os\nf=open('m','w+b'); f.write(b'a'*4096); f.flush(); m=mmap.mmap(f.fileno(),4096); m[0:1]=b'b'\n"
        "open('ready','w').close()\nwhile not os.path.exists('go'): time.sleep(.01)\nm[0:1]=b'c'\n"
        "open('done','w').close(); time.sleep(60)\n"
    )
    ran = done(own.run(argv=["python3", "-c", source], background=True))
    own.run("while [ ! -e ready ]; do sleep .01; done; sleep .1").unwrap()
    own.checkpoint("first").unwrap()
    own.run("touch go; while [ ! -e done ]; do sleep .01; done").unwrap()
    own.kill(ran.id).unwrap()
    own.checkpoint("second").unwrap()
    history = own.state.history
    kept = [history.store.read(history.checkpoints[name].digests[(0, b"m")], 8192) for name in ("first", "second")]
    assert [k[:1] if isinstance(k, bytes) else k for k in kept] == [b"b", b"c"]


def test_unreadable_files_and_devices_are_left_alone_and_named(own: DockerEnvironment) -> None:
    """Threat: what cannot be kept is silently lost, or blocks."""
    own.run(
        "mkfifo pipe; echo s > secret; chmod 000 secret; mkdir -m 000 closed; "
        "python3 -c \"import socket; socket.socket(1).bind('s')\""
    )
    answer = own.checkpoint()
    notice = next(n for n in answer.notices if n.code == "not_kept")
    assert "4 entries" in notice.message
    assert set(done(answer).skipped) == {"pipe", "secret", "closed", "s"}
    own.run("echo n > new").unwrap()
    assert done(own.rollback(done(answer).id)).differs == ()
    assert done(own.run("ls -A; chmod 600 secret; cat secret")).output == "closed\npipe\ns\nsecret\ns\n"
    own.run("rm pipe").unwrap()
    failure = own.rollback(done(answer).id).to_dict()
    assert (failure["code"], failure["effects"]) == ("restore_incomplete", "partial")
    assert "pipe" in failure["error"]


def test_thirty_thousand_files_and_a_sparse_giant(docker_env: Callable[..., DockerEnvironment]) -> None:
    """Threat: numbers that take the host's or the guest's time and memory."""
    own = docker_env(limits=Limits(memory_bytes=2048 * MIB, transfer_bytes=64 * MIB))
    probe(
        own,
        "import os\nfor d in range(30):\n os.mkdir(f'd{d}')\n for i in range(1000): open(f'd{d}/{i}','w').close()\n",
    )
    assert "[exit" not in probe(own, "f=open('giant','wb'); f.truncate(1<<30); f.seek(1<<29); f.write(b'x')")
    started = time.monotonic()
    assert codes_of(own.run("true")) in ([], ["files_changed"])
    assert time.monotonic() - started < 60
    made = done(own.checkpoint())
    assert (made.files, made.added_bytes < MIB) == (30_001, True)
    own.run("rm -rf d5 giant; : > more").unwrap()
    changed = done(own.changes(made.id))
    assert (changed.created, changed.deleted, changed.truncated) == (1, 1002, True)
    assert done(own.rollback(made.id)).differs == ()


def test_the_patch_leaves_no_folder(own: DockerEnvironment, tmp_path: Path) -> None:
    """Threat: names and contents in the sandbox that make ``git apply`` write elsewhere on the host."""
    names = ["../out", "a/../../out", "/abs", "x\n+++ b/../out", "diff --git a/b b/b", "-rf", ".git/config"]
    probe(
        own,
        f"import os\nfor n in {names!r}:\n n='w/'+n.replace('..','dd')\n os.makedirs(os.path.dirname(n),exist_ok=True)\n"
        " open(n,'w').write('--- a/../out\\n+++ b/../out\\n@@ -0,0 +1 @@\\n+x\\n')\n",
    )
    probe(own, "import os\nos.symlink('/etc','w/etc')\n")
    repo = tmp_path / "repo"
    repo.mkdir()
    patch = own.export_patch(to=tmp_path / "patch").unwrap()
    subprocess.run(["git", "apply", str(tmp_path / "patch")], cwd=repo, check=True)
    assert sorted(os.listdir(tmp_path)) == ["patch", "repo"]
    assert os.readlink(repo / "w/etc") == "/etc"
    assert not any(name.startswith("w/.git/") for name in patch.files)


def test_the_store_is_bounded(docker_env: Callable[..., DockerEnvironment]) -> None:
    """Threat: a sandbox that fills the host's disk by being checkpointed."""
    own = docker_env(limits=Limits(checkpoint_bytes=4 * MIB))
    own.run("head -c 3000000 /dev/urandom > a").unwrap()
    done(own.checkpoint("fits"))
    own.run("head -c 3000000 /dev/urandom > b").unwrap()
    assert own.checkpoint("too much").to_dict()["code"] == "store_full"
    listed = done(own.checkpoints())
    assert ([c.id for c in listed.checkpoints], listed.store_bytes < 4 * MIB) == (["fits"], True)
    own.run("rm a b").unwrap()
    assert done(own.rollback("fits")).differs == ()


DEEP = "import os\nfor n in range({}):\n os.mkdir({!r}); os.chdir({!r})\nopen('bottom','w').write('x')\n"


def test_what_is_too_deep_to_be_seen_is_named(own: DockerEnvironment) -> None:
    """Threat: a file below more folders than are held open is neither kept nor told, and lost for good."""
    probe(own, DEEP.format(505, "a", "a"))
    answer = own.checkpoint("deep")
    assert codes_of(answer) == ["not_kept"]
    assert [len(name) for name in done(answer).skipped] == [999]
    assert [len(name) for name in done(own.changes("deep")).unread] == [999]
    assert len(done(own.export_patch("deep")).left_out) == 1
    back = own.rollback("deep")
    assert (codes_of(back), [len(name) for name in done(back).unread]) == (["not_kept"], [999])
    own.run("rm -rf a").unwrap()
    assert own.rollback("deep").to_dict()["code"] == "restore_incomplete"


def test_a_path_longer_than_any_record_stops_nothing(own: DockerEnvironment) -> None:
    """Threat: one path switches off looking, keeping and going back."""
    own.run("echo good > f").unwrap()
    own.checkpoint("good").unwrap()
    probe(own, DEEP.format(260, "n" * 255, "n" * 255))
    changed = done(own.changes("good"))
    assert (changed.created > 200, len(changed.unread)) == (True, 1)
    assert codes_of(own.checkpoint("long")) == ["not_kept"]
    assert done(own.rollback("good")).removed == 1
    assert done(own.run("ls")).output == "f\n"


def test_paths_do_not_take_the_memory_of_the_host(own: DockerEnvironment) -> None:
    """Threat: few empty files whose paths take gigabytes on the host."""
    probe(own, DEEP.format(250, "n" * 255, "n" * 255) + "for i in range(7500): open('f%d'%i,'w').close()\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for answer in (own.changes(), own.checkpoint()):
        assert answer.to_dict()["code"] == "too_many_files"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    own.run("rm -rf n*").unwrap()
    assert done(own.changes()).created == 0


def test_deep_closed_folders_do_not_stop_a_rollback(own: DockerEnvironment) -> None:
    """Threat: what is to be removed is made so that going back fails."""
    own.run("echo good > f").unwrap()
    own.checkpoint("good").unwrap()
    probe(own, "import os\nfor n in range(1500):\n os.mkdir('a'); os.chmod('.',0o500 if n else 0o700); os.chdir('a')\n")
    own.run("echo bad > f").unwrap()
    assert done(own.rollback("good")).differs == ()
    assert done(own.run("cat f; ls")).output == "good\nf\n"
