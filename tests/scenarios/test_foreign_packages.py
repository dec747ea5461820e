"""Our formats judged by the packages they are of, and an agent made with one: run only where these are installed, see docs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.budget import Usage
from agent.trajectory import RecordedRun, RecordedStep
from agent.trajectory.atif import atif
from agent.trajectory.mini import mini

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ENVELOPE: dict[str, Any] = {"tool_executed": True, "result": {"output": "hi\n", "exit_code": 0}, "notices": []}
CHILD = RecordedRun(run="c", parent="r", task="a part", agent="coder", status="finished")
RUN = RecordedRun(
    run="r",
    task="all of it",
    agent="manager",
    model="provider/name",
    began="2026-01-01T00:00:00.000+00:00",
    status="finished",
    result={"summary": "done"},
    usage=Usage(calls=2, input_tokens=9, output_tokens=3, cost_usd=0.5),
    steps=(
        RecordedStep(
            number=1, thought="hm", tool="run", args={"command": "echo hi"}, envelope=ENVELOPE, usage=Usage(calls=1)
        ),
        RecordedStep(
            number=2, tool="delegate", args={"agent": "coder"}, envelope={**ENVELOPE, "result": {"status": "finished"}}
        ),
        RecordedStep(
            number=3,
            thought="text only",
            envelope={"tool_executed": False, "code": "unparsable_response", "error": "?"},
        ),
        RecordedStep(number=4, tool="run", args=None, usage=Usage()),
    ),
    children=(CHILD,),
)


def test_harbor_takes_a_trajectory() -> None:
    models = pytest.importorskip("harbor.models.trajectories", exc_type=ImportError)
    read = models.Trajectory.model_validate(atif(RUN, "1"))
    assert read.steps[2].observation.results[0].subagent_trajectory_ref[0].trajectory_id == "r/1"
    assert read.subagent_trajectories[0].agent.name == "coder"


def test_the_inspector_of_mini_swe_agent_takes_a_trajectory() -> None:
    inspector = pytest.importorskip("minisweagent.run.utilities.inspector", exc_type=ImportError)
    content = pytest.importorskip("minisweagent.models.utils.content_string")
    data = mini(RUN, "1")
    steps = inspector._messages_to_steps(data["messages"])
    assert len(steps) == 1 + len(RUN.steps)
    assert "echo hi" in content.get_content_string(steps[1][0])


def test_an_agent_made_with_langchain() -> None:
    pytest.importorskip("langchain_core", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "langchain_agent.py")],
        capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2].endswith("{'answer': '55'}")
