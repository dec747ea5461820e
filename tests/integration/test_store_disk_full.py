"""The host's disk that keeps checkpoints is full: said with what frees room, nothing half-made stays, and room can be made."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import Limits, LocalEnvironment
from sandbox.errors import ErrorCode
from tests.contract.checks import done, refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of its own")

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def test_a_full_disk_refuses_and_keeps_what_it_has(disk: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with LocalEnvironment(work) as env:
        top = Path(env.workspace)
        (top / "a").write_bytes(os.urandom(2 * MIB))
        done(env.checkpoint("first"))
        (top / "a").write_bytes(os.urandom(2 * MIB))
        done(env.checkpoint("second"))
        left = free(disk)
        (top / "b").write_bytes(os.urandom(9 * MIB))
        answer = refused(env.checkpoint("third"), "host_disk_full", "No space left")
        assert "delete_checkpoint" in answer.hint
        assert str(disk) in answer.hint
        assert free(disk) >= left  # nothing of it stays
        assert [c.id for c in done(env.checkpoints()).checkpoints] == ["first", "second"]

        with (disk / "filler").open("wb", buffering=0) as filler:
            while free(disk):
                filler.write(bytes(min(free(disk), MIB)))
        assert done(env.delete_checkpoint("first")).freed_bytes > 2 * MIB  # makes room without having any
        assert free(disk) > MIB
        (disk / "filler").unlink()
        saved = (top / "a").read_bytes()
        (top / "a").unlink()
        (top / "b").unlink()
        assert done(env.rollback("second")).differs == ()
        assert (top / "a").read_bytes() == saved
        done(env.checkpoint("third"))


def test_files_on_a_full_disk_are_whole_or_not_there(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with LocalEnvironment(tmp_path / "work", limits=Limits(checkpoint_bytes=64 * MIB)) as env:
        (Path(env.workspace) / "a").write_bytes(os.urandom(5 * MIB))
        done(env.checkpoint("a"))
        (disk / "filler").write_bytes(bytes(free(disk) - MIB))
        for answer in (env.save_checkpoint("a", disk / "saved"), env.export_patch(to=disk / "patch")):
            assert not answer.ok
            assert answer.code is ErrorCode.host_disk_full, answer.to_text()
            assert answer.hint
        assert not {"saved", "patch"} & set(os.listdir(disk))
