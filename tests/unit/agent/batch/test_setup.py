"""What a result of a batch is a result of: all that declares the agent, and nothing about where it was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent.batch.setup import digest_of_agent
from agent.core.goals import Goal
from agent.hub import AgentSpec
from agent.hub.files import scan

DIGEST = "fd59b40946109e85"
DECLARATION = """---
name: dates
description: Counts days.
actions: ["tools:days", finish]
---
Count.
"""


def test_the_digest_of_a_declaration_stays_that_of_earlier_releases() -> None:
    """A batch of theirs can be continued; this was written by version 0.1.0."""
    spec = AgentSpec(name="mine", description="Mine.", goals=(Goal(1, "task", "Do it."),), actions=("read", "finish"))
    assert digest_of_agent(spec) == DIGEST
    assert digest_of_agent(replace(spec, source="x", python_folder=Path("/x"), listed=False)) == DIGEST
    assert digest_of_agent(replace(spec, actions=("write", "finish"))) != DIGEST


def written(folder: Path, tool: str) -> AgentSpec:
    folder.mkdir()
    (folder / "dates.md").write_text(DECLARATION)
    (folder / "tools.py").write_text(tool)
    [spec] = scan(folder)
    assert isinstance(spec, AgentSpec), spec
    return spec


def test_python_files_count_by_what_is_in_them_and_not_by_where_they_are(tmp_path: Path) -> None:
    one, same, other = (
        digest_of_agent(written(tmp_path / name, f"def days() -> int:\n    return {number}\n"))
        for name, number in (("one", 1), ("same", 1), ("other", 2))
    )
    assert one == same != other


def test_only_the_python_that_an_agent_may_use_counts(tmp_path: Path) -> None:
    spec = written(tmp_path / "one", "def days() -> int:\n    return 1\n")
    deep = replace(spec, actions=("deep.tools:days", "finish"))
    (tmp_path / "one/deep").mkdir()
    (tmp_path / "one/other").mkdir()
    before = digest_of_agent(spec), digest_of_agent(deep)
    (tmp_path / "one/other/module.py").write_text("other = 1\n")
    assert (digest_of_agent(spec), digest_of_agent(deep)) == before
    (tmp_path / "one/deep/helper.py").write_text("helper = 1\n")
    assert digest_of_agent(spec) == before[0]
    assert digest_of_agent(deep) != before[1]
    (tmp_path / "one/neighbour.py").write_text("neighbour = 1\n")
    assert digest_of_agent(spec) != before[0]
