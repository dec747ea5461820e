"""Dependencies are installed once for the content of their files, kept as an image, and never served to other content."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import Limits, PackageCache, SandboxError
from sandbox.docker.local_images.setups import list_setups, remove_setup, set_up
from sandbox.errors import ErrorCode
from tests.programs import run_gamebox
from tests.servers.packages import python_index
from tests.servers.upstream import Upstream

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=512 << 20)
INSTALL = "pip install -q --target .venv -r requirements.txt && echo made > ~/made"
SCRIPT = [
    {"tool": "run", "args": {"command": "PYTHONPATH=.venv python3 main.py; cat ~/made; git status --short; echo new > new.txt"}},
    {"tool": "finish", "args": {"summary": "done"}},
]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as made:
        pages, files = python_index(["mdurl"], made.url)
        made.files = {**pages, **files}
        yield made


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Path]:
    """A repository whose set-ups are its own: no other run of these tests has the same content."""
    before = {name for each in list_setups() for name in each.names}
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "requirements.txt").write_text(f"# {uuid.uuid4()}\nmdurl\n")
    (folder / "main.py").write_text("import mdurl; print('here', mdurl.__name__)\n")
    yield folder
    mine = {each for made in list_setups() for each in made.names} - before
    for name in mine & KNOWN:
        remove_setup(name)


KNOWN: set[str] = set()


def test_a_set_up_is_made_once_and_found_again(repo: Path, upstream: Upstream, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PIP_INDEX_URL": f"{upstream.url}/simple",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    asked = ["agent", "x", "--repo", str(repo), "--script", str(script), "--image", "gamebox/base", "--setup", INSTALL]
    cache = PackageCache(tmp_path / "cache" / "gamebox" / "packages", pypi=f"{upstream.url}/simple/", npm="")
    first = run_gamebox(*asked, env=environment, timeout=300)
    assert first.returncode == 0, first.stderr
    assert "here mdurl" in first.stderr
    assert "made" in first.stderr
    assert "??" not in first.stderr
    assert "not part of the changes: .venv" in first.stderr
    assert [line for line in first.stdout.splitlines() if line.startswith("diff")] == ["diff --git a/new.txt b/new.txt"]
    upstream.stop()
    (repo / "main.py").write_text("import mdurl; print('again', mdurl.__name__)\n")
    found = set_up(INSTALL, repo, image="gamebox/base", cache=cache, limits=SMALL)
    KNOWN.add(found.name)
    assert found.cached
    again = ["--workspace", str(repo), "--setup", INSTALL, "-e", "PYTHONPATH=.venv", "--", "python3", "main.py"]
    second = run_gamebox("run", *again, env=environment, timeout=300)
    assert (second.returncode, second.stdout) == (0, "again mdurl\n"), second.stderr
    check_batch(repo, script, environment)
    check_resumed(asked, environment)
    (listed,) = [each for each in list_setups() if found.name in each.names]
    assert dict(listed.labels)["setup.command"] == INSTALL
    assert run_gamebox("setups", "rm", found.name, env=environment, timeout=100).stdout == f"{found.name}\n"
    assert found.name not in {name for each in list_setups() for name in each.names}


def check_batch(repo: Path, script: Path, environment: dict[str, str]) -> None:
    """A batch starts its tasks from the set-up, and with what the devcontainer.json of their repository says."""
    (repo / ".devcontainer.json").write_text('{"image": "gamebox/base", "containerEnv": {"PYTHONPATH": ".venv"}}')
    task = {"id": "one", "task": "x", "repo": str(repo), "checks": ["test $PYTHONPATH = .venv && python3 main.py"]}
    tasks, out = repo.parent / "tasks.jsonl", repo.parent / "out"
    tasks.write_text(json.dumps(task))
    asked = ["batch", str(tasks), "--script", str(script), "--devcontainer", "--packages", "-o", str(out)]
    done = run_gamebox(*asked, "--setup", INSTALL, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((out / "one/result.json").read_text())["rewards"] == {"reward": 1.0}, done.stderr
    (repo / ".devcontainer.json").unlink()


def check_resumed(asked: list[str], environment: dict[str, str]) -> None:
    """A run whose sandbox is gone goes on in a new one, which has what was set up."""
    stopped = run_gamebox(*asked, "--max-iterations", "1", env=environment, timeout=300)
    assert "max_iterations" in stopped.stderr, stopped.stderr
    resumed = run_gamebox("runs", "resume", "last", "--fresh", "--max-iterations", "5", env=environment, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert "not part of the changes: .venv" in resumed.stderr


def test_other_content_is_another_set_up_and_a_failure_is_none(repo: Path, upstream: Upstream, tmp_path: Path) -> None:
    cache = PackageCache(tmp_path / "packages", pypi=f"{upstream.url}/simple/", npm="")

    def made(command: str) -> str:
        found = set_up(command, repo, image="gamebox/base", cache=cache, limits=SMALL)
        KNOWN.add(found.name)
        assert not found.cached
        return found.image

    evil = "cat requirements.txt > ~/seen; ls -A > ~/files"
    images = {made(evil)}
    (repo / "requirements.txt").write_text((repo / "requirements.txt").read_text() + "# other\n")
    images.add(made(evil))
    assert len(images) == 2
    with pytest.raises(SandboxError) as caught:
        set_up("echo one; echo two >&2; ls main.py", repo, image="gamebox/base", cache=cache, limits=SMALL)
    error = caught.value
    assert error.code is ErrorCode.image_build_failed
    assert "ended with exit status 2" in error.message
    assert "two" in error.message
    assert "Nothing was kept" in error.hint
    assert not [each for each in list_setups() if "echo one" in dict(each.labels).get("setup.command", "")]
