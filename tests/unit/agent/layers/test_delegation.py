"""Delegation: what is handed on, what is left for it, what comes back, and that nothing is started that must not be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Budget, Goal, Hooks, Memory, RunStatus, ScriptedModel, Step, Usage
from agent.core.agent import Agent
from agent.core.budget import Meter, charge, metering
from agent.core.run import AgentRun
from agent.core.status import StopRun
from agent.errors import AgentErrorCode
from agent.hub import AgentSpec, Hub, Setting, build
from agent.layers.delegation import words_of
from agent.record import lineage
from sandbox import LocalEnvironment
from sandbox.envelope import Failure
from sandbox.errors import SandboxError
from sandbox.testing import FakeEnvironment

TASK = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"], "additionalProperties": False}


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


@pytest.fixture
def fake() -> Iterator[FakeEnvironment]:
    with FakeEnvironment() as env:
        yield env


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def delegate(agent: str, **inputs: Any) -> dict[str, Any]:
    return call("delegate", agent=agent, inputs=inputs)


FINISH = call("finish", summary="done")


def spec(name: str, *steps: Any, **fields: Any) -> AgentSpec:
    """An agent that follows a script, or asks the caller's brain if it has none."""
    brain = (lambda setting: ScriptedModel(steps)) if steps else None
    given = {"description": f"Is {name}.", "actions": ("think", "run", "finish", "reject"), "inputs": TASK, **fields}
    return AgentSpec(name=name, goals=(Goal("Do it."),), brain=brain, **given)


def boss(*steps: Any, **fields: Any) -> AgentSpec:
    return spec("boss", *steps, **{"actions": ("delegate", "finish", "run"), "inputs": {}, **fields})


def ran(env: Any, first: AgentSpec, *others: AgentSpec, **fields: Any) -> AgentRun:
    setting = Setting(environment=env, hub=Hub([first, *others]), **fields)
    return build(first, setting).execute("go")


def envelope(run: AgentRun, step: int = 0) -> dict[str, Any]:
    found = run.steps[step].envelope
    assert found is not None
    return found


def test_a_child_that_finishes_is_a_success(fake: FakeEnvironment) -> None:
    outputs = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    worker = spec("worker", call("think", thought="x"), call("finish", answer=4), outputs=outputs)
    run = ran(fake, boss(delegate("worker", task="2+2"), FINISH), worker)
    assert run.status is RunStatus.finished
    result = envelope(run)["result"]
    assert envelope(run)["tool_executed"] is True
    assert (result["status"], result["outputs"]) == ("finished", {"answer": 4})
    assert result["summary"] == "worker ended as finished: finish ended the run."  # it says nothing of its own
    assert result["usage"]["steps"] == 2
    assert run.iterations == 2  # a child's steps are its own


def test_what_a_child_is_told(fake: FakeEnvironment) -> None:
    seen: list[Any] = []

    def look(prompt: Any) -> Any:
        seen.append(prompt)
        return FINISH

    worker = spec("worker", look, language="json")
    ran(fake, boss(delegate("worker", task="the words"), FINISH), worker, budget=Budget(max_seconds=60, max_tokens=900))
    said = str(seen[0])
    assert "the words" in said
    assert "The agent boss gave you this task" in said
    assert "This is step 1 of 50" in said
    assert "60 seconds, 900 tokens left" in said
    assert "go" not in [m["content"] for m in seen[0].messages if m["role"] == "user"]  # nothing of the boss's memory


@pytest.mark.parametrize(
    ("steps", "status", "hinted"),
    [
        ([call("reject", reason="makes no sense")], "rejected", "Change the inputs or choose another agent"),
        ([call("think", thought="x")] * 3, "max_iterations", "smaller task"),
        ([ValueError("broken")], "model_failed", "have it look first at what is already there"),
        (["nothing"] * 8, "no_valid_action", "have it look first at what is already there"),
    ],
)
def test_a_child_that_does_not_finish_is_a_failure(
    fake: FakeEnvironment, steps: list[Any], status: str, hinted: str
) -> None:
    iterations = 3 if status == "max_iterations" else 20
    run = ran(fake, boss(delegate("worker", task="x"), FINISH), spec("worker", *steps, max_iterations=iterations))
    answer = envelope(run)
    assert run.status is RunStatus.finished
    assert (answer["tool_executed"], answer["code"], answer["result"]["status"]) == (False, "delegate_not_finished", status)
    assert hinted in answer["hint"]
    assert f"did not finish ({status}): " in answer["error"]
    assert answer["result"]["summary"] == ""  # what the message says is not repeated
    if status == "rejected":
        assert answer["result"]["outputs"] == {"reason": "makes no sense"}


