"""Several tool calls in one reply: their order, what runs side by side, what each is answered, and what a record keeps of them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    Environment,
    FunctionCallingLanguage,
    Goal,
    Hooks,
    JsonLanguage,
    Memory,
    Response,
    RunStatus,
    ScriptedModel,
    Step,
    ToolCall,
)
from agent.core.environment_wrapper import WrappedEnvironment
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from agent.layers.approvals import Answer, ApprovalPolicy, ApprovalRequest, Approvals
from agent.record.resume import begin, execute_recorded, resume
from agent.record.store import EventLog, record_of
from agent.tools import SandboxAction, finish_action, think_action
from sandbox import LocalEnvironment

FINISH = ("finish", {"summary": "done"})


def reply(*calls: tuple[str, Mapping[str, Any]], text: str = "") -> Response:
    return Response(text, tuple(ToolCall(name, json.dumps(args), f"c{n}") for n, (name, args) in enumerate(calls)))


def agent_of(replies: list[Any], *more: Action, environment: Environment | None = None, **options: Any) -> Agent:
    registry = ActionRegistry([think_action(), finish_action(), *more])
    language = options.pop("language", FunctionCallingLanguage())
    return Agent([Goal("g")], language, registry, ScriptedModel(replies), environment or Environment(), **options)


def think(thought: str) -> tuple[str, Mapping[str, Any]]:
    return ("think", {"thought": thought})


def codes(step: Step) -> list[str | None]:
    return [(call.envelope or {}).get("code") for call in step.calls]


def test_the_calls_of_a_reply_are_carried_out_in_order_and_answered_each() -> None:
    done: list[int] = []
    note = Action.of(note_in(done))
    run = agent_of([reply(("note", {"number": 1}), ("note", {"number": 2}), text="Both."), reply(FINISH)], note).execute("t")
    assert run.ok
    assert done == [1, 2]
    first = run.steps[0]
    assert (first.tool, first.args, first.thought) == ("note", {"number": 1}, "Both.")
    assert [(call.tool, (call.envelope or {})["result"]) for call in first.calls] == [("note", 1), ("note", 2)]
    assert [(m["role"], m.get("tool_call_id")) for m in run.memory.items] == [
        ("user", None), ("assistant", None), ("tool", "c0"), ("tool", "c1"), ("assistant", None), ("tool", "c0"),
    ]  # fmt: skip


def note_in(done: list[int]) -> Any:
    def note(number: int) -> int:
        """Note a number."""
        done.append(number)
        return number

    return note


class Meeting(Environment):
    """Its operations wait for each other, and it knows how many were under way at once."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(together)
        self.lock = threading.Lock()
        self.now = self.most = 0

    def execute_action(self, action: Any, args: Mapping[str, Any] | None) -> dict[str, Any]:
        if getattr(action, "operation", None) is None:
            return super().execute_action(action, args)
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if self.barrier.parties > 1:
            self.barrier.wait(10)
        else:
            time.sleep(0.02)  # so that another one can begin
        with self.lock:
            self.now -= 1
        return {"tool_executed": True, "result": args, "notices": []}


def test_neighbours_that_change_nothing_run_side_by_side() -> None:
    place = Meeting(2)
    read = [("read", {"path": name}) for name in "ab"]
    run = agent_of([reply(*read), reply(FINISH)], SandboxAction("read"), environment=place).execute("t")
    assert run.ok, run.reason
    assert [(call.envelope or {})["result"] for call in run.steps[0].calls] == [{"path": "a"}, {"path": "b"}]
    assert place.most == 2


ONE_AFTER_THE_OTHER = ["run run", "read write", "write read", "run read", "write write", "wait_for logs", "resize screen"]


@pytest.mark.parametrize("tools", ONE_AFTER_THE_OTHER)
def test_no_call_runs_beside_one_that_changes_something(tools: str) -> None:
    args: dict[str, Mapping[str, Any]] = {
        "run": {"command": "true"}, "read": {"path": "a"}, "write": {"path": "a", "content": "x"},
        "wait_for": {"id": "c1", "exit": True}, "logs": {"id": "c1"},
        "resize": {"id": "c1", "cols": 80, "rows": 24}, "screen": {"id": "c1"},
    }  # fmt: skip
    place = Meeting(1)
    names = tools.split()
    actions = [SandboxAction(name) for name in sorted(set(names))]
    run = agent_of([reply(*((n, args[n]) for n in names)), reply(FINISH)], *actions, environment=place).execute("t")
    assert run.ok, run.reason
    assert codes(run.steps[0]) == [None, None]
    assert place.most == 1


def test_hooks_see_each_call_with_its_index() -> None:
    seen: list[Any] = []

    class Watching(Hooks):
        def on_action(self, step: Step, memory: Memory) -> None:
            seen.append(("action", step.index, step.args))

        def on_result(self, step: Step, memory: Memory) -> None:
            seen.append(("result", step.index, (step.envelope or {})["tool_executed"], len(memory.items)))

    agent_of([reply(think("a"), ("think", {})), reply(FINISH)], hooks=[Watching()]).execute("t")
    assert seen == [
        ("action", 0, {"thought": "a"}), ("action", 1, {}), ("result", 0, True, 4), ("result", 1, False, 4),
        ("action", 0, {"summary": "done"}), ("result", 0, True, 6),
    ]  # fmt: skip


