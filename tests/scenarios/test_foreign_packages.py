"""Our formats judged by what they are of: Harbor's models (their schema; themselves where Python is new enough for them), an agent
of mini-swe-agent on the same script, its inspector; and an example that is an agent made with LangChain.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agent import Agent, Budget, FunctionCallingLanguage, Goal, ScriptedModel, standard_registry
from agent.core.budget import Usage
from agent.record.store import RunRecord, StepRecord
from agent.views.trajectory.atif import atif
from agent.views.trajectory.mini import mini
from agent.views.trajectory.run_file import of_run
from sandbox import LocalEnvironment

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ENVELOPE: dict[str, Any] = {"tool_executed": True, "result": {"output": "hi\n", "exit_code": 0}, "notices": []}
CHILD = RunRecord(run="c", parent="r", task="a part", agent="coder", status="finished")
RUN = RunRecord(
    run="r",
    task="all of it",
    agent="manager",
    options={"model": "provider/name"},
    began="2026-01-01T00:00:00.000+00:00",
    status="finished",
    result={"summary": "done"},
    usage=Usage(calls=2, input_tokens=9, output_tokens=3, cost_usd=0.5),
    steps=[
        StepRecord.of(
            1, thought="hm", tool="run", args={"command": "echo hi"}, envelope=ENVELOPE, usage=Usage(calls=1)
        ),
        StepRecord.of(
            2, tool="delegate", args={"agent": "coder"}, envelope={**ENVELOPE, "result": {"status": "finished"}}
        ),
        StepRecord.of(
            3,
            thought="text only",
            envelope={"tool_executed": False, "code": "unparsable_response", "error": "?"},
        ),
        StepRecord.of(4, tool="run", args=None, usage=Usage()),
    ],
    subruns=[CHILD],
)


SCHEMA = Path(__file__).parent / "formats" / "atif.harbor-0.25.0.schema.json"


def test_a_trajectory_fits_the_schema_that_harbors_models_make() -> None:
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(atif(RUN, "1"))


def test_harbor_takes_a_trajectory() -> None:
    """Where Harbor is installed: it needs Python 3.12, and much that this product does not."""
    models = pytest.importorskip("harbor.models.trajectories", exc_type=ImportError)
    read = models.Trajectory.model_validate(atif(RUN, "1"))
    assert read.steps[2].observation.results[0].subagent_trajectory_ref[0].trajectory_id == "r/1"
    assert read.subagent_trajectories[0].agent.name == "coder"


@pytest.fixture(scope="module")
def minisweagent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package, without its greeting, and with a folder of settings that is none of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSWEA_SILENT_STARTUP", "1")
        patch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path_factory.mktemp("mini")))
        return importlib.import_module("minisweagent")


COMMANDS = (
    "echo hi; echo err >&2",
    "exit 3",
    "printf '%s' '<a> & \u2028 ü'",
    "kill -9 $$",
    "yes | head -c 30000",
    "no-such-program-at-all",
)
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo all of it"


def theirs(workspace: Path) -> dict[str, Any]:
    """What an agent of mini-swe-agent, on the commands, writes as its trajectory."""
    agents = importlib.import_module("minisweagent.agents.default")
    models = importlib.import_module("minisweagent.models.test_models")
    local = importlib.import_module("minisweagent.environments.local")
    package = Path(importlib.import_module("minisweagent").__file__ or "").parent
    config = yaml.safe_load((package / "config" / "mini.yaml").read_text())["model"]
    outputs = []
    for number, command in enumerate([*COMMANDS, DONE], 1):
        call = {"id": f"call_{number}", "type": "function"}
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        actions = [{"command": command, "tool_call_id": f"call_{number}"}]
        outputs.append(models.make_toolcall_output("next", [{**call, "function": function}], actions))
    model = models.DeterministicToolcallModel(outputs=outputs, observation_template=config["observation_template"])
    environment = local.LocalEnvironment(cwd=str(workspace))
    made = agents.DefaultAgent(model, environment, system_template="s", instance_template="{{task}}", cost_limit=0)
    made.run("do it")
    return dict(made.serialize())


def ours(workspace: Path) -> dict[str, Any]:
    """The same of our agent, exported."""
    script = [{"thought": "next", "tool": "run", "args": {"command": command, "session": None}} for command in COMMANDS]
    finish = {"thought": "next", "tool": "finish", "args": {"summary": "all of it\n"}}
    with LocalEnvironment(workspace=workspace) as environment:
        brain = ScriptedModel([*script, finish])
        agent = Agent([Goal("g")], FunctionCallingLanguage(), standard_registry(), brain, environment, budget=Budget())
        return mini(of_run(agent.execute("do it"), task="do it", agent="tester"), "1")


def test_the_same_commands_are_told_as_mini_swe_agent_tells_them(minisweagent: Any, tmp_path: Path) -> None:
    one, other = theirs(tmp_path), ours(tmp_path)
    assert other["trajectory_format"] == one["trajectory_format"]
    assert set(one["info"]) >= set(other["info"])
    assert other["info"]["exit_status"] == one["info"]["exit_status"] == "Submitted"
    assert other["info"]["submission"] == one["info"]["submission"] == "all of it\n"
    assert one["messages"][0]["role"] == "system"  # which our log has not
    assert other["messages"][0] == one["messages"][1] == {"role": "user", "content": "do it"}
    answers = [[m for m in each["messages"] if m["role"] == "tool"][: len(COMMANDS)] for each in (one, other)]
    decisions = [[m for m in each["messages"] if m["role"] == "assistant"][: len(COMMANDS)] for each in (one, other)]
    for their, our in zip(*decisions, strict=True):
        assert set(our) == set(their)
        assert our["extra"]["actions"] == their["extra"]["actions"]
        assert our["tool_calls"][0]["id"] == their["tool_calls"][0]["id"]
        assert our["tool_calls"][0]["function"]["name"] == "bash"
    for their, our in zip(*answers, strict=True):
        assert set(our) == set(their)
        assert {k: v for k, v in our["extra"].items() if k != "timestamp"} == {
            k: v.replace("/bin/sh: 1:", "bash: line 1:").replace(": not found", ": command not found")
            if k == "raw_output"
            else v
            for k, v in their["extra"].items()
            if k != "timestamp"
        }
        if "not found" not in our["content"]:
            assert json.loads(our["content"]) == json.loads(their["content"])
    last = [each["messages"][-1] for each in (one, other)]
    assert (last[1]["role"], last[1]["content"]) == (last[0]["role"], last[0]["content"])


def test_what_mini_swe_agent_has_no_place_for_is_not_made_up(minisweagent: Any) -> None:
    inspector = importlib.import_module("minisweagent.run.utilities.inspector")
    content = importlib.import_module("minisweagent.models.utils.content_string")
    data = mini(RUN, "1")
    steps = inspector._messages_to_steps(data["messages"])
    assert len(steps) == len(RUN.steps)  # the task, and the steps but for the reply that held no action
    assert "echo hi" in content.get_content_string(steps[1][0])
    assert "system" not in {message["role"] for message in data["messages"]}
    delegated, unread, cut = data["messages"][3], data["messages"][5], data["messages"][6]
    assert (delegated["tool_calls"][0]["function"]["name"], delegated["extra"]["actions"]) == ("delegate", [])
    assert (unread["role"], unread["extra"]["interrupt_type"], unread["extra"]["response"]) == (
        "user",
        "FormatError",
        "text only",
    )
    assert cut["role"] == "assistant"
    assert "exit code" not in json.dumps(data)
    paused = mini(replace(RUN, status="paused"), "1")
    assert (paused["messages"][-1]["role"], paused["info"]["exit_status"]) == ("assistant", "")
    stopped = mini(replace(RUN, status="max_cost"), "1")
    assert stopped["messages"][-1]["content"] == "LimitsExceeded"
    assert stopped["info"]["submission"] == ""


def test_an_agent_made_with_langchain() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "langchain_agent.py")],
        capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2].endswith("{'answer': '55'}")
