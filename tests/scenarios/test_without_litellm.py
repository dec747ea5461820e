"""The sandbox, and all commands that ask no model, work where litellm cannot be imported (finding UX 11)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GAMEBOX = str(Path(sys.executable).with_name("gamebox"))
USE = "from sandbox import {kind}\nwith {kind}() as env:\n    print(env.sh('echo from-the-sandbox').stdout)\n"


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in whose Python ``import litellm`` fails as it does where that is not installed."""
    blocker = tmp_path / "blocked"
    blocker.mkdir(exist_ok=True)
    (blocker / "litellm.py").write_text('raise ModuleNotFoundError("No module named \'litellm\'", name="litellm")\n')
    environ = {**os.environ, "PYTHONPATH": str(blocker), "XDG_STATE_HOME": str(tmp_path), "OPENAI_API_KEY": "sk-test"}
    return subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


def test_local_environments_and_commands_work(tmp_path: Path) -> None:
    assert "from-the-sandbox" in run(tmp_path, sys.executable, "-c", USE.format(kind="LocalEnvironment")).stdout
    assert run(tmp_path, GAMEBOX, "--help").returncode == 0
    assert run(tmp_path, GAMEBOX, "hub", "ls").returncode == 0
    done = run(tmp_path, GAMEBOX, "run", "--local", "--", "echo", "hi")
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr


@pytest.mark.engine
def test_containers_work(tmp_path: Path) -> None:
    assert "from-the-sandbox" in run(tmp_path, sys.executable, "-c", USE.format(kind="DockerEnvironment")).stdout
    done = run(tmp_path, GAMEBOX, "run", "--", "echo", "hi")
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr


def test_an_agent_with_a_model_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, GAMEBOX, "agent", "say hello", "--agent", "math", "--model", "openai/gpt-4.1", "--local")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "litellm, which cannot be imported here: No module named 'litellm'" in done.stderr
    assert f"Run: {sys.executable} -m pip install litellm" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
