"""Every agent sends the prompts that were looked at: tests/golden/prompts, renewed by ``make golden``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub import catalogue

from .__main__ import main
from .files import AGENTS, COMMAND, PROMPTS, TOOLS, difference, file_of, pages, strangers
from .normalising import normalised
from .recording import CONDENSING, hub_of_the_product, prompts
from .scripts import POINTS

ROOT = Path(__file__).parents[2]


def test_the_prompts_are_those_that_were_looked_at() -> None:
    diff = difference(pages())
    assert not diff, f"Other prompts are sent. If that is meant: {COMMAND}, and look at the difference.\n{diff}"
    assert not strangers()


def test_every_tool_of_an_agent_and_every_language_of_a_model_is_there() -> None:
    hub = hub_of_the_product()
    tools = json.loads((PROMPTS / TOOLS).read_text(encoding="utf-8"))
    with_model = {name for name in hub.names() if hub.load(name).brain is None}
    assert {agent for entry in tools for agent in entry["agents"]} == with_model
    texts = [json.dumps(entry["tool"], sort_keys=True) for entry in tools]
    assert len(texts) == len(set(texts)), "a tool is stored twice"
    assert {hub.load(agent).language for agent in AGENTS} == set(catalogue.LANGUAGES) - {"structured"}


def test_the_points_are_reached_by_every_agent() -> None:
    for agent in AGENTS:
        text = (PROMPTS / file_of(agent)).read_text(encoding="utf-8")
        assert [point for point in POINTS if f"\n{'=' * 24} {point}\n" in text] == list(POINTS), agent


@pytest.mark.parametrize("name", ["monologue", "swe_agent", "planner", "math", "commit_writer"])
def test_the_late_prompt_of_a_short_memory_does_not_show_how_it_began(name: str) -> None:
    points = prompts(name, hub_of_the_product().load(name).language)
    assert "Now something that goes wrong." in str(points["after_failure"])
    assert "Now something that goes wrong." not in str(points["late"])
    assert (CONDENSING in points) == (name == "monologue")


def test_another_machine_writes_the_same(tmp_path: Path) -> None:
    """Another home with agents of its own, another clock, language and order of sets; no engine."""
    own = tmp_path / "config/gamebox/agents"
    own.mkdir(parents=True)
    (own / "coder.md").write_text("---\nname: coder\ndescription: Mine.\nactions: [run, finish]\n---\nDo it.\n")
    environ = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GAMEBOX_AGENTS": str(own), "TZ": "Pacific/Auckland", "LANG": "C", "PYTHONHASHSEED": "4711", "COLUMNS": "40",
        "DOCKER_HOST": "unix:///nowhere/docker.sock", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", "--check"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_command_says_what_is_another_and_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in PROMPTS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    prompt = tmp_path / "swe_agent.fenced.txt"
    prompt.write_text(prompt.read_text(encoding="utf-8").replace("Send one command at a time", "Send any commands"))
    (tmp_path / "coder.tools.txt").write_text("of yesterday")
    (tmp_path / TOOLS).unlink()
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "-Send any commands" in told
    assert "+Send one command at a time" in told
    assert f"+++ sent/{TOOLS}" in told
    assert "coder.tools.txt belongs to no agent." in told
    assert main(["--folder", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["--check", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSONISH, st.text("0123456789abcdef-:. T", max_size=40))
def test_normalising_hides_nothing_else(value: object, text: str) -> None:
    for said in (
        value,
        text,
        json.dumps({"id": text, "seconds_left": 3, "took": 1.5}),
        f"2026-11-22T01:02:03 {text} took 12 s",
    ):
        if not any(part in str(said) for part in ('"run_id": "', '"seconds": ', "mcp-")):
            assert normalised(said) == said


def test_ids_of_runs_seconds_and_marks_are_hidden_where_they_stand() -> None:
    result = {
        "status": "finished",
        "usage": {"steps": 2, "seconds": 0.123},
        "run_id": "0123456789abcdef",
        "exit_code": 1,
    }
    assert normalised(json.dumps(result)) == (
        '{"status": "finished", "usage": {"steps": 2, "seconds": SECONDS}, "run_id": "RUN", "exit_code": 1}'
    )
    assert normalised(["c1: : mcp-0123456789abcdef exec x", "mcp-server"]) == ["c1: : mcp-MARK exec x", "mcp-server"]
