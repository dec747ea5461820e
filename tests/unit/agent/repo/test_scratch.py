"""The folders jobs work in, and those that a killed job left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.repo.scratch import scratch_folder, sweep

MAKE = """
import os, signal
from agent.repo.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_a_folder_goes_with_its_block(base: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == base
        sweep(base)
        assert folder.is_dir()
    assert not folder.exists()


def test_what_a_killed_job_left_goes_when_the_next_one_starts() -> None:
    done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert (left / "file").exists(), done.stderr
    with scratch_folder():
        assert not left.exists()


def test_a_process_id_that_is_used_again_is_another_process(base: Path) -> None:
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    folder = base / f"gamebox-job-{namespace}-{os.getpid()}-1-abc"
    folder.mkdir()
    sweep(base)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["gamebox-job-1-99999999-1-abc", "gamebox-job-notes", "other"])
def test_what_may_be_anothers_stays(base: Path, name: str) -> None:
    (base / name).mkdir()
    sweep(base)
    assert (base / name).is_dir()


def test_a_link_with_such_a_name_is_not_followed(base: Path) -> None:
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    (base / "kept").mkdir()
    (base / f"gamebox-job-{namespace}-99999999-1-abc").symlink_to(base / "kept")
    sweep(base)
    assert (base / "kept").is_dir()


def test_what_an_agent_left_however_deep_goes(base: Path) -> None:
    """A10: an agent's folder of 1,500 levels ended this run with a RecursionError, and every later one at its start."""
    with scratch_folder() as folder:
        at = os.open(folder, os.O_RDONLY)
        for _ in range(3000):
            os.mkdir("d", dir_fd=at)
            below = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)
        left = folder.with_name(re.sub(r"-\d+-(\w+)$", r"-1-\1", folder.name))  # of a process that is not there any more
        folder.rename(left)
        with scratch_folder():
            assert not left.exists()
    assert not list(base.iterdir())
