"""Environments around environments, kits, and building an agent from a spec."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import Action, Agent, Budget, Goal, ScriptedModel
from agent.core.environment_wrapper import WrappedEnvironment
from agent.core.kits import EquippedEnvironment, Kit
from agent.hub import AgentSpec, Hub, Setting, build
from agent.hub.templates import filled
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.environment.methods import OperationMethods
from sandbox.errors import ErrorCode, SandboxError
from sandbox.state.methods import StateMethods


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


class Counter(Kit):
    """Counts."""

    name = "counter"

    def __init__(self) -> None:
        self.count = 0
        self._action = Action("count", self._up, "Count one up.")

    def _up(self) -> int:
        self.count += 1
        return self.count

    def actions(self) -> Sequence[Action]:
        return (self._action,)

    def describe(self) -> Mapping[str, str]:
        return {"count": str(self.count)}


def spec(**fields: Any) -> AgentSpec:
    given = {"name": "one", "description": "One.", "goals": (Goal("Do it."),), "actions": ("think", "finish"), **fields}
    return AgentSpec(**given)


def setting(env: Environment, *steps: Any, **fields: Any) -> Setting:
    return Setting(environment=env, hub=Hub(), brain=ScriptedModel(steps), **fields)


def test_everything_of_an_environment_is_the_inner_ones() -> None:
    """A method that the base class answers for itself would answer for a sandbox that is not there."""
    for kind in (Environment, StateMethods):
        for name, member in vars(kind).items():
            if not name.startswith("_") and callable(member) and name not in vars(OperationMethods):
                assert name in vars(WrappedEnvironment) or name == "format_result", name


def test_a_wrapped_environment_does_what_the_inner_one_does(local: LocalEnvironment, tmp_path: Path) -> None:
    env = WrappedEnvironment(local)
    assert env.run("printf hello").unwrap().output == "hello"
    env.upload(b"text", "a.txt").unwrap()
    mark = env.mark().unwrap().id
    env.write("b.txt", "more").unwrap()
    assert [c.path for c in env.changes(mark).unwrap().changes] == ["b.txt"]
    assert env.download("a.txt").unwrap().content == b"text"
    assert env.describe() == local.describe()
    assert env.limits == local.limits  # of its class only
    env.approver = lambda name, args: True
    assert local.approver is env.approver
    local.approver = None
    env.secret("TOKEN", "a-long-secret")
    assert "a-long-secret" not in str(env.execute_action(Action("leak", lambda: "a-long-secret", "Leaks."), {}))
    with pytest.raises(AttributeError):
        _ = env.nonsense


def test_signatures_are_the_inner_ones() -> None:
    for name in ("execute", "execute_action", "perform", "download", "describe"):
        inner, outer = (inspect.signature(getattr(kind, name)) for kind in (Environment, WrappedEnvironment))
        assert list(inner.parameters) == list(outer.parameters), name


def test_a_kit_is_described_and_never_remembered(local: LocalEnvironment) -> None:
    env = EquippedEnvironment(local, [Counter()])
    (count,) = env.kits[0].actions()
    assert env.execute_action(count, {})["result"] == 1
    assert env.describe()["count"] == "1"


def test_a_kit_objects_to_the_end_in_a_run_and_without_one(local: LocalEnvironment) -> None:
    class Objecting(Kit):
        name = "objecting"
        left = 4

        def objection(self, action: str) -> SandboxError | None:
            self.left -= 1
            return SandboxError(ErrorCode.io_error, f"{action} comes too early.", "Go on.") if self.left > 0 else None

    end = Action("end", lambda: "over", "Ends.", terminal=True)
    env = EquippedEnvironment(local, [Objecting()])
    assert env.execute_action(end, {})["code"] == "io_error"
    assert env.execute_action(end, None)["code"] == "io_error"
    assert "code" not in env.execute_action(Action("other", lambda: 1, "Goes on."), None)
    brain = ScriptedModel([{"tool": "end", "args": {}}] * 2)
    run = Agent("g", action_registry=[end], generate_response=brain, environment=env).execute("t")
    assert [(step.envelope or {}).get("error") for step in run.steps] == ["end comes too early.", None]
    assert run.ok


def test_an_agent_is_built_and_runs(local: LocalEnvironment) -> None:
    finish = {"tool": "finish", "args": {"answer": 6}}
    outputs = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    made = build(
        spec(
            outputs=outputs,
            goals=(Goal(1, "task", "Add {{ inputs.a }} and 4."),),
            inputs={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            max_iterations=3,
        ),
        setting(local, {"tool": "read", "args": {}}, {"tool": "finish", "args": {"answer": "six"}}, finish, inputs={"a": 2}),
    )
    run = made.execute("go")
    assert made.goals[0].description == "Add 2 and 4."
    assert [step.envelope["code"] for step in run.steps[:2] if step.envelope] == ["unknown_tool", "invalid_arguments"]
    assert (run.ok, run.result) == (True, {"answer": 6})
    assert made.budget.max_iterations == 3
    assert build(spec(max_iterations=9), setting(local, budget=Budget(max_iterations=5))).budget.max_iterations == 5


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"actions": ("think",)}, "invalid_configuration", "ends a run"),
        ({"actions": ("nonsense", "finish")}, "invalid_configuration", "nonsense"),
        ({"language": "latin"}, "invalid_configuration", "latin"),
        ({"memory": "none"}, "invalid_configuration", "none"),
        ({"memory_options": {"limit": 0}}, "invalid_configuration", "limit"),
        ({"middleware": ("nonsense",)}, "invalid_configuration", "nonsense"),
        ({"goals": (Goal("{{ inputs.b }}"),)}, "invalid_configuration", "b"),
        ({"inputs": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}, "invalid_arguments", "a"),
    ],
)
def test_what_cannot_be_built_is_said(
    local: LocalEnvironment, fields: dict[str, Any], code: str, named: str
) -> None:
    with pytest.raises(SandboxError) as caught:
        build(spec(**fields), setting(local))
    assert caught.value.code.value == code
    assert named in caught.value.message
    assert caught.value.hint


def test_an_agent_without_a_brain_says_what_to_give(local: LocalEnvironment) -> None:
    with pytest.raises(SandboxError, match="needs a model") as caught:
        build(spec(), Setting(environment=local, hub=Hub()))
    assert "--model" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["{{ ''.__class__.__mro__ }}", "{{ inputs.__class__ }}", "{% for x in", "{{ agent.nothing }}", "{{ 1/0 }}"],
)
def test_a_template_reaches_nothing_but_its_inputs(text: str) -> None:
    with pytest.raises(SandboxError) as caught:
        filled(text, {"a": 1}, spec())
    assert caught.value.code is ErrorCode.invalid_configuration


def test_a_hub_knows_names_and_what_was_meant() -> None:
    hub = Hub([spec(name="planner"), spec(name="codeact")])
    assert hub.names() == ["codeact", "planner"]
    with pytest.raises(SandboxError) as caught:
        hub.load("planer")
    assert "'planner'" in caught.value.hint
    with pytest.raises(ValueError, match="already registered"):
        hub.register(spec(name="planner"))
