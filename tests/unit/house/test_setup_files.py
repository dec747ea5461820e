"""The files a fresh clone is set up from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


PROJECT_PART = r"/^\[project\]/,/^\[dependency-groups\]/p"


def normal(name: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", name)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found.group(0)).lower()


def test_the_lock_names_no_index() -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links|\s@\s", LOCK)


def test_everything_locked_has_hashes() -> None:
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())
    assert len(entries) > 30
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==\S+", entry)
        assert "--hash=sha256:" in entry


def test_everything_declared_is_locked() -> None:
    locked = {normal(name) for name in re.findall(r"^([a-z0-9.-]+)==", LOCK, re.MULTILINE)}
    declared = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    assert {normal(name) for name in declared} <= locked


def clone(tmp_path: Path) -> Path:
    """As much of a clone as the virtual environment is made from."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/venv", "requirements.lock", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_venv(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / ".ci/venv"], env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False
    )


def test_without_a_python_there_is_one_sentence_and_what_to_do(tmp_path: Path) -> None:
    done = run_venv(clone(tmp_path), PYTHON="/nowhere/python3")
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_set_up_clone_is_left_alone(tmp_path: Path) -> None:
    folder = clone(tmp_path)
    program = folder / ".venv/bin/gamebox"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    digest = subprocess.run(
        f"{{ pwd; cat requirements.lock; sed -n '{PROJECT_PART}' pyproject.toml; }} | sha256sum",
        cwd=folder, shell=True, capture_output=True, text=True, check=True,
    ).stdout.split()[0]  # fmt: skip
    (folder / ".venv/gamebox.stamp").write_text(digest + "\n")
    done = run_venv(folder, PYTHON="/nowhere/python3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (folder / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    assert run_venv(folder, PYTHON="/nowhere/python3").returncode == 1


def test_a_virtual_environment_is_known_by_its_folder_whatever_that_is_called(tmp_path: Path) -> None:
    (tmp_path / "c++ [x] a.b*").mkdir()
    folder = clone(tmp_path / "c++ [x] a.b*")
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")  # has pip, and all it is told to install
    python.chmod(0o755)
    (folder / ".venv/bin/activate").write_text(f"VIRTUAL_ENV='{folder}/.venv'\n")
    done = run_venv(folder, PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (0, "installing what requirements.lock says into .venv\n"), done.stderr


def test_make_help_lists_every_documented_target() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {f"make {target}" for target in ("help", "setup", "demo", "check", "test", "lock")} <= {
        " ".join(line.split()[:2]) for line in said.splitlines()
    }