def test_what_a_child_that_does_not_finish_left_is_shown_in_words(fake: FakeEnvironment) -> None:
    """A dump of JSON stood after the words, with 0 calls and 0 tokens beside 8 steps."""
    shown: list[str] = []

    def look(prompt: Any) -> Any:
        shown.extend(message["content"] for message in prompt.messages if message["role"] == "tool")
        return FINISH

    ran(fake, boss(delegate("worker", task="x"), look), spec("worker", *["nothing"] * 8))
    assert "ERROR delegate_not_finished: The agent worker did not finish (no_valid_action): 8 replies in a row" in shown[0]
    assert shown[0].endswith("; or finish and say so.\n[it took 8 steps]")
    assert "EFFECTS" not in shown[0]
    ran(fake, boss(delegate("worker", task="x"), look), spec("worker", call("reject", reason="makes no sense")))
    assert shown[1].count("makes no sense") == 1
    assert "{" not in shown[1]


def test_words_of_what_was_handed_in() -> None:
    outputs = {"summary": "Half of it.", "left": ["b"], "reason": "late"}
    words = words_of({"summary": "Half of it.", "outputs": outputs, "usage": {"steps": 1}}, "It is late.")
    assert words == 'Its summary: Half of it.\nIts left: ["b"]\n[it took 1 step]'


@pytest.mark.parametrize("result", [{"summary": 1}, {"outputs": [1], "usage": None}, {"usage": {"steps": "many"}}])
def test_what_a_log_of_somebody_else_says_was_handed_in_fails_no_prompt(result: dict[str, Any]) -> None:
    """To show such an answer raised KeyError."""
    assert "it took" not in words_of(result, "It is late.")


def test_a_lost_sandbox_ends_the_run_above_too(fake: FakeEnvironment) -> None:
    def lose(prompt: Any) -> Any:
        fake.lose()
        return call("run", command="true")

    run = ran(fake, boss(delegate("worker", task="x"), FINISH), spec("worker", lose))
    assert (run.status, run.iterations) == (RunStatus.environment_lost, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"agent": "nobody", "inputs": {}}, "invalid_arguments", "nobody"),
        ({"agent": "boss", "inputs": {}}, "invalid_arguments", "boss"),  # itself
        ({"agent": "worker", "inputs": {}}, "invalid_arguments", "needs task"),
        ({"agent": "worker", "inputs": {"task": 5}}, "invalid_arguments", "task"),
        ({"agent": "worker", "inputs": {"task": "x", "more": 1}}, "invalid_arguments", "more"),
        ({"agent": "worker", "inputs": "x"}, "invalid_arguments", "inputs"),
        ({"agent": "worker"}, "invalid_arguments", "inputs"),
        ({"agent": "plain", "inputs": {"tsk": "x"}}, "invalid_arguments", "tsk"),
        ({"agent": "plain", "inputs": {"task": 1}}, "invalid_arguments", "task"),
    ],
)
def test_nothing_is_started_for_inputs_that_do_not_fit(
    fake: FakeEnvironment, arguments: dict[str, Any], code: str, said: str
) -> None:
    def started(prompt: Any) -> Any:
        raise AssertionError("it was started")

    others = spec("worker", started), spec("plain", started, inputs={})
    run = ran(fake, boss(call("delegate", **arguments), FINISH), *others)
    answer = envelope(run)
    assert (answer["tool_executed"], answer["code"]) == (False, code)
    assert said in answer["error"]
    assert "schema" in answer
    assert run.usage.calls == 0


def test_an_agent_without_inputs_takes_a_task(fake: FakeEnvironment) -> None:
    told: list[str] = []

    def look(prompt: Any) -> Any:
        told.append(prompt.messages[1]["content"])
        return FINISH

    ran(fake, boss(delegate("plain", task="words"), delegate("plain"), FINISH), spec("plain", look, look, inputs={}))
    assert told == ["words", "Is plain."]


