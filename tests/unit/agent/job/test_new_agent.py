"""``gamebox new agent``: the folder it writes works as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.job.new_agent import write_agent
from sandbox.errors import SandboxError

GAMEBOX = (sys.executable, "-c", "from agent.cli.app import main; main()")


def gamebox(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [*GAMEBOX, *args], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", ["dates", "my-dates"])
def test_its_test_passes(tmp_path: Path, name: str) -> None:
    done = gamebox(tmp_path, "new", "agent", name)
    assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in (tmp_path / name).iterdir())
    assert files == sorted([f"{name}.md", "tools.py", f"test_{name.replace('-', '_')}.py"])
    assert sorted(Path(line).name for line in done.stdout.split()) == files
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout


def test_it_runs_by_the_command(tmp_path: Path) -> None:
    write_agent("dates", tmp_path)
    call = {"tool": "days_between", "args": {"first": "2026-02-01", "last": "2026-03-01"}}
    (tmp_path / "script.json").write_text(json.dumps([call, {"tool": "finish", "args": {"summary": "28 days"}}]))
    options = ["--agents", "dates", "--agent", "dates", "--script", "script.json", "--local", "--no-log", "--json"]
    done = gamebox(tmp_path, "agent", "How many days does February 2026 have?", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == {"summary": "28 days"}
    assert "28" in done.stderr


@pytest.mark.exhaustive
def test_a_mistake_in_the_tool_fails_the_test(tmp_path: Path) -> None:
    write_agent("dates", tmp_path)
    tools = tmp_path / "dates/tools.py"
    tools.write_text(tools.read_text().replace("(last - first)", "(first - last)"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "dates"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode == 1


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_it_overwrites_nothing(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "dates"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    done = gamebox(tmp_path, "new", "agent", "dates")
    assert done.returncode == 2
    assert "dates exists already" in done.stderr
    assert not (tmp_path / "nowhere").exists()
    assert kind != "folder" or not list(target.iterdir())
    assert kind != "file" or target.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "1x", "x" * 65, "a.b", "-x"])
def test_a_name_that_no_agent_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(SandboxError, match="cannot be the name of an agent"):
        write_agent(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_name_that_an_agent_has(tmp_path: Path) -> None:
    done = gamebox(tmp_path, "new", "agent", "coding")
    assert done.returncode == 2
    assert "There is an agent 'coding' already (built in)." in done.stderr
    assert not (tmp_path / "coding").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot be made in") as caught:
        write_agent("dates", tmp_path / "missing")
    assert "folder that you can write to" in caught.value.hint


def test_without_a_name_the_hint_leads_to_the_help_of_the_command(tmp_path: Path) -> None:
    assert "See: gamebox new agent --help." in gamebox(tmp_path, "new", "agent").stderr


def test_the_help_has_examples(tmp_path: Path) -> None:
    for args in (("new", "--help"), ("new", "agent", "--help")):
        done = gamebox(tmp_path, *args)
        assert done.returncode == 0
        assert "gamebox new agent dates" in done.stdout