def test_a_call_that_cannot_be_read_does_not_stop_the_others() -> None:
    calls = (ToolCall("think", '{"thought": ', "c0"), *reply(("nothing", {}), think("b")).tool_calls)
    run = agent_of([Response("", calls), reply(FINISH)]).execute("t")
    assert codes(run.steps[0]) == ["unparsable_response", "unknown_tool", None]


def test_a_terminal_call_goes_last() -> None:
    done: list[int] = []
    run = agent_of([reply(FINISH, ("note", {"number": 1}))], Action.of(note_in(done))).execute("t")
    assert (run.ok, done, run.iterations) == (True, [1], 1)
    assert run.steps[0].tool == "finish"


def test_a_terminal_call_is_refused_beside_a_call_that_failed() -> None:
    run = agent_of([reply(FINISH, ("think", {})), reply(FINISH)]).execute("t")
    assert (run.ok, run.iterations) == (True, 2)
    assert codes(run.steps[0]) == ["finish_refused", "invalid_arguments"]
    assert "think" in (run.steps[0].envelope or {})["error"]


def test_of_two_terminal_calls_the_first_counts() -> None:
    run = agent_of([reply(("finish", {"summary": "one"}), ("finish", {"summary": "two"}))]).execute("t")
    assert run.result == {"summary": "one"}
    assert codes(run.steps[0]) == [None, "too_many_actions"]


def test_more_calls_than_the_limit_are_answered_so() -> None:
    run = agent_of([reply(*(think(str(n)) for n in range(10))), reply(FINISH)]).execute("t")
    assert len(run.steps[0].calls) == 8
    answers = [m["content"].get("code") for m in run.memory.items[2:12]]
    assert answers == [None] * 8 + ["too_many_actions"] * 2
    assert "first 8 calls" in run.memory.items[11]["content"]["error"]


def test_a_lost_environment_ends_the_run_before_the_other_calls() -> None:
    done: list[int] = []

    class Lost(Environment):
        def execute_action(self, action: Any, args: Mapping[str, Any] | None) -> dict[str, Any]:
            done.append(1)
            return {"tool_executed": False, "error": "gone", "code": "sandbox_unavailable", "hint": ""}

    run = agent_of([reply(think("a"), think("b"))], environment=Lost()).execute("t")
    assert (run.status, done) == (RunStatus.environment_lost, [1])


@pytest.mark.parametrize("name", ["get_action", "update_memory", "should_terminate"])
def test_an_agent_with_its_own_way_gets_one_call_a_reply(name: str) -> None:
    def own(self: Agent, *args: Any) -> Any:
        return getattr(Agent, name)(self, *args)

    registry = ActionRegistry([think_action(), finish_action()])
    replies = [reply(think("a"), think("b")), reply(FINISH)]
    own_class = type("Own", (Agent,), {name: own})
    run = own_class([Goal("g")], FunctionCallingLanguage(), registry, ScriptedModel(replies), Environment()).execute("t")
    assert len(run.steps[0].calls) == 1
    assert [m["content"].get("code") for m in run.memory.items[2:4]] == [None, "too_many_actions"]


def test_a_text_language_gets_one_call_a_reply() -> None:
    run = agent_of([reply(think("a"), think("b")), reply(FINISH)], language=JsonLanguage()).execute("t")
    assert [len(step.calls) for step in run.steps] == [1, 1]


def test_approvals_are_asked_one_at_a_time_while_calls_run_side_by_side() -> None:
    asked: list[str] = []

    def ask(request: ApprovalRequest) -> Answer:
        asked.append(str(request.args["path"]))
        return Answer(verdict="approve" if request.args["path"] != "b" else "reject", reason="no")

    place = Meeting(2)
    calls = [("read", {"path": name}) for name in "abc"]
    agent = agent_of(
        [reply(*calls), reply(FINISH)],
        SandboxAction("read"),
        environment=place,
        layers=[Approvals(ApprovalPolicy(tools={"read": "always"}), ask, environment=place)],
    )
    run = agent.execute("t")
    assert asked == ["a", "b", "c"]
    assert codes(run.steps[0]) == [None, "approval_refused", None]


