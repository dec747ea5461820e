"""The loop: faults are told and survived, limits end it, hooks see it, the outcome says why."""

from __future__ import annotations

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
    AgentLanguage,
    AgentRun,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    Hooks,
    JsonLanguage,
    Memory,
    RecordingModel,
    ReplayModel,
    RunStatus,
    ScriptedModel,
    Step,
    StopRun,
    Usage,
    WindowMemory,
)
from agent.core.budget import charge, current_meter
from agent.core.envelopes import unknown_tool
from agent.errors import AgentErrorCode
from agent.job.check import check_agent
from agent.layers.retry_format import RetryFormat
from agent.model.brain import ModelError
from agent.tools import finish_action, think_action
from sandbox.errors import SandboxError, SandboxUnavailableError

FINISH = {"tool": "finish", "args": {"summary": "done"}}
THINK = {"tool": "think", "args": {"thought": "hm"}}


def agent_of(replies: Sequence[Any], *more: Action, environment: Environment | None = None, **options: Any) -> Agent:
    registry = ActionRegistry([think_action(), finish_action(), *more])
    language = options.pop("language", FunctionCallingLanguage())
    return Agent([Goal("g")], language, registry, ScriptedModel(replies), environment or Environment(), **options)


def codes(run: AgentRun) -> list[str | None]:
    return [(s.envelope or {}).get("code") for s in run.steps]


@pytest.mark.parametrize("language", [AgentLanguage(), FunctionCallingLanguage(), JsonLanguage()])
def test_every_fault_is_told_and_survived(language: AgentLanguage) -> None:
    broken = Action("broken", lambda: int("x"), "Fails.")
    replies = [
        "?",
        {"tool": "fnish"},
        {"tool": "finish", "args": 1},
        {"tool": "finish", "args": {}},
        {"tool": "broken"},
        FINISH,
    ]
    agent = agent_of(replies, broken, language=language)
    run = agent.execute("task")
    assert run.status is RunStatus.finished
    assert codes(run) == [
        "unparsable_response", "unknown_tool", "invalid_arguments", "invalid_arguments", "tool_error", None,
    ]  # fmt: skip
    assert [m["role"] for m in run.memory.items] == ["user"] + ["assistant", "tool"] * 6
    unknown = run.steps[1].envelope
    assert unknown is not None
    assert (unknown["next_tool"], unknown["retryable"]) == ("finish", True)
    assert run is agent.last_run


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("raed", "read"), ("read_file", "read"), ("mkdir", "make_dir"), ("finsh", "finish"), ("run.command", "run"),
        ("execute", "run"), ("frobnicate", None), ("make_coffee", None), ("done", "finish"), ("", None), ("read" * 1000, None),
    ],
)  # fmt: skip
def test_only_a_tool_that_was_meant_is_named_as_the_next(name: str, meant: str | None) -> None:
    told = unknown_tool(name, ["read", "run", "make_dir", "delete", "write", "finish", "move"])
    assert told["next_tool"] == meant
    assert (f"Use {meant}" if meant else "delete, finish, make_dir") in told["hint"]  # s57


def test_a_terminal_action_that_fails_does_not_end_the_run() -> None:
    states = iter([False, True])

    def submit() -> str:
        if not next(states):
            raise ValueError("not yet")
        return "in"

    run = agent_of(
        [{"tool": "submit"}, {"tool": "submit"}], Action("submit", submit, "Submit.", terminal=True)
    ).execute("t")
    assert (run.status, run.iterations, run.result) == (RunStatus.finished, 2, "in")


def test_replies_without_an_action_are_bounded() -> None:
    run = agent_of(["?"] * 20, budget=Budget(max_invalid_replies=3)).execute("task")
    assert (run.status, run.iterations) == (RunStatus.no_valid_action, 3)
    assert "3 replies in a row" in run.reason


def test_max_iterations_and_its_bad_values() -> None:
    run = agent_of([THINK] * 9).execute("task", max_iterations=4)
    assert (run.status, run.iterations) == (RunStatus.max_iterations, 4)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="max_iterations"):
            agent_of([]).run("task", max_iterations=bad)


def test_max_seconds_is_checked_before_a_step() -> None:
    def take_40_seconds() -> None:
        meter = current_meter()
        assert meter is not None
        meter.started -= 40

    slow = Action("slow", take_40_seconds, "Takes long.")
    run = agent_of([{"tool": "slow"}] * 9, slow, budget=Budget(max_seconds=60)).execute("task")
    assert run.status is RunStatus.max_seconds
    assert run.iterations == 2