def test_depth_is_bounded_and_the_one_at_the_bottom_is_told(fake: FakeEnvironment) -> None:
    seen: list[Any] = []

    def look(prompt: Any) -> Any:
        seen.append(prompt)
        return FINISH

    down = {"actions": ("delegate", "finish"), "inputs": {}}
    agents = [spec(f"a{n}", delegate(f"a{n + 1}"), FINISH, **down) for n in range(3)] + [spec("a3", look, **down)]
    run = ran(fake, *agents)
    assert run.ok
    assert [a["name"] for a in seen[0].metadata["actions"]] == ["finish"]
    assert "there are already 3 agents above you" in str(seen[0])


def test_two_that_delegate_to_each_other_end(fake: FakeEnvironment) -> None:
    one = spec("one", delegate("two"), FINISH, actions=("delegate", "finish"), inputs={})
    two = spec("two", delegate("one"), FINISH, actions=("delegate", "finish"), inputs={})
    run = ran(fake, one, two)
    assert run.ok
    assert envelope(run)["tool_executed"] is True


def test_the_tool_names_agents_with_their_inputs(fake: FakeEnvironment) -> None:
    fields = {"type": "object", "properties": {"task": {"type": "string", "description": "What to do."}, "n": {"type": "integer"}}}
    worker = spec("worker", FINISH, inputs={**fields, "required": ["task"]})
    hidden = spec("hidden", FINISH, delegable=False)
    elsewhere = spec("elsewhere", FINISH, image="other/image")
    fake.image = "gamebox/base"  # type: ignore[attr-defined]
    setting = Setting(environment=fake, hub=Hub([boss(FINISH), worker, hidden, elsewhere]))
    action = build(setting.hub.load("boss"), setting).actions.get_action("delegate")
    assert action is not None
    assert action.parameters["properties"]["agent"]["enum"] == ["worker"]
    assert "- worker: Is worker. Inputs: task (string): What to do, n (integer, optional)." in action.description
    named = boss(FINISH, kit_options={"delegate": {"agents": ["hidden"]}})
    action = build(named, setting).actions.get_action("delegate")
    assert action is not None
    assert action.parameters["properties"]["agent"]["enum"] == ["hidden"]
    with pytest.raises(SandboxError, match="no agent 'nobody'"):
        build(boss(FINISH, kit_options={"delegate": {"agents": ["nobody"]}}), setting)
    with pytest.raises(SandboxError, match="max_depth"):
        build(boss(FINISH, kit_options={"delegate": {"max_depth": 0}}), setting)


def priced(reply: Any, cost: float, failed: int = 0) -> Callable[[Any], Any]:
    def answer(prompt: Any) -> Any:
        charge(Usage(calls=1, failed_calls=failed, input_tokens=10, cost_usd=cost))
        return reply

    return answer


def test_what_a_child_uses_counts_above_failed_calls_too(fake: FakeEnvironment) -> None:
    worker = spec("worker", priced(call("think", thought="x"), 0.25, failed=1), priced(FINISH, 0.25))
    run = ran(fake, boss(priced(delegate("worker", task="x"), 0.1), priced(FINISH, 0.1)), worker)
    assert (run.usage.calls, run.usage.failed_calls, run.usage.input_tokens) == (4, 1, 40)
    assert run.usage.cost_usd == pytest.approx(0.7)
    assert envelope(run)["result"]["usage"]["cost_usd"] == 0.5


def test_a_limit_holds_for_the_whole_tree(fake: FakeEnvironment) -> None:
    down = {"actions": ("delegate", "finish"), "inputs": {}}
    think = priced(call("think", thought="x"), 0.3)
    bottom = spec("bottom", *[think] * 9, inputs={})
    middle = spec("middle", priced(delegate("bottom"), 0.3), priced(FINISH, 0.3), **down)
    first = boss(priced(delegate("middle"), 0.3), priced(FINISH, 0.3))
    run = ran(fake, first, middle, bottom, budget=Budget(max_cost_usd=1.0))
    assert run.status is RunStatus.max_cost
    assert run.usage.cost_usd == pytest.approx(1.2)  # one call over, as a limit is
    assert envelope(run)["result"]["status"] == "max_cost"


