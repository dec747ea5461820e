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


class Pause(threading.Event):
    """Set by what is under way when its run is to be cancelled, and which goes on after that."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def hold(self) -> None:
        self.set()
        assert self.over.wait(60)


def cancelled(agent: Agent, pause: Pause) -> AgentRun:
    """The run of ``agent``, cancelled when ``pause`` is set; it has ended when ``arun`` has."""

    async def main() -> AgentRun | None:
        task = asyncio.create_task(agent.arun("t"))
        await asyncio.to_thread(pause.wait, 60)
        task.cancel("enough")
        asyncio.get_running_loop().call_later(0.1, pause.over.set)
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
        self.method, self.pause = method, Pause()
        self.ends: list[tuple[str, str]] = []

    def _in(self, method: str) -> None:
        if method == self.method:
            self.pause.hold()

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
    cancelled(agent_of([THINK] * 50, layers=[layer]), layer.pause)
    assert layer.ends == [("cancelled", "The run was cancelled.")]


def test_calls_side_by_side_all_come_back_first() -> None:
    pause, both = Pause(), threading.Barrier(2)
    done: list[str] = []

    class Place(Environment):
        def execute_action(self, action: Any, args: Mapping[str, Any] | None) -> dict[str, Any]:
            path = (args or {})["path"]
            both.wait(60)
            pause.hold()
            time.sleep(0 if path == "a" else 0.3)
            done.append(path)
            return {"tool_executed": True, "result": path, "notices": []}

    replies = [reply(("read", {"path": "a"}), ("read", {"path": "b"}))]
    cancelled(agent_of(replies, SandboxAction("read"), environment=Place()), pause)
    assert sorted(done) == ["a", "b"]


def test_kits_are_cancelled_at_once() -> None:
    class Waiting(Kit):
        name = "waiting"

        def __init__(self) -> None:
            self.pause, self.stopped = Pause(), threading.Event()
            self.in_time = False

        def actions(self) -> Sequence[Action]:
            return [Action("wait", self.wait, "Wait.")]

        def wait(self) -> None:
            self.pause.set()
            self.in_time = self.stopped.wait(60)

        def cancel(self) -> None:
            self.stopped.set()

    kit = Waiting()
    cancelled(agent_of([{"tool": "wait"}], kits=[kit]), kit.pause)
    assert kit.in_time


def note_in(done: list[int], pause: Pause) -> Action:
    def note(number: int) -> None:
        """Note a number."""
        done.append(number)
        pause.hold()

    return Action.of(note)


NOTES = [("note", {"number": number}) for number in (1, 2)]


def test_an_answer_that_came_back_after_the_cancellation_is_recorded(tmp_path: Path) -> None:
    done: list[int] = []
    pause = Pause()
    with EventLog(tmp_path / "runs.db") as log:
        with log.begin("r") as writer:
            agent = agent_of([reply(*NOTES)], note_in(done, pause))
            begin(agent, writer, "t")
            cancelled(agent, pause)
        assert (done, record_of(log, "r").status) == ([1], "cancelled")
        with log.begin("r") as writer:
            run = resume(agent_of([FINISH], note_in(done, pause)), writer)
    assert run.ok
    assert [(call.envelope or {}).get("code") for call in run.steps[0].calls] == [None, None]
    assert done == [1, 2]


def test_a_call_that_was_not_begun_is_known_as_such(tmp_path: Path) -> None:
    """It was cancelled while a person was asked: nothing was carried out, so its effects are not unknown."""
    done: list[int] = []
    pause = Pause()

    def ask(request: ApprovalRequest) -> Answer:
        pause.hold()
        return Answer(verdict="approve")

    with EventLog(tmp_path / "runs.db") as log:
        with log.begin("r") as writer:
            agent = agent_of([reply(*NOTES[:1])], note_in(done, Pause()))
            agent.layers = (Approvals(ApprovalPolicy(tools={"note": "always"}), ask, environment=agent.environment),)
            begin(agent, writer, "t")
            cancelled(agent, pause)
        assert done == []
        with log.begin("r") as writer:
            run = resume(agent_of([FINISH], note_in(done, Pause())), writer)
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
