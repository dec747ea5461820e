"""``gamebox agent`` in a repository that has something to say: it is told, as the repository's words, unless it is left out."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import ActionRegistry, Agent, FunctionCallingLanguage, Goal, ScriptedModel
from agent.job.skills import teach
from agent.tools import finish_action
from sandbox import DockerEnvironment
from tests.programs import run_gamebox

SKILL = "---\nname: release\ndescription: How to publish.\n---\nRun make release.\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / ".agents/skills/release").mkdir(parents=True)
    (folder / "AGENTS.md").write_text("Use tabs.\n")
    (folder / ".agents/skills/release/SKILL.md").write_text(SKILL)
    return folder


def agent(repo: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.json"
    load = {"tool": "skill", "args": {"name": "release"}}
    script.write_text(json.dumps([load, {"tool": "finish", "args": {"summary": "done"}}]))
    command = [
        "agent",
        "publish it",
        "--agent",
        "coding",
        "--repo",
        str(repo),
        "--script",
        str(script),
        "--local",
        "--json",
        *options,
    ]
    return run_gamebox(*command)


def test_the_command_tells_the_words_of_the_repository(repo: Path, tmp_path: Path) -> None:
    done = agent(repo, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "given to the agent from the repository: AGENTS.md, the skill release" in done.stderr
    loaded = json.loads(done.stdout)["steps"][0]["envelope"]
    assert loaded["result"]["advice_of_the_repository"] == "Run make release."


def test_the_words_can_be_left_out(repo: Path, tmp_path: Path) -> None:
    done = agent(repo, tmp_path, "--no-agents-md")
    assert "from the repository:" not in done.stderr
    assert json.loads(done.stdout)["steps"][0]["envelope"]["code"] == "unknown_tool"


@pytest.mark.engine
def test_in_a_container_no_link_leads_out(docker_env: Callable[..., DockerEnvironment], repo: Path) -> None:
    os.remove(repo / "AGENTS.md")
    env = docker_env(workspace=repo)
    assert env.run("ln -s /etc/passwd AGENTS.md; ln -s / .agents/skills/root").ok
    brain = ScriptedModel(
        [{"tool": "skill", "args": {"name": "release"}}, {"tool": "finish", "args": {"summary": "x"}}]
    )
    made = Agent([Goal("Do it.")], FunctionCallingLanguage(), ActionRegistry([finish_action()]), brain, env)
    words = teach(made)
    assert words.instructions == ()
    assert [skill.name for skill in words.skills] == ["release"]
    assert any(problem.startswith("AGENTS.md: ") for problem in words.problems)
    assert "root:x:0" not in str(words)
    assert made.execute("go").ok