def test_where_nothing_is_left_nothing_is_started(fake: FakeEnvironment) -> None:
    def spend(prompt: Any) -> Any:
        charge(Usage(calls=1, cost_usd=2.0))
        return delegate("worker", task="x")

    def started(prompt: Any) -> Any:
        raise AssertionError("it was started")

    run = ran(fake, boss(spend, FINISH), spec("worker", started), budget=Budget(max_cost_usd=1.0))
    assert envelope(run)["code"] == "delegation_refused"
    assert run.status is RunStatus.max_cost


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10)), max_size=20), st.floats(0.1, 20))
@settings(deadline=None)
def test_meters_of_a_tree_add_up(charges: list[tuple[int, float]], limit: float) -> None:
    """Whatever is charged at whatever depth, each meter has what it and all below it used, and the least limit holds."""
    meters = [Meter(Budget(max_cost_usd=limit if n == 0 else None)) for n in range(4)]
    for depth, cost in charges:
        _charged(meters[: depth + 1], cost)
    for n, meter in enumerate(meters):
        assert meter.usage.cost_usd == pytest.approx(sum(cost for depth, cost in charges if depth >= n))
    for depth in range(4):
        with _nested(meters[: depth + 1]):
            if meters[0].usage.cost_usd >= limit:
                with pytest.raises(StopRun):
                    meters[depth].check()
            else:
                meters[depth].check()


def _nested(meters: list[Meter]) -> Any:
    from contextlib import ExitStack

    stack = ExitStack()
    for meter in meters:
        stack.enter_context(metering(meter))
    return stack


def _charged(meters: list[Meter], cost: float) -> None:
    with _nested(meters):
        charge(Usage(cost_usd=cost))


def test_cancelling_reaches_all_below(local: LocalEnvironment) -> None:
    """From another thread, while the one at the bottom is at work: all three end, and nothing further is done."""
    started, done = threading.Event(), []

    def work(prompt: Any) -> Any:
        started.set()
        done.append(1)
        return call("run", command="sleep 0.05")

    down = {"actions": ("delegate", "finish"), "inputs": {}}
    bottom, middle = spec("bottom", *[work] * 400, inputs={}), spec("middle", delegate("bottom"), FINISH, **down)
    first = boss(delegate("middle"), FINISH)
    agent = build(first, Setting(environment=local, hub=Hub([first, middle, bottom]), budget=Budget(max_iterations=400)))
    thread = threading.Thread(target=agent.execute, args=("go",))
    thread.start()
    assert started.wait(30)
    agent.cancel()
    thread.join(30)
    assert not thread.is_alive()
    run = agent.last_run
    assert run is not None
    assert run.status is RunStatus.cancelled
    assert envelope(run)["result"]["status"] == "cancelled"
    assert len(done) < 400


def test_a_child_that_was_not_begun_is_cancelled_too_and_the_next_run_is_not(fake: FakeEnvironment) -> None:
    def worker_built(agent: Agent, setting: Setting) -> None:
        if setting.depth == 1 and not built:
            built.append(agent)
            parents[0].cancel()  # after it was built, before its first step

    built: list[Agent] = []
    parents: list[Agent] = []
    first = boss(delegate("worker", task="x"), delegate("worker", task="x"), FINISH, FINISH)
    setting = Setting(environment=fake, hub=Hub([first, spec("worker", FINISH)]), on_built=worker_built)
    parents.append(build(first, setting))
    run = parents[0].execute("go")
    assert (run.status, run.iterations) == (RunStatus.cancelled, 1)
    assert envelope(run)["result"]["status"] == "cancelled"
    assert parents[0].execute("again").ok


def test_ctrl_c_in_a_child_ends_all(fake: FakeEnvironment) -> None:
    def interrupt(prompt: Any) -> Any:
        raise KeyboardInterrupt

    first = boss(delegate("worker", task="x"), FINISH)
    agent = build(first, Setting(environment=fake, hub=Hub([first, spec("worker", interrupt)])))
    with pytest.raises(KeyboardInterrupt):
        agent.execute("go")
    assert agent.last_run is not None
    assert agent.last_run.status is RunStatus.cancelled


