"""The layers of one run: what replaces them, what stays around them, and what is recorded of them."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest

from agent import Action, ActionRegistry, Agent, Environment, FunctionCallingLanguage, Goal, ScriptedModel
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from agent.layers.approvals import ApprovalPolicy, ApprovingEnvironment
from agent.record.resume import begin, execute_recorded, resume
from agent.record.store import EventLog, record_of
from agent.tools import finish_action, think_action
from tests.unit.agent.core.loop.every_driver import Driver, under_every_driver

FINISH = {"tool": "finish", "args": {"summary": "done"}}
THINK = {"tool": "think", "args": {"thought": "hm"}}


def agent_of(replies: list[Any], *more: Action, environment: Environment | None = None, **options: Any) -> Agent:
    registry = ActionRegistry([think_action(), finish_action(), *more])
    return Agent([Goal("g")], FunctionCallingLanguage(), registry, ScriptedModel(replies), environment or Environment(), **options)


@under_every_driver
@pytest.mark.parametrize("layers", [None, ()])
def test_layers_of_a_run_never_replace_those_of_the_environment(drive: Driver, layers: Any) -> None:
    done: list[int] = []

    def danger(number: int) -> None:
        """Do something dangerous."""
        done.append(number)

    environment = ApprovingEnvironment(Environment(), ApprovalPolicy(default="always", tools={"finish": "never"}))
    call = {"tool": "danger", "args": {"number": 1}}
    run = drive(agent_of([call, FINISH], Action.of(danger), environment=environment), layers)
    assert ((run.steps[0].envelope or {}).get("code"), done) == ("approval_refused", [])


@under_every_driver
def test_a_run_with_layers_of_its_own_is_recorded(drive: Driver, tmp_path: Path) -> None:
    agent = agent_of([FINISH])
    with EventLog(tmp_path / "runs.db") as log, log.begin("r") as writer:
        begin(agent, writer, "t")
        assert drive(agent, ()).ok
        assert record_of(log, "r").status == "finished"


class Counting(Layer):
    """Counts the calls of one run."""

    state_name = "counting"

    def __init__(self) -> None:
        self.count = 0

    def for_run(self, agent: Any) -> Layer:
        return copy(self)

    def around_do(self, call: Call) -> Flow:
        self.count += 1
        return (yield call)

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: Any) -> None:
        self.count = int(state)


def test_the_state_of_a_layer_of_one_run_is_recorded_and_restored(tmp_path: Path) -> None:
    standing = Counting()
    with EventLog(tmp_path / "runs.db") as log:
        assert not execute_recorded(agent_of([THINK, THINK], layers=[standing]), "t", log, run="r").ok
        assert record_of(log, "r").kits == {"counting": 2}
        with log.begin("r") as writer:
            assert resume(agent_of([FINISH], layers=[standing]), writer).ok
        assert record_of(log, "r").kits == {"counting": 3}
    assert standing.count == 0
