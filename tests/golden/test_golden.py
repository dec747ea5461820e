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
from .files import COMMAND, PROMPTS, Case, cases, difference, pages_of, strangers
from .normalising import normalised
from .recording import CONDENSING, hub_of_the_product, prompts
from .scripts import POINTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_prompts_are_those_that_were_looked_at(case: Case) -> None:
    told = difference(pages_of(case))
    assert not told, f"{case} sends other prompts. If that is meant: {COMMAND}, and look at the difference.\n{told}"


def test_every_agent_and_every_language_is_there_and_nothing_else() -> None:
    files = {path.name.removesuffix(".txt") for path in PROMPTS.glob("*.txt")}
    assert {name.partition(".")[0] for name in files} == set(hub_of_the_product().names())
    assert {name.partition(".")[2] for name in files} == set(catalogue.LANGUAGES)
    assert not strangers()


def test_the_points_are_reached_by_every_agent_that_asks_a_model() -> None:
    hub = hub_of_the_product()
    for case in cases():
        if hub.load(case.agent).brain is None:
            text = (PROMPTS / f"{case}.txt").read_text(encoding="utf-8")
            assert [point for point in POINTS if f"\n{'=' * 24} {point}\n" in text] == list(POINTS), case


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
    prompt = tmp_path / "mini.fenced.txt"
    prompt.write_text(prompt.read_text(encoding="utf-8").replace("One command in a reply", "Any commands in a reply"))
    (tmp_path / "coder.tools.txt").write_text("of yesterday")
    (tmp_path / "math.function_calling.tools.json").unlink()
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "-1. Any commands in a reply" in told
    assert "+1. One command in a reply" in told
    assert "+++ sent/math.function_calling.tools.json" in told
    assert "coder.tools.txt is the prompt of no agent." in told
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
    for said in (value, text, json.dumps({"id": text, "seconds_left": 3, "took": 1.5}), f"2026-11-22T01:02:03 {text} took 12 s"):
        if not any(part in str(said) for part in ('"run_id": "', '"seconds": ', "mcp-")):
            assert normalised(said) == said


def test_ids_of_runs_seconds_and_marks_are_hidden_where_they_stand() -> None:
    result = {"status": "finished", "usage": {"steps": 2, "seconds": 0.123}, "run_id": "0123456789abcdef", "exit_code": 1}
    assert normalised(json.dumps(result)) == (
        '{"status": "finished", "usage": {"steps": 2, "seconds": SECONDS}, "run_id": "RUN", "exit_code": 1}'
    )
    assert normalised(["c1: : mcp-0123456789abcdef exec x", "mcp-server"]) == ["c1: : mcp-MARK exec x", "mcp-server"]