def test_a_child_has_sessions_of_its_own_and_the_same_files(local: LocalEnvironment) -> None:
    where = 'echo "$NAME ${PWD##*/}"; cat file 2>/dev/null'
    worker = spec(
        "worker",
        call("run", command=where),
        call("run", command="export NAME=worker; mkdir -p sub; cd sub; echo more > ../file"),
        call("run", command=where),
        call("run", command="echo $NAME", session="named"),
        FINISH,
    )
    look = call("run", command=where)
    first = boss(call("run", command="export NAME=boss"), delegate("worker", task="x"), look, delegate("worker", task="x"), FINISH)
    runs: dict[int, list[AgentRun]] = {}

    def built(agent: Agent, setting: Setting) -> None:
        class Ends(Hooks):
            def on_terminate(self, run: AgentRun) -> None:
                runs.setdefault(setting.depth, []).append(run)

        agent.hooks.append(Ends())

    setting = Setting(environment=local, hub=Hub([first, worker]), on_built=built)
    run = build(first, setting).execute("go")
    assert run.ok
    first_child, second_child = runs[1]
    outputs = [envelope(first_child, n)["result"]["output"] for n in (0, 2, 3)]
    base = envelope(run, 2)["result"]["output"].split()[1]
    assert outputs == [f" {base}\n", "worker sub\n", "\n"]
    assert envelope(run, 2)["result"]["output"] == f"boss {base}\nmore\n"  # its folder is where it was; the file is there
    assert envelope(second_child, 0)["result"]["output"] == f" {base}\nmore\n"  # the sessions before are forgotten


def test_lineage_tells_the_runs_apart(fake: FakeEnvironment) -> None:
    seen: list[lineage.Lineage | None] = []

    def look(prompt: Any) -> Any:
        seen.append(lineage.current())
        return FINISH

    down = {"actions": ("delegate", "finish"), "inputs": {}}
    first = boss(delegate("middle"), FINISH)
    middle = spec("middle", delegate("bottom"), FINISH, **down)
    with lineage.within("boss", "root") as top:
        run = ran(fake, first, middle, spec("bottom", look, inputs={}))
    assert lineage.current() is None
    assert (top.run_id, top.parent_id, top.depth) == ("root", None, 0)
    bottom = seen[0]
    assert bottom is not None
    assert (bottom.agent, bottom.depth) == ("bottom", 2)
    assert envelope(run)["result"]["run_id"] == bottom.parent_id
    assert len({bottom.run_id, bottom.parent_id, "root"}) == 3


def test_a_child_asks_the_same_user_and_has_the_same_brain(fake: FakeEnvironment) -> None:
    asked: list[Mapping[str, Any]] = []

    def built(agent: Agent, setting: Setting) -> None:
        asked.append({"ask": setting.ask_user, "brain": setting.brain, "depth": setting.depth, "inputs": setting.inputs})

    def ask(question: str) -> str:
        return f"answer to {question}"

    model = ScriptedModel([delegate("worker", task="x"), FINISH, FINISH])
    first = boss()
    setting = Setting(environment=fake, hub=Hub([first, spec("worker")]), brain=model, ask_user=ask, on_built=built)
    assert build(first, setting).execute("go").ok
    assert [a["depth"] for a in asked] == [0, 1]
    assert all(a["ask"] is ask and a["brain"] is model for a in asked)
    assert asked[1]["inputs"] == {"task": "x"}
    assert model.remaining == 0


def test_a_rejection_is_seen_by_those_that_watch(fake: FakeEnvironment) -> None:
    """A record must not miss the step that ends a run, whichever hook ends it."""
    seen: list[str | None] = []

    class Watch(Hooks):
        def on_result(self, step: Step, memory: Memory) -> None:
            seen.append(step.tool)

    rejecting = spec("one", call("reject", reason=""), call("reject", reason="no repository"))
    setting = Setting(environment=fake, hub=Hub(), inputs={"task": "x"}, hooks=(Watch(),))
    run = build(rejecting, setting).execute("go")
    assert (run.status, run.ok, run.result) == (RunStatus.rejected, False, {"reason": "no repository"})
    assert seen == ["reject", "reject"]
    assert envelope(run, 0)["code"] == "invalid_arguments"
    assert run.reason == "The agent rejected the task: no repository"


def test_a_setting_is_not_changed_by_building(fake: FakeEnvironment) -> None:
    setting = Setting(environment=fake, hub=Hub(), inputs={"task": "x"})
    before = replace(setting)
    build(spec("one", FINISH, read_only=True, actions=("read", "run", "finish")), setting)
    assert setting == before


def test_failures_are_of_the_closed_set() -> None:
    for code in ("delegation_refused", "delegate_not_finished", "read_only"):
        assert Failure[Any](AgentErrorCode(code), "x").to_dict()["code"] == code