def test_tokens_and_cost_charged_by_any_brain_count() -> None:
    def brain(prompt: Any) -> Any:
        charge(Usage(calls=1, input_tokens=60, cost_usd=0.4))
        return THINK

    for budget, status in (
        (Budget(max_tokens=100), RunStatus.max_tokens),
        (Budget(max_cost_usd=0.5), RunStatus.max_cost),
    ):
        agent = agent_of([], budget=budget)
        agent.generate_response = brain
        run = agent.execute("task")
        assert (run.status, run.iterations) == (status, 2)
        assert run.usage.input_tokens == 120


def test_what_the_brain_raises_is_an_outcome_of_execute_and_an_exception_of_run() -> None:
    error = ModelError(AgentErrorCode.model_unavailable, "down", "wait")
    agent = agent_of([THINK, error])
    run = agent.execute("task")
    assert (run.status, run.error, run.reason) == (RunStatus.model_failed, error, str(error))
    assert run.memory.items[-1]["role"] == "tool"
    with pytest.raises(ModelError, match="down"):
        agent_of([error]).run("task")
    with pytest.raises(ZeroDivisionError):
        agent_of([lambda prompt: 1 / 0]).run("task")


def test_a_script_that_ends_early_is_said() -> None:
    run = agent_of([THINK]).execute("task")
    assert run.status is RunStatus.model_failed
    assert "asked for step 2" in run.reason


class Lost(Environment):
    def execute_action(self, action: Any, args: Mapping[str, Any] | None) -> dict[str, Any]:
        raise SandboxUnavailableError("killed", "The container was killed.")


class Rude(Environment):
    def execute_action(self, action: Any, args: Mapping[str, Any] | None) -> dict[str, Any]:
        raise LookupError("rude")


def test_a_lost_environment_ends_the_run() -> None:
    run = agent_of([THINK, THINK], environment=Lost()).execute("task")
    assert (run.status, run.iterations) == (RunStatus.environment_lost, 1)
    assert "killed" in run.reason
    assert run.memory.items[-1]["content"]["code"] == "sandbox_unavailable"


def test_an_environment_that_raises_is_answered_for() -> None:
    run = agent_of([THINK], environment=Rude()).execute("task")
    assert codes(run)[0] == "tool_error"


def test_cancel_from_another_thread() -> None:
    agent = agent_of([])
    started = threading.Event()

    def brain(prompt: Any) -> Any:
        started.set()
        time.sleep(0.01)
        return THINK

    agent.generate_response = brain
    agent.budget = Budget(max_iterations=10_000, max_seconds=60)

    def cancel() -> None:
        started.wait()
        agent.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    run = agent.execute("task")
    canceller.join()
    assert run.status is RunStatus.cancelled


