"""The rules of the plan as properties, and the kit that a model keeps it with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent import ActionRegistry, Budget, Goal, RunStatus, ScriptedModel
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from agent.hub import AgentSpec, Hub, Setting, build
from agent.tools.plan import PlanKit, status
from agent.tools.plan_tree import MAX_DEPTH, MAX_TASKS, Plan, Task, TaskState, task_of
from sandbox.errors import SandboxError
from sandbox.testing import FakeEnvironment

STATES = st.sampled_from(list(TaskState))
GOALS = st.text("abc ", min_size=1, max_size=6).map(str.strip).filter(bool)
TASKS = st.recursive(
    st.fixed_dictionaries({"goal": GOALS, "state": STATES}),
    lambda inner: st.fixed_dictionaries(
        {
            "goal": GOALS,
            "state": STATES,
            "subtasks": st.lists(inner, max_size=3, unique_by=lambda t: t["goal"].casefold().split()[0]),
        }
    ),
    max_leaves=6,
)


def is_refused(plan: Plan, parent: str, task: Task) -> bool:
    """Whether there is an open task of that goal beside it, or it is too deep, or one too many; a closed one may be done again."""
    beside = plan.task(parent).subtasks if parent else plan.tasks
    twin = any(t.goal.casefold().split() == task.goal.casefold().split() for t in beside if not t.state.closed)
    ids = Plan((task,)).ids()
    above = len(parent.split(".")) if parent else 0
    return twin or above + max(len(i.split(".")) for i in ids) > MAX_DEPTH or len(plan.ids()) + len(ids) > MAX_TASKS


def followed(state: TaskState, above: TaskState) -> TaskState:
    """What becomes of a task in one that was put into the state ``above``, as a table."""
    if above is TaskState.in_progress or state in (TaskState.verified, TaskState.abandoned):
        return state
    if above is TaskState.open:
        return TaskState.open if state is TaskState.in_progress else state
    if state is TaskState.completed:
        return TaskState.verified if above is TaskState.verified else state
    return above


class Plans(RuleBasedStateMachine):
    """Any sequence of additions and changes, those refused among them."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = Plan()

    @rule(data=TASKS, at=st.integers(0, 20))
    def add(self, data: dict[str, Any], at: int) -> None:
        ids = ["", *self.plan.ids()]
        parent = ids[at % len(ids)]
        before = dict(self.plan.walk())
        refused = is_refused(self.plan, parent, task_of(data))
        try:
            self.plan, ident = self.plan.add(parent, task_of(data))
        except SandboxError:
            assert refused
            assert dict(self.plan.walk()) == before
            return
        assert not refused
        assert self.plan.task(ident).goal == data["goal"]
        for key, task in before.items():
            if not task.state.closed and not ident.startswith(f"{key}."):
                assert self.plan.task(key) == task  # tasks elsewhere are as they were

    @rule(state=STATES, at=st.integers(0, 20))
    def modify(self, state: TaskState, at: int) -> None:
        ids = self.plan.ids()
        if not ids:
            return
        ident = ids[at % len(ids)]
        before = dict(self.plan.walk())
        self.plan = self.plan.modify(ident, state)
        after = dict(self.plan.walk())
        assert list(after) == list(before)
        assert {k: t.goal for k, t in after.items()} == {k: t.goal for k, t in before.items()}
        held = state is TaskState.open or after[ident].state is state
        assert held
        for key in before:
            inside, around = key.startswith(f"{ident}."), ident.startswith(f"{key}.")
            if not inside and not around and key != ident:
                assert after[key].state is before[key].state
            if inside:
                assert after[key].state is followed(before[key].state, state)
            if around and state.closed and not before[key].state.closed:
                assert not after[key].state.closed  # nothing is closed in passing

    @invariant()
    def states_are_true(self) -> None:
        for _, task in self.plan.walk():
            if task.state.closed:
                assert all(t.state.closed for t in task.subtasks)
            if any(t.state is TaskState.in_progress for t in task.subtasks):
                assert task.state is TaskState.in_progress
        assert self.plan.closed == bool(self.plan.tasks and not self.plan.unfinished())

    @invariant()
    def the_current_task_is_the_deepest_in_progress(self) -> None:
        found = self.plan.current()
        working = [key for key, t in self.plan.walk() if t.state is TaskState.in_progress]
        assert (found is None) == (not working)
        if found is not None:
            ident, task = found
            assert task.state is TaskState.in_progress
            assert not [t for t in task.subtasks if t.state is TaskState.in_progress]
            assert ident == next(key for key in working if not any(other.startswith(f"{key}.") for other in working))

    @invariant()
    def it_survives_being_written_down(self) -> None:
        assert Plan.from_dict(json.loads(json.dumps(self.plan.to_dict()))) == self.plan
        assert self.plan.to_text().count("\n") + 1 == max(len(self.plan.ids()), 1)
        assert status(self.plan).endswith(".")


