"""Every status a run can end in, reached with the log on: by the first agent, and by one that it delegates to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Budget, Hooks, Memory
from agent.core.status import RunStatus, StopRun
from agent.hub import AgentSpec, Hub, Setting, build
from agent.hub.agents.dummy.expecting import Expected, ExpectingScript
from agent.record.resume import execute_recorded
from agent.record.store import EventLog, verify_all
from sandbox import LocalEnvironment
from tests.unit.agent.record.delegating_runs import FINISH, PRICE, TASK, call, delegate, following, spec, tree_of

THINK = call("think", thought="x")


class Acting(Hooks):
    """Does something at the second step."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def on_step_start(self, step: Any, memory: Memory) -> None:
        if step.number == 2:
            self.act()


def stopping() -> None:
    raise StopRun("enough", RunStatus.stopped)


def failing() -> None:
    raise RuntimeError("broken hook")


@dataclass(frozen=True)
class Way:
    """How an agent comes to the status. ``above`` is that of an agent which has delegated to it; ``act`` is done at step 2."""

    steps: list[Any]
    above: RunStatus = RunStatus.finished
    budget: Budget = field(default_factory=Budget)
    fields: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Agent, LocalEnvironment], Callable[[], Any]] | None = None


def unexpected(setting: Setting) -> ExpectingScript:
    return ExpectingScript([Expected("think", {"thought": "x"}, {"tool_executed": False})])


class Clock:
    """In place of the module ``time`` of ``agent.core.budget``: it can be moved on."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def move_on(self) -> None:
        self.ahead += 3600.0


CLOCK = Clock()
S = RunStatus
WAYS = {
    S.finished: Way([THINK, FINISH]),
    S.rejected: Way([THINK, call("reject", reason="makes no sense")]),
    S.stopped: Way([THINK, THINK], act=lambda agent, env: stopping),
    S.max_iterations: Way([THINK] * 9, fields={"max_iterations": 3}),
    S.max_seconds: Way([THINK] * 9, S.max_seconds, Budget(max_seconds=600), act=lambda agent, env: CLOCK.move_on),
    S.max_tokens: Way([THINK] * 9, S.max_tokens, Budget(max_tokens=35)),
    S.max_cost: Way([THINK] * 9, S.max_cost, Budget(max_cost_usd=3.5 * PRICE)),
    S.no_valid_action: Way(["no action"] * 9),
    S.unexpected: Way([THINK], fields={"brain": unexpected}),
    S.paused: Way(
        [call("ask_user", question="which?")], S.paused,
        fields={"actions": ("ask_user", "finish"), "kit_options": {"ask_user": {"absent": "pause"}}},
    ),
    S.stuck: Way([call("run", command="false")] * 20, fields={"brain": None}),
    S.cancelled: Way([THINK] * 3, S.cancelled, act=lambda agent, env: agent.cancel),
    S.model_failed: Way([THINK, ValueError("no such model")]),
    S.environment_lost: Way([THINK, call("run", command="true")], S.environment_lost, act=lambda agent, env: env.close),
    S.failed: Way([THINK, THINK], act=lambda agent, env: failing),
}  # fmt: skip


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "ahead", 0.0)
    monkeypatch.setattr("agent.core.budget.time", CLOCK)


@pytest.fixture
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "runs.db") as made:
        yield made


def test_there_is_a_way_to_each() -> None:
    assert set(WAYS) == set(RunStatus)


def agent_of(way: Way, name: str) -> AgentSpec:
    given = {"actions": ("run", "think", "finish", "reject"), **way.fields}
    made = spec(name, way.steps, **{k: v for k, v in given.items() if k != "brain"}, inputs=TASK)
    brain: dict[str, Any] = {"brain": given["brain"]} if "brain" in given else {}
    return replace(made, **brain)


def executed(log: EventLog, agent: Agent, status: RunStatus, at_top: bool) -> RunStatus:
    if status is RunStatus.failed and at_top:
        with pytest.raises(RuntimeError):
            execute_recorded(agent, "go", log, run="r")
        assert agent.last_run is not None
        return agent.last_run.status
    return execute_recorded(agent, "go", log, run="r").status


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", list(RunStatus))
def test_by_the_first_agent(log: EventLog, sandbox: LocalEnvironment, status: RunStatus) -> None:
    way = WAYS[status]
    one = agent_of(way, "one")

    def built(agent: Agent, setting: Setting) -> None:
        if way.act is not None:
            agent.hooks.append(Acting(way.act(agent, sandbox)))

    model = following(way.steps)(None)  # type: ignore[arg-type]  # it needs no setting
    setting = Setting(
        environment=sandbox, hub=Hub([one]), budget=way.budget, on_built=built, inputs={"task": "x"}, brain=model
    )
    assert executed(log, build(one, setting), status, at_top=True) is status
    (record,) = tree_of(log, "r")
    assert record.status == status
    assert record.reason
    assert all(verdict.intact and verdict.ended for verdict in verify_all(log))


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", list(RunStatus))
def test_by_an_agent_that_is_delegated_to(log: EventLog, sandbox: LocalEnvironment, status: RunStatus) -> None:
    """The one above is told which, or ends with it."""
    way = WAYS[status]
    first = spec("boss", [delegate("one", task="x"), FINISH])
    agents: list[Agent] = []

    def built(agent: Agent, setting: Setting) -> None:
        agents.append(agent)
        if way.act is not None and setting.depth == 1:
            agent.hooks.append(Acting(way.act(agents[0], sandbox)))

    model = following(way.steps)(None)  # type: ignore[arg-type]  # it needs no setting
    hub = Hub([first, agent_of(way, "one")])
    agent = build(first, Setting(environment=sandbox, hub=hub, budget=way.budget, on_built=built, brain=model))
    assert executed(log, agent, status, at_top=False) is way.above
    above, below = tree_of(log, "r")
    assert (above.status, below.status) == (way.above, status)
    assert all(verdict.intact and verdict.ended for verdict in verify_all(log))
    told = above.steps[0].envelope
    if status in (RunStatus.paused, RunStatus.environment_lost):
        assert told is None, "it is found out when the run is resumed"
    elif status is RunStatus.failed:
        assert told is not None
        assert (told["code"], "broken hook" in told["error"]) == ("tool_error", True)
    else:
        assert told is not None
        assert told["result"]["status"] == status
