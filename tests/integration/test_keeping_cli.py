"""gamebox ls, rm, run --keep and run --in, as a person uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import run_gamebox

pytestmark = pytest.mark.engine


def gamebox(*args: str) -> subprocess.CompletedProcess[str]:
    return run_gamebox(*args)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_keep_use_list_remove() -> None:
    name = f"work-{os.getpid()}"
    made = gamebox("run", "--keep", "--name", name, "--", "sh", "-c", "echo hi > x; echo made")
    try:
        assert (made.returncode, made.stdout) == (0, "made\n"), made.stderr
        ident = made.stderr.split("kept: ")[1].split()[0]
        again = gamebox("run", "--keep", "--name", name, "--", "true")
        assert again.returncode == 125
        assert "already" in again.stderr
        assert f"`gamebox run --in {name} -- COMMAND`" in again.stderr
        told = json.loads(gamebox("run", "--in", name, "--json", "--", "true").stdout)
        assert told["sandbox_id"] == ident
        used = gamebox("run", "--in", ident, "--", "cat", "x")
        assert (used.returncode, used.stdout, used.stderr) == (0, "hi\n", ""), "nothing is told again"
        (line,) = [line for line in gamebox("ls").stdout.splitlines() if name in line]
        assert line.startswith(ident)
        assert "detached, 60 min left" in line
        (listed,) = [each for each in json.loads(gamebox("ls", "--json").stdout) if each["name"] == name]
        assert listed["state"] == "detached"
        assert listed["image"] == "gamebox/base"
    finally:
        removed = gamebox("rm", name)
    assert (removed.returncode, removed.stdout.strip()) == (0, ident)
    missing = gamebox("rm", name)
    assert missing.returncode == 2
    assert "sandbox_not_found" in missing.stderr
    gone = gamebox("run", "--in", name, "--", "true")
    assert gone.returncode == 125
    assert "gamebox ls" in gone.stderr


def test_one_of_another_user_of_this_host_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ident = gamebox("run", "--keep", "--", "true").stderr.split("kept: ")[1].split()[0]
    try:
        with monkeypatch.context() as other:
            other.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
            (line,) = [line for line in gamebox("ls").stdout.splitlines() if line.startswith(ident)]
            assert "of another user of this host" in line
            assert "another user of this host" in gamebox("rm", ident).stderr
    finally:
        gamebox("rm", "--force", ident)


def test_one_in_use_is_refused_without_force() -> None:
    source = (
        "from sandbox import DockerEnvironment; import time; env = DockerEnvironment(keep=True).start()\n"
        "print(env.container_id, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        ident = owner.stdout.readline().strip()
        refused = gamebox("rm", ident[:12])
        assert refused.returncode == 2
        assert f"process {owner.pid}" in refused.stderr
        taken = gamebox("run", "--in", ident[:12], "--", "true")
        assert taken.returncode == 125
        assert "sandbox_owned" in taken.stderr
        assert f"`gamebox run --in {ident[:12]} --take-over -- COMMAND`" in taken.stderr
        mine = gamebox("run", "--in", ident[:12], "--take-over", "--", "echo", "mine")
        assert (mine.returncode, mine.stdout) == (0, "mine\n"), mine.stderr
        assert gamebox("rm", "--force", ident[:12]).stdout.strip() == ident[:12]
    finally:
        owner.kill()
        owner.communicate()


def test_detached_ones_are_removed_together_and_wrong_use_is_told() -> None:
    made = [gamebox("run", "--keep", "--", "true").stderr.split("kept: ")[1].split()[0]]
    made.append(json.loads(gamebox("run", "--keep-seconds", "600", "--json", "--", "true").stdout)["sandbox_id"])
    (line,) = [line for line in gamebox("ls").stdout.splitlines() if made[1] in line]
    assert "10 min left" in line
    assert set(made) <= set(gamebox("rm", "--detached").stdout.split())
    for args, word in (
        (["rm"], "--detached"),
        (["run", "--in", "x", "--keep", "--", "true"], "--keep"),
        (["run", "--local", "--keep", "--", "true"], "--local"),
        (["run", "--keep", "--name", "a b", "--", "true"], "'a b'"),
    ):
        done = gamebox(*args)
        assert done.returncode == (125 if args[0] == "run" else 2), args
        assert word in done.stderr
