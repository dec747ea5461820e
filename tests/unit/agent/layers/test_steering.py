"""Steering a run: what the user says in the middle of it, questions to the user, and checks before it ends."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent import (
    ActionRegistry,
    Agent,
    AgentRun,
    Budget,
    FunctionCallingLanguage,
    Goal,
    Hooks,
    Memory,
    RunStatus,
    ScriptedModel,
    StopRun,
    standard_registry,
)
from agent.core.run import Step
from agent.layers.finish_checks import (
    Check,
    CheckedFinish,
    Finding,
    FinishChecks,
    command_passes,
    fits_schema,
    verified_by,
)
from agent.layers.inbox import MOST_CHARS, MOST_WAITING, Inbox
from agent.record.resume import begin, execute_recorded, resume
from agent.record.store import EventLog, record_of
from agent.tools.ask_user import AskUserKit, ask_user_action
from agent.views.screen import Screen
from agent.views.terminal_approvals import ask_user_on
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment

FINISH = {"tool": "finish", "args": {"summary": "done"}}
THINK = {"tool": "think", "args": {"thought": "hm"}}


def agent_of(script: list[Any], environment: Environment | None = None, **options: Any) -> Agent:
    registry = options.pop("registry", None) or standard_registry()
    brain = options.pop("brain", None) or ScriptedModel(script)
    return Agent([Goal("g")], FunctionCallingLanguage(), registry, brain, environment or Environment(), **options)


# --- inbox ------------------------------------------------------------------
def test_what_is_said_is_read_before_the_next_decision(tmp_path: Path) -> None:
    inbox = Inbox()
    seen: list[str] = []

    def brain(prompt: Any) -> Any:
        seen.append(str(prompt))
        if len(seen) == 1:
            threads = [threading.Thread(target=inbox.say, args=("stop at once",)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return THINK if len(seen) < 3 else FINISH

    with EventLog(tmp_path / "runs.db") as log:
        run = execute_recorded(agent_of([], brain=brain, hooks=[inbox]), "t", log, run="r")
        assert ["stop at once" in text for text in seen] == [False, True, True]
        assert [logged.kind for logged in log.logged("r")].count("UserSpoke") == 3
        assert record_of(log, "r").messages == run.memory.items


def test_what_waits_when_a_run_is_killed_is_read_when_it_is_resumed(tmp_path: Path) -> None:
    def said(memory: Memory) -> list[str]:
        return [message["content"] for message in memory.items if message.get("source") == "user"]

    class Killed(BaseException):
        """Stands for SIGKILL: nothing is done after it."""

    class Says(Hooks):
        def on_result(self, step: Step, memory: Memory) -> None:
            for text in ("first", "second")[step.number - 1 : step.number]:
                inbox.say(text)

        def on_step_start(self, step: Step, memory: Memory) -> None:
            if step.number == 3:  # the inbox, a layer, has handed over "second": nothing of that is in the log yet
                raise Killed

    inbox = Inbox()
    inbox.say("at once")
    with EventLog(tmp_path / "runs.db") as log:
        with pytest.raises(Killed):
            execute_recorded(agent_of([THINK] * 3, layers=[inbox], hooks=[Says()]), "t", log, run="r")
        with log.begin("r") as writer:
            run = resume(agent_of([THINK, FINISH], layers=[Inbox()]), writer)
    assert run.ok
    assert said(run.memory) == ["at once", "first", "second"]


def test_messages_that_wait_are_restored_in_order_and_anything_else_is_refused() -> None:
    inbox, other = Inbox(), Inbox()
    assert inbox.snapshot() is None
    for text in ("a", "b"):
        inbox.say(text)
    other.restore(inbox.snapshot())
    other.restore(None)
    assert other.snapshot() == ["a", "b"]
    for wrong in (3, "a", [1], [""], {"a": 1}, ["x"] * (MOST_WAITING + 1)):
        with pytest.raises(ValueError, match=r"not messages|empty|already waiting"):
            Inbox().restore(wrong)


def test_what_cannot_be_said() -> None:
    inbox = Inbox()
    for text in ("", " \n", "x" * (MOST_CHARS + 1)):
        with pytest.raises(ValueError, match=r"empty|too long"):
            inbox.say(text)
    for _ in range(MOST_WAITING):
        inbox.say("x")
    with pytest.raises(ValueError, match="already waiting"):
        inbox.say("x")


# --- ask_user ------------------------------------------------------------------
@dataclass
class Setting:
    ask_user: Callable[[str], str | None] | None = None


def asking(kit: AskUserKit) -> Agent:
    question = {"tool": "ask_user", "args": {"question": "Which colour?"}}
    registry = standard_registry()
    for action in kit.actions():
        registry.register(action)
    return agent_of([question, FINISH], registry=registry, hooks=list(kit.hooks()))


def answered(run: AgentRun) -> Any:
    envelope = run.steps[0].envelope or {}
    return envelope["result"] if envelope["tool_executed"] else envelope["code"]


@pytest.mark.parametrize(("ask", "absent", "expected", "status"), [
    (lambda q: "blue", "refuse", "blue", RunStatus.finished), (None, "refuse", "tool_error", RunStatus.finished),
    (lambda q: None, "refuse", "tool_error", RunStatus.finished), (None, "pause", "tool_error", RunStatus.paused),
    (lambda q: " ", "pause", "tool_error", RunStatus.paused), (lambda q: "red", "pause", "red", RunStatus.finished),
])  # fmt: skip
def test_a_question(ask: Any, absent: Any, expected: str, status: RunStatus) -> None:
    run = asking(AskUserKit(Setting(ask), absent)).execute("t")
    assert (answered(run), run.status) == (expected, status)


def test_a_question_with_an_answer_of_ones_own() -> None:
    assert "Decide yourself" in answered(asking(AskUserKit(Setting(), "reply")).execute("t"))
    assert answered(asking(AskUserKit(Setting(), "reply", reply="blue")).execute("t")) == "blue"
    assert ask_user_action(None, reply="yes").execute(question="?") == "yes"
    assert ask_user_action(lambda q: q.upper()).execute(question="why") == "WHY"
    with pytest.raises(ValueError, match="absent"):
        AskUserKit(Setting(), "sing")  # type: ignore[arg-type]


def test_a_run_that_waits_for_an_answer_goes_on_with_it(tmp_path: Path) -> None:
    with EventLog(tmp_path / "runs.db") as log:
        run = execute_recorded(asking(AskUserKit(Setting(), "pause")), "t", log, run="r")
        assert (run.status, run.result) == (RunStatus.paused, {"question": "Which colour?"})
        with log.begin("r") as writer:
            run = resume(agent_of([FINISH]), writer, say="blue")
        assert run.status is RunStatus.finished
        assert [m["role"] for m in run.memory.items] == ["user", "assistant", "tool", "user", "assistant", "tool"]
        assert run.memory.items[3]["content"] == "blue"


def test_a_question_on_the_terminal() -> None:
    shown = io.StringIO()
    lines = ["blue\n", ""]
    ask = ask_user_on(Screen(shown), lambda: lines.pop(0))
    assert ask is not None
    assert (ask("Which \x1b[2Jcolour?"), ask("And?")) == ("blue", None)
    assert "Which \\x1b[2Jcolour?" in shown.getvalue()


# --- finish checks ------------------------------------------------------------------
@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        yield made


def codes(run: AgentRun) -> list[Any]:
    return [(step.envelope or {}).get("code") for step in run.steps]


def test_a_command_that_must_pass(sandbox: LocalEnvironment) -> None:
    """The refusal says what failed; mended, the run ends."""
    mend = {"tool": "run", "args": {"command": "echo right > answer"}}
    checks = [command_passes("grep -q right answer || { echo the answer is missing; exit 1; }")]
    run = agent_of([FINISH, mend, FINISH], FinishChecks(sandbox, checks)).execute("t")
    assert (run.status, codes(run)) == (RunStatus.finished, ["finish_refused", None, None])
    refusal = run.steps[0].envelope or {}
    assert "the answer is missing" in refusal["error"]
    assert refusal["next_tool"] == "finish"


def test_a_schema_of_the_result() -> None:
    schema = {"type": "object", "properties": {"summary": {"type": "string", "minLength": 10}}, "required": ["summary"]}
    long = {"tool": "finish", "args": {"summary": "long enough for it"}}
    run = agent_of([FINISH, long], FinishChecks(Environment(), [fits_schema(schema)])).execute("t")
    assert codes(run) == ["finish_refused", None]
    assert "summary" in (run.steps[0].envelope or {})["error"]


def test_a_verifier_that_has_to_agree() -> None:
    verdicts = iter([{"passed": False, "reason": "no test"}, {"passed": "yes"}, None, {"passed": True}])

    def verify(result: Mapping[str, Any]) -> AgentRun:
        assert result == {"summary": "done"}
        verdict = next(verdicts)
        status = RunStatus.finished if verdict is not None else RunStatus.max_iterations
        return AgentRun(status=status, reason="r", memory=Memory(), result=verdict)

    run = agent_of([FINISH] * 4, FinishChecks(Environment(), [verified_by(verify)])).execute("t")
    assert codes(run) == ["finish_refused"] * 3 + [None]
    errors = [(step.envelope or {}).get("error", "") for step in run.steps]
    assert "no test" in errors[0]
    assert "no verdict" in errors[2]


def test_a_check_that_fails_to_check_has_not_passed() -> None:
    def broken(environment: Environment, args: Mapping[str, Any]) -> Finding:
        raise RuntimeError("no")

    asked: list[str] = []

    def later(environment: Environment, args: Mapping[str, Any]) -> Finding:
        asked.append("later")
        return Finding(True)

    checks: list[Check] = [broken, later]
    run = agent_of(
        [FINISH, THINK, FINISH], FinishChecks(Environment(), checks), budget=Budget(max_iterations=3)
    ).execute("t")
    assert (run.status, codes(run), asked) == (RunStatus.max_iterations, ["finish_refused", None, "finish_refused"], [])
    run = agent_of([FINISH] * 3, FinishChecks(Environment(), checks, most=2)).execute("t")
    assert (run.status, codes(run)) == (RunStatus.finished, ["finish_refused"] * 2 + [None])
    assert (run.steps[-1].envelope or {})["notices"][0]["code"] == "finish_unchecked"
    with pytest.raises(ValueError, match="most"):
        FinishChecks(Environment(), [], most=0)


# --- how a run can end ------------------------------------------------------------------
class _Stops(Hooks):
    def on_result(self, step: Any, memory: Memory) -> None:
        raise StopRun("enough")


class _Fails(Hooks):
    def on_result(self, step: Any, memory: Memory) -> None:
        raise RuntimeError("a hook broke")


def _ends() -> dict[str, Callable[[Agent], Any]]:
    def cancelled(agent: Agent) -> None:
        agent.hooks.append(_Calls(agent.cancel))

    def budgeted(**limits: Any) -> Callable[[Agent], None]:
        return lambda agent: setattr(agent, "budget", Budget(**limits))

    return {
        "finished": lambda agent: setattr(agent, "generate_response", ScriptedModel([FINISH])),
        "stopped": lambda agent: agent.hooks.append(_Stops()),
        "failed": lambda agent: agent.hooks.append(_Fails()),
        "cancelled": cancelled,
        "max_iterations": budgeted(max_iterations=2),
        "max_seconds": budgeted(max_seconds=1e-9),
        "no_valid_action": lambda agent: setattr(agent, "generate_response", ScriptedModel(["no action"] * 50)),
        "model_failed": lambda agent: setattr(agent, "generate_response", ScriptedModel([])),
    }


class _Calls(Hooks):
    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def on_result(self, step: Any, memory: Memory) -> None:
        self.act()


@pytest.mark.parametrize("status", list(_ends()))
def test_every_end_is_in_the_log(tmp_path: Path, status: str) -> None:
    """Beside those tested where they come from: paused, environment_lost, and the limits of tokens and cost."""
    with EventLog(tmp_path / "runs.db") as log, log.begin("r") as writer:
        agent = agent_of([THINK] * 50)
        _ends()[status](agent)
        begin(agent, writer, "t")
        try:
            run = agent.execute("t")
        except RuntimeError:
            assert status == "failed"
            assert agent.last_run is not None
            run = agent.last_run
        record = record_of(log, "r")
        assert (run.status.value, record.status, record.reason) == (status, status, run.reason)
        assert record.messages == run.memory.items


def test_a_registry_of_ones_own_may_ask() -> None:
    registry = ActionRegistry([*standard_registry().get_actions(), ask_user_action(lambda q: "blue")])
    run = agent_of([{"tool": "ask_user", "args": {"question": "?"}}, FINISH], registry=registry).execute("t")
    assert answered(run) == "blue"


def test_each_run_has_all_of_the_refusals_of_a_check() -> None:
    environment = Environment()
    check = CheckedFinish([lambda _, __: Finding(False, "not yet")], environment=environment, most=1)
    agent = agent_of([FINISH] * 4, environment, layers=[check])
    assert [agent.execute("t").iterations for _ in range(2)] == [2, 2]
