"""What a user prints is one short line, however long a run was (UX 8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, AgentRun, FunctionCallingLanguage, Goal, Memory, ScriptedModel, Usage, standard_registry
from agent.core.loop.hooks import Step
from agent.core.status import RunStatus
from agent.record.resume import execute_recorded
from agent.record.store import EventLog, record_of
from agent.views.trajectory.run_lookup import find
from sandbox import LocalEnvironment


def test_ux8_what_a_run_leaves_prints_in_a_line_each(tmp_path: Path) -> None:
    script: list[Any] = [{"tool": "run", "args": {"command": "echo " + "x" * 5000}}, "nothing to be read", {"tool": "finish"}]
    with LocalEnvironment(track_changes=False) as sandbox, EventLog(tmp_path / "runs.db") as log:
        agent = Agent([Goal("g")], FunctionCallingLanguage(), standard_registry(), ScriptedModel(script), sandbox)
        run = execute_recorded(agent, "do it " * 1000, log, run="r")
        record = record_of(log, "r")
    stored = find("r", tmp_path / "runs.db")
    for value in (run, *run.steps, agent, run.memory, record, *record.steps, stored, *stored.steps):
        text = repr(value)
        assert text == str(value) == f"{value}"
        assert len(text) < 120
        assert "\n" not in text
    assert repr(run).startswith(f"AgentRun({run.status}, {len(run.steps)} steps, ")
    assert repr(run.steps[0]).startswith("Step(1, run, ok, ")
    assert repr(run.steps[1]).startswith("Step(2, no action, unparsable_response, ")
    assert repr(agent).startswith("Agent(FunctionCallingLanguage, ")
    assert repr(record).startswith("RunRecord(r, ")


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (Usage(), "AgentRun(finished, 1 step, 16.7 s)"),
        (Usage(calls=1, unpriced_calls=1), "AgentRun(finished, 1 step, 16.7 s, cost unknown)"),
        (Usage(calls=2, cost_usd=0.0123), "AgentRun(finished, 1 step, 16.7 s, $0.0123)"),
    ],
)
def test_ux8_a_run_says_what_it_cost(usage: Usage, words: str) -> None:
    run = AgentRun(status=RunStatus.finished, reason="done", memory=Memory(), steps=(Step(1),), seconds=16.71)
    assert repr(replace(run, usage=usage)) == words


def test_ux8_the_name_of_a_tool_cannot_break_the_line() -> None:
    assert repr(Step(1, tool="run\n\x1b[2K" + "x" * 500)).startswith("Step(1, run\\n\\x1b[2Kxxx")
    assert len(repr(Step(1, tool="\n" * 500, envelope={"code": "x" * 500}))) < 260