@pytest.mark.parametrize("timeout", [None, 50.0])
def test_ctrl_c_ends_the_calls_of_the_other_threads(timeout: float | None) -> None:
    with LocalEnvironment() as sandbox:
        ident = sandbox.run("sleep 60", background=True).unwrap().id
        waits = {"id": ident, "wait_seconds": 50, "follow": True}
        metadata = {} if timeout is None else {"timeout_s": timeout}
        answers: list[Any] = []
        waiting = threading.Barrier(3)

        class Interrupted(WrappedEnvironment):
            def execute_action(self, action: Any, args: Any) -> dict[str, Any]:
                waiting.wait(60)
                if action.name == "read":
                    time.sleep(0.3)  # until the guest has the others
                    raise KeyboardInterrupt
                answer = super().execute_action(action, args)
                answers.append(answer)
                return answer

        agent = agent_of(
            [reply(("read", {"path": "a"}), ("logs", waits), ("logs", waits))],
            SandboxAction("read"),
            SandboxAction("logs", metadata=metadata),
            environment=Interrupted(sandbox),
        )
        before = set(threading.enumerate())
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            agent.execute("t")
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("gamebox-call"):
                thread.join(60)
        assert time.monotonic() - began < 40
        assert [answer.get("code") for answer in answers] == ["cancelled", "cancelled"]
        assert agent.last_run is not None
        assert agent.last_run.status is RunStatus.cancelled
        sandbox.kill(ident).unwrap()


def test_the_record_has_each_call_and_resume_repeats_only_those_without_an_answer(tmp_path: Path) -> None:
    done: list[int] = []

    def note(number: int) -> int:
        """Note a number."""
        if number == 2 and 2 not in done:
            done.append(2)
            raise KeyboardInterrupt
        done.append(number)
        return number

    def made(replies: list[Any]) -> Agent:
        return agent_of(replies, Action.of(note))

    calls = [("note", {"number": n}) for n in (1, 2, 3)]
    with EventLog(tmp_path / "runs.db") as log:
        run = execute_recorded(made([reply(*calls)]), "t", log, run="r")
        assert (run.status, done) == (RunStatus.paused, [1, 2])
        before = record_of(log, "r")
        assert before.pending is not None
        assert [call.executed is not None for call in before.pending.calls] == [True, False, False]
        with log.begin("r") as writer:
            run = resume(made([reply(FINISH)]), writer)
        assert run.ok
        assert done == [1, 2, 3]
        record = record_of(log, "r")
        assert [(call.envelope or {}).get("code") for call in record.steps[0].calls] == [None, "effects_unknown", None]
        assert [m.get("tool_call_id") for m in record.messages if m["role"] == "tool"] == ["c0", "c1", "c2", "c0"]
        assert record.messages == run.memory.items


def test_an_approval_that_is_put_off_pauses_in_the_middle_of_a_reply(tmp_path: Path) -> None:
    done: list[int] = []
    calls = [("note", {"number": n}) for n in (1, 2, 3)]

    def made(replies: list[Any], verdict: Any) -> Agent:
        agent = agent_of(replies, Action.of(note_in(done)))

        def rule(tool: str, args: Mapping[str, Any], rating: Any) -> bool:
            return args.get("number") == 2

        policy = ApprovalPolicy(tools={"note": rule})
        agent.layers = (Approvals(policy, lambda request: Answer(verdict=verdict), environment=agent.environment),)
        return agent

    with EventLog(tmp_path / "runs.db") as log:
        run = execute_recorded(made([reply(*calls)], "later"), "t", log, run="r")
        assert (run.status, done) == (RunStatus.paused, [1])
        with log.begin("r") as writer:
            run = resume(made([reply(FINISH)], "approve"), writer)
        assert (run.status, done) == (RunStatus.finished, [1, 2, 3])
        assert [call.answered is not None for call in record_of(log, "r").steps[0].calls] == [False, True, False]


class Counting(Layer):
    state_name = "counting"

    def __init__(self) -> None:
        self.count = 0

    def around_do(self, call: Call) -> Flow:
        self.count += 1
        return (yield call)

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: Any) -> None:
        self.count = int(state)


def test_the_state_of_a_layer_is_recorded_and_restored(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    with EventLog(tmp_path / "runs.db") as log:
        assert not execute_recorded(agent_of([reply(think("a"), think("b"))], layers=[first]), "t", log, run="r").ok
        assert record_of(log, "r").kits == {"counting": 2}
        with log.begin("r") as writer:
            assert resume(agent_of([reply(FINISH)], layers=[second]), writer).ok
    assert (first.count, second.count) == (2, 3)


def test_a_run_on_the_event_loop_and_a_stream_are_recorded_as_any_other(tmp_path: Path) -> None:
    def events_of(log: EventLog, run: str) -> list[str]:
        return [event.kind for _, event in log.events(run)]

    def made() -> Agent:
        return agent_of([reply(think("a"), think("b")), reply(FINISH)])

    with EventLog(tmp_path / "runs.db") as log:
        assert execute_recorded(made(), "t", log, run="sync").ok
        agent = made()
        with log.begin("async") as writer:
            begin(agent, writer, "t")
            assert asyncio.run(agent.aexecute("t")).ok
        agent = made()
        with log.begin("stream") as writer:
            begin(agent, writer, "t")
            assert len(list(agent.stream("t"))) == 7
        assert events_of(log, "async") == events_of(log, "stream") == events_of(log, "sync")
        shapes = [[(m["role"], m.get("tool_call_id")) for m in record_of(log, run).messages] for run in ("async", "sync")]
        assert shapes[0] == shapes[1]
