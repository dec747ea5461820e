"""What an agent's own parts cut is masked before: no mask finds a part of a secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.goals import Goal
from agent.hub import AgentSpec, Hub, Setting, build
from agent.layers.approvals import Answer, ApprovalPolicy, ApprovingEnvironment
from agent.layers.finish_checks import SHOWN_CHARS, Finding, FinishChecks
from agent.record.resume import execute_recorded
from agent.record.store import EventLog
from sandbox import LocalEnvironment
from tests.unit.agent.record.delegating_runs import FINISH, call, delegate, following, spec, tree

SECRET = "s3cr3t" * 20 + '"quoted"'


@pytest.fixture
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        made.secret("TOKEN", SECRET)
        yield made


def texts_of(log: EventLog) -> str:
    return "".join(str(event) for run in log.every_run() for _, event in log.events(run))


@pytest.mark.parametrize("before", [1850, 1900, 1960, 1985])
def test_the_words_of_an_edit(sandbox: LocalEnvironment, before: int) -> None:
    edit = Answer(verdict="edit", args={"command": f"true {'x' * before} {SECRET}"})
    env = ApprovingEnvironment(sandbox, ApprovalPolicy(tools={"run": "always"}), lambda request: edit)
    action = tree(env).actions.get_action("run")
    assert action is not None
    answer = env.execute_action(action, {"command": "true"})
    assert "arguments_edited" in str(answer["notices"])
    assert "s3cr3t" not in str(answer)


@pytest.mark.parametrize("before", [1700, 1850, 1900, 1950])
def test_why_a_delegated_agent_did_not_finish(sandbox: LocalEnvironment, tmp_path: Path, before: int) -> None:
    worker = [ValueError(f"{'x' * before} {SECRET}")]  # of a model, whose words nobody has masked
    with EventLog(tmp_path / "runs.db") as log:
        execute_recorded(tree(sandbox, boss=[delegate("worker", task="x"), FINISH], worker=worker), "go", log)
        assert "did not finish" in texts_of(log)
        assert "s3cr3t" not in texts_of(log)


def test_a_question_that_pauses(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    fields = {"actions": ("ask_user", "finish"), "kit_options": {"ask_user": {"absent": "pause"}}}
    worker = [call("ask_user", question=f"{'x' * 1950} {SECRET}?")]
    with EventLog(tmp_path / "runs.db") as log:
        agent = tree(sandbox, boss=[delegate("worker", task="x"), FINISH], worker=worker, worker_fields=fields)
        run = execute_recorded(agent, "go", log)
        assert run.status == "paused"
        assert "s3cr3t" not in texts_of(log)


def test_what_a_finish_check_tells(sandbox: LocalEnvironment) -> None:
    told = f"{'x' * (SHOWN_CHARS - 60)} {SECRET}"
    env = FinishChecks(sandbox, [lambda environment, args: Finding(False, told)])
    action = tree(env).actions.get_action("finish")
    assert action is not None
    answer = env.execute_action(action, {"summary": "done"})
    assert answer["code"] == "finish_refused"
    assert "s3cr3t" not in str(answer)


def test_what_an_agent_in_circles_is_told(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    steps = [call("run", command=f"false {'x' * 60} {SECRET}")] * 5 + [FINISH]
    one = AgentSpec(name="one", description="One.", goals=(Goal("Do it."),), actions=("run", "finish"), language="structured")
    model: Any = following(steps)(None)  # type: ignore[arg-type]  # it needs no setting
    with EventLog(tmp_path / "runs.db") as log:
        execute_recorded(build(one, Setting(environment=sandbox, hub=Hub([one, spec("two", [])]), brain=model)), "go", log)
        assert "going in circles" in texts_of(log)
        assert "s3cr3t" not in texts_of(log)
