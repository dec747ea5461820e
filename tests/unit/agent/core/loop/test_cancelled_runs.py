"""Cancelling ``arun``: nothing goes on behind it, all parts learn of it, and what was done is known."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    AgentRun,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    Memory,
    Response,
    ScriptedModel,
    ToolCall,
)
from agent.core.agent import _Parts
from agent.core.budget import Meter
from agent.core.kits import Kit
from agent.core.loop.drivers import conduct
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from agent.core.run import Progress
from agent.layers.approvals import Answer, ApprovalPolicy, ApprovalRequest, Approvals
from agent.record.resume import begin, resume
from agent.record.store import EventLog, record_of
from agent.tools import SandboxAction, finish_action, think_action

FINISH = {"tool": "finish", "args": {"summary": "done"}}
THINK = {"tool": "think", "args": {"thought": "hm"}}


def agent_of(replies: list[Any], *more: Action, environment: Environment | None = None, **options: Any) -> Agent:
    registry = ActionRegistry([think_action(), finish_action(), *more])
    return Agent([Goal("g")], FunctionCallingLanguage(), registry, ScriptedModel(replies), environment or Environment(), **options)


def reply(*calls: tuple[str, Mapping[str, Any]]) -> Response:
    return Response("", tuple(ToolCall(name, json.dumps(args), f"c{n}") for n, (name, args) in enumerate(calls)))


def cancelled(agent: Agent, began: threading.Event) -> AgentRun:
    """The run of ``agent``, cancelled when ``began`` is set; it has ended when ``arun`` has."""

    async def main() -> AgentRun | None:
        task = asyncio.create_task(agent.arun("t"))
        await asyncio.to_thread(began.wait, 10)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError):
            await task
        return agent.last_run

    run = asyncio.run(main())
    gc.collect()
    assert run is not None
    assert agent.last_run is run
    return run


class Slow(Layer):
    """Takes its time in one method, as an approval or a check of a finish does."""

    def __init__(self, method: str) -> None:
        self.method, self.began = method, threading.Event()
        self.ends: list[tuple[str, str]] = []

    def _in(self, method: str) -> None:
        if method == self.method:
            self.began.set()
            time.sleep(0.2)

    def before_step(self, step: Any, memory: Any) -> None:
        self._in("before_step")

    def around_do(self, call: Call) -> Flow:
        self._in("around_do")
        return (yield call)

    def after_run(self, run: AgentRun) -> None:
        self.ends.append((run.status.value, run.reason))


@pytest.mark.parametrize("method", ["before_step", "around_do"])
def test_a_run_that_is_cancelled_within_a_layer_has_ended(method: str) -> None:
    layer = Slow(method)
    cancelled(agent_of([THINK] * 50, layers=[layer]), layer.began)
    assert layer.ends == [("cancelled", "The run was cancelled.")]


def test_calls_side_by_side_all_come_back_first() -> None:
    began = threading.Event()
    done: list[str] = []

    class Place(Environment):
        def execute_action(self, action: Any, args: Mapping[str, Any] | None) -> dict[str, Any]:
            began.set()
            path = (args or {})["path"]
            time.sleep(0.1 if path == "a" else 0.4)
            done.append(path)
            return {"tool_executed": True, "result": path, "notices": []}

    replies = [reply(("read", {"path": "a"}), ("read", {"path": "b"}))]
    cancelled(agent_of(replies, SandboxAction("read"), environment=Place()), began)
    assert done == ["a", "b"]


def test_kits_are_cancelled_at_once() -> None:
    class Waiting(Kit):
        name = "waiting"

        def __init__(self) -> None:
            self.began, self.stopped = threading.Event(), threading.Event()
            self.in_time = False

        def actions(self) -> Sequence[Action]:
            return [Action("wait", self.wait, "Wait.")]

        def wait(self) -> None:
            self.began.set()
            self.in_time = self.stopped.wait(10)

        def cancel(self) -> None:
            self.stopped.set()

    kit = Waiting()
    cancelled(agent_of([{"tool": "wait"}], kits=[kit]), kit.began)
    assert kit.in_time


def note_in(done: list[int], began: threading.Event) -> Action:
    def note(number: int) -> None:
        """Note a number."""
        done.append(number)
        began.set()
        time.sleep(0.2)

    return Action.of(note)


NOTES = [("note", {"number": number}) for number in (1, 2)]


def test_an_answer_that_came_back_after_the_cancellation_is_recorded(tmp_path: Path) -> None:
    done: list[int] = []
    began = threading.Event()
    with EventLog(tmp_path / "runs.db") as log:
        with log.begin("r") as writer:
            agent = agent_of([reply(*NOTES)], note_in(done, began))
            begin(agent, writer, "t")
            cancelled(agent, began)
        assert (done, record_of(log, "r").status) == ([1], "cancelled")
        with log.begin("r") as writer:
            run = resume(agent_of([FINISH], note_in(done, began)), writer)
    assert run.ok
    assert [(call.envelope or {}).get("code") for call in run.steps[0].calls] == [None, None]
    assert done == [1, 2]


def test_a_call_that_was_not_begun_is_known_as_such(tmp_path: Path) -> None:
    """It was cancelled while a person was asked: nothing was carried out, so its effects are not unknown."""
    done: list[int] = []
    asked = threading.Event()

    def ask(request: ApprovalRequest) -> Answer:
        asked.set()
        time.sleep(0.2)
        return Answer(verdict="approve")

    with EventLog(tmp_path / "runs.db") as log:
        with log.begin("r") as writer:
            agent = agent_of([reply(*NOTES[:1])], note_in(done, threading.Event()))
            agent.layers = (Approvals(ApprovalPolicy(tools={"note": "always"}), ask, environment=agent.environment),)
            begin(agent, writer, "t")
            cancelled(agent, asked)
        assert done == []
        with log.begin("r") as writer:
            run = resume(agent_of([FINISH], note_in(done, threading.Event())), writer)
    assert ((run.steps[0].envelope or {}).get("code"), done) == ("cancelled", [])


def test_the_other_calls_of_a_reply_are_not_begun_after_a_cancellation() -> None:
    done: list[int] = []

    def note(number: int) -> None:
        """Note a number."""
        done.append(number)
        agent.cancel()

    agent = agent_of([reply(*NOTES), FINISH], Action.of(note))
    run = agent.execute("t")
    assert (run.status.value, run.iterations, done) == ("cancelled", 1, [1])
    assert [(call.envelope or {}).get("code") for call in run.steps[0].calls] == [None, "cancelled"]


def test_a_run_whose_driver_goes_away_in_the_middle_is_cancelled() -> None:
    agent = agent_of([])
    flow = conduct(_Parts(agent, "t"), Progress(Memory(), Meter(Budget())), ())
    next(flow)
    flow.close()
    assert agent.last_run is not None
    assert (agent.last_run.status.value, agent.last_run.reason) == ("cancelled", "The run was cancelled.")