TestPlans = pytest.mark.exhaustive(Plans.TestCase)
TestPlans.settings = settings(max_examples=50, deadline=None)


@given(st.text("0123456789.-x ", max_size=8))
def test_an_unknown_id_is_told_with_those_there_are(ident: str) -> None:
    plan, _ = Plan().add("", Task("a", subtasks=(Task("b"),)))
    if ident in plan.ids():
        return
    with pytest.raises(SandboxError) as caught:
        plan.modify(ident, TaskState.open)
    assert caught.value.hint == "The tasks are 0, 0.0."


def test_states_of_new_tasks_are_honoured() -> None:
    data = {
        "goal": "a",
        "subtasks": [
            {"goal": "b", "state": "verified"},
            {"goal": "c", "subtasks": [{"goal": "d", "state": "in_progress"}]},
        ],
    }
    plan, _ = Plan().add("", task_of(data))
    assert plan.to_text() == "0 [in_progress] a\n  0.0 [verified] b\n  0.1 [in_progress] c\n    0.1.0 [in_progress] d"


def test_a_parent_is_neither_closed_nor_downgraded_in_passing() -> None:
    plan, _ = Plan().add("", task_of({"goal": "a", "subtasks": ["b", "c"]}))
    plan = plan.modify("0.0", TaskState.verified).modify("0", TaskState.in_progress).modify("0.1", TaskState.completed)
    assert [t.state.value for _, t in plan.walk()] == ["in_progress", "verified", "completed"]
    assert "All its subtasks are closed" in status(plan)
    plan = plan.modify("0", TaskState.completed)
    assert [t.state.value for _, t in plan.walk()] == ["completed", "verified", "completed"]
    assert plan.closed
    plan, ident = plan.add("0", Task("again"))
    assert (ident, plan.task("0").state.value, plan.closed) == ("0.2", "open", False)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"goal": ""}, "not a valid goal"), ({"goal": "a\nb"}, "not a valid goal"),
        ({"goal": "a" * 2000}, "not a valid goal"), ({"goal": 3}, "not a task"),
        ({"goal": "a", "state": "done"}, "no state"), ({"goal": "a", "subtasks": "bc"}, "not a task"), (7, "not a task"),
        ({"goal": "a", "subtasks": ["b", " B "]}, "given twice"), ({"goal": "a", "more": 1}, "not a task"),
    ],
)  # fmt: skip
def test_what_is_no_task_is_refused(data: Any, why: str) -> None:
    with pytest.raises(SandboxError, match=why):
        Plan().add("", task_of(data))


def test_a_plan_is_bounded() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH):
        deep = {"goal": "y", "subtasks": [deep]}
    with pytest.raises(SandboxError, match="deep"):
        task_of(deep)
    plan = Plan(tuple(Task(str(n)) for n in range(MAX_TASKS)))
    with pytest.raises(SandboxError, match=str(MAX_TASKS)):
        plan.add("", Task("one more"))
    with pytest.raises(SandboxError, match="already exists, as 3"):
        plan.add("", Task(" 3 "))


def agent(script: list[Any], **spec: Any) -> Any:
    fields: dict[str, Any] = {
        "goals": (Goal("g"),), "actions": ("plan", "think", "finish"), "middleware": ("finish_when_plan_closed",), **spec,
    }  # fmt: skip
    made = AgentSpec(name="p", description="d", **fields)
    brain = ScriptedModel(script)
    return build(
        made, Setting(environment=FakeEnvironment(), hub=Hub(), brain=brain, budget=Budget(max_iterations=9))
    ), brain