def test_ctrl_c_is_recorded_and_goes_on_to_the_caller() -> None:
    agent = agent_of([THINK, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        agent.run("task")
    assert agent.last_run is not None
    assert (agent.last_run.status, agent.last_run.iterations) == (RunStatus.cancelled, 2)


class Watching(Hooks):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_start(self, step: Step, memory: Memory) -> None:
        self.seen.append(("start", step.number, len(memory.items)))

    def on_action(self, step: Step, memory: Memory) -> None:
        self.seen.append(("action", step.tool))

    def on_result(self, step: Step, memory: Memory) -> None:
        self.seen.append(("result", (step.envelope or {})["tool_executed"], len(memory.items)))

    def on_terminate(self, run: AgentRun) -> None:
        self.seen.append(("end", run.status.value))


def test_hooks_see_every_step() -> None:
    watching = Watching()
    agent_of([THINK, "?", FINISH], hooks=[watching]).run("task")
    assert watching.seen == [
        ("start", 1, 1), ("action", "think"), ("result", True, 3),
        ("start", 2, 3), ("action", None), ("result", False, 5),
        ("start", 3, 5), ("action", "finish"), ("result", True, 7),
        ("end", "finished"),
    ]  # fmt: skip


def test_a_hook_can_speak_and_stop() -> None:
    class Inbox(Hooks):
        def on_step_start(self, step: Step, memory: Memory) -> None:
            memory.add_memory({"role": "user", "content": f"message {step.number}"})
            if step.number == 2:
                raise StopRun("enough", result=7)

    run = agent_of([THINK] * 5, hooks=[Inbox()]).execute("task")
    assert (run.status, run.reason, run.result) == (RunStatus.stopped, "enough", 7)
    assert [m["content"] for m in run.memory.items if m["role"] == "user"] == ["task", "message 1", "message 2"]


def test_a_hook_that_fails_is_not_hidden() -> None:
    class Failing(Hooks):
        def on_result(self, step: Step, memory: Memory) -> None:
            raise LookupError("hook")

    agent = agent_of([THINK], hooks=[Failing()])
    with pytest.raises(LookupError, match="hook"):
        agent.run("task")
    assert agent.last_run is not None
    assert agent.last_run.status is RunStatus.failed


def test_the_reply_is_parsed_once_a_step() -> None:
    class Counting(FunctionCallingLanguage):
        parsed = 0

        def parse_response(self, response: Any) -> dict[str, Any]:
            self.parsed += 1
            return super().parse_response(response)

    language = Counting()
    agent_of([THINK, FINISH], language=language).run("task")
    assert language.parsed == 2


def test_a_huge_text_is_cut_in_memory_and_said() -> None:
    big = Action("big", lambda: {"output": "head" + "x" * 1_000_000 + "tail", "code": 3}, "Big.")
    run = agent_of([{"tool": "big"}, FINISH], big).execute("task")
    stored = run.memory.items[2]["content"]
    assert stored["result"]["code"] == 3
    assert stored["result"]["output"].startswith("head")
    assert stored["result"]["output"].endswith("tail")
    assert len(stored["result"]["output"]) < 101_000
    assert [n["code"] for n in stored["notices"]] == ["output_cut"]
    assert "900008 characters" in stored["notices"][0]["message"]
    assert len((run.steps[0].envelope or {})["result"]["output"]) == 1_000_008


def test_a_result_of_very_many_values_is_cut_as_a_whole() -> None:
    run = agent_of([{"tool": "many"}, FINISH], Action("many", lambda: list(range(200_000)), "Many.")).execute("task")
    stored = run.memory.items[2]["content"]
    assert len(stored["result"]) < 401_000
    assert [n["code"] for n in stored["notices"]] == ["output_cut"]


def test_the_default_memory_is_a_window_and_new_for_each_run() -> None:
    agent = agent_of([FINISH, FINISH])
    first, second = agent.run("a"), agent.run("b")
    assert isinstance(first, WindowMemory)
    assert first is not second


def test_recorded_replies_can_be_replayed(tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    agent = agent_of([])
    agent.generate_response = RecordingModel(ScriptedModel(["?", THINK, FINISH]), file)
    first = agent.execute("task")
    for brain in (ReplayModel.from_file(file), ReplayModel.of_run(first)):
        agent.generate_response = brain
        again = agent.execute("task")
        assert (again.status, codes(again)) == (first.status, codes(first))
        assert brain.remaining == 0
    (tmp_path / "bad").write_text("{")
    with pytest.raises(SandboxError, match="cannot be read"):
        ReplayModel.from_file(tmp_path / "bad")


def test_the_self_check_passes_a_good_agent_and_names_what_is_wrong() -> None:
    verdicts = {f.item: f.verdict for f in check_agent(agent_of([], budget=Budget(max_seconds=60)))}
    assert verdicts.pop("isolation") == "warn"
    assert set(verdicts.values()) == {"pass"}

    class Unchecked(ActionRegistry):
        def validate_args(self, action: Action, args: Any) -> tuple[bool, str]:
            return True, "ok"

    bad = Agent([], AgentLanguage(), Unchecked([think_action()]), lambda p: "", Rude(), new_memory=Memory)
    found = {f.item: f for f in check_agent(bad)}
    wrong = {item: f.verdict for item, f in found.items() if f.verdict != "pass"}
    assert wrong == {
        "goals": "warn", "termination": "warn", "argument checks": "fail", "envelopes": "fail", "timeouts": "fail",
        "isolation": "warn", "memory": "warn", "faults": "fail", "budget": "warn",
    }  # fmt: skip
    assert all(found[item].hint for item in wrong)


def test_the_self_check_asks_the_loop_and_not_a_layer_that_asks_again() -> None:
    agent = agent_of([], layers=[RetryFormat()])
    found = {finding.item: finding for finding in check_agent(agent)}
    assert found["faults"].verdict == "pass", found["faults"]
    assert [type(layer) for layer in agent.layers] == [RetryFormat]