def test_the_run_ends_without_a_call_when_the_plan_is_closed() -> None:
    made, brain = agent([
        {"tool": "add_task", "args": {"parent": "", "goal": "a", "subtasks": ["b"]}},
        {"tool": "finish", "args": {"summary": "too early"}},
        {"tool": "modify_task", "args": {"task_id": "0.7", "state": "completed"}},
        {"tool": "modify_task", "args": {"task_id": "0", "state": "done"}},
        {"tool": "modify_task", "args": {"task_id": "0", "state": "completed"}},
    ])  # fmt: skip
    run = made.execute("do it")
    assert (run.status, run.iterations, len(brain.prompts)) == (RunStatus.finished, 6, 5)
    codes = [(step.envelope or {}).get("code") for step in run.steps]
    assert codes == [None, "tasks_open", "invalid_arguments", "invalid_arguments", None, None]
    assert run.steps[1].envelope["error"] == "These tasks of the plan are open: 0 (a), 0.0 (b)."
    assert run.steps[2].envelope["hint"] == "The tasks are 0, 0.0."
    assert "0.0 [completed] b" in run.result["summary"]
    last = [str(prompt.messages[-1]["content"]) for prompt in brain.prompts]
    assert "There is no plan yet" in last[0]
    assert "Begin by looking around" in last[0]
    assert "0 [open] a\n  0.0 [open] b\nNo task is in progress" in last[1]
    assert "add_task" not in last[4].split("# Environment now")[0]


def test_a_second_task_begins_with_an_empty_plan() -> None:
    steps = [
        {"tool": "add_task", "args": {"parent": "", "goal": "a"}},
        {"tool": "modify_task", "args": {"task_id": "0", "state": "abandoned"}},
    ]
    made, brain = agent([*steps, *steps])
    assert made.execute("one").ok
    assert made.execute("two").ok
    assert brain.remaining == 0


def test_a_closed_plan_is_offered_once_and_a_second_run_has_its_own_try() -> None:
    class Refuses(Layer):
        def __init__(self) -> None:
            self.refused = 0

        def around_do(self, call: Call) -> Flow:
            if call.name != "finish" or self.refused % 2:
                self.refused += call.name == "finish"
                return (yield call)
            self.refused += 1
            return {"tool_executed": False, "error": "not yet", "code": "finish_refused", "hint": ""}

    steps = [
        {"tool": "add_task", "args": {"parent": "", "goal": "a"}},
        {"tool": "modify_task", "args": {"task_id": "0", "state": "abandoned"}},
        {"tool": "finish", "args": {"summary": "in words of the model"}},
    ]
    made, brain = agent([*steps, *steps])
    made.layers = [*made.layers, Refuses()]
    for task in ("one", "two"):
        run = made.execute(task)
        assert [step.tool for step in run.steps] == ["add_task", "modify_task", "finish", "finish"]
        assert run.result == {"summary": "in words of the model"}
    assert brain.remaining == 0


def test_an_agent_with_other_results_is_asked_for_them() -> None:
    outputs = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    made, _ = agent(
        [
            {"tool": "add_task", "args": {"parent": "", "goal": "a"}},
            {"tool": "modify_task", "args": {"task_id": "0", "state": "verified"}},
            {"tool": "finish", "args": {"answer": "42"}},
        ],
        outputs=outputs,
    )
    assert made.execute("q").result == {"answer": "42"}
    with pytest.raises(SandboxError, match="needs a plan"):
        agent([], actions=("finish",))


def test_the_kit_is_restored_from_its_snapshot() -> None:
    kit = PlanKit(Setting(environment=FakeEnvironment(), hub=Hub()))
    registry = ActionRegistry(kit.actions())
    add = registry.get_action("add_task")
    assert add is not None
    add.execute(parent="", goal="a", subtasks=[{"goal": "b", "state": "in_progress"}])
    kit.did("run")
    other = PlanKit(Setting(environment=FakeEnvironment(), hub=Hub()))
    other.restore(json.loads(json.dumps(kit.snapshot())))
    assert other.describe() == kit.describe()
    for wrong in (None, {}, {"tasks": 3}, {"tasks": [{"goal": "a", "state": "x"}]}, [1]):
        with pytest.raises(ValueError, match="not a plan"):
            other.restore(wrong)
