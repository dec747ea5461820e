"""The dummy does one of everything there is: every action of the hub, wherever it is registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent import Agent, RunStatus, ScriptedModel, hub
from agent.core.loop.hooks import Hooks, Step
from agent.core.run import AgentRun
from agent.hub import Setting, build, catalogue
from agent.hub.agents.dummy import first as dummy
from agent.hub.agents.dummy import old as dummy_old
from agent.hub.agents.dummy import second as dummy_second
from agent.hub.agents.dummy.expecting import Expected, ExpectingScript
from agent.memory import Memory
from agent.tools.sandbox_tools import HOST_ONLY
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.errors import SandboxError
from sandbox.operations import OPERATIONS

Kind = tuple[str, str]
# What a kit cannot be made without. One that needs more than a setting has to be named here.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    **next(spec.kit_options for spec in dummy_second.SPECS),
    "early": {"make": dummy_old.OldDummy},
    "late": {"make": dummy_old.OldDummy},
}


@pytest.fixture(scope="module")
def place() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as environment:
        yield environment


def names_of_the_hub() -> set[str]:
    """All that a spec can name as an action, as a spec is told that names another."""
    spec = hub.AgentSpec(name="a", description="A.", actions=("no such action",))
    with pytest.raises(SandboxError) as caught:
        build(spec, Setting(environment=Environment(), hub=hub.Hub(), brain=ScriptedModel([])))
    return set(caught.value.hint.removeprefix("Choose from: ").removesuffix(".").split(", "))


def kinds_of_the_hub(place: LocalEnvironment) -> set[Kind]:
    """Where an action is from, and its name."""
    assert {"think", "finish"} | set(catalogue.KITS) <= names_of_the_hub()
    found: set[Kind] = {("sandbox", name) for name in OPERATIONS if name not in HOST_ONLY}
    found |= {("hub", name) for name in names_of_the_hub() - set(OPERATIONS) - set(catalogue.KITS)}
    for name in catalogue.KITS:
        kit = catalogue.kit(name, Setting(environment=place, hub=hub.default()), OPTIONS.get(name, {}))
        found |= {(name, action.name) for action in kit.actions()}
        kit.close()
    return found


class Doing(Hooks):
    """Notes where the actions are from that one agent carries out. A failure counts where the script wants one."""

    def __init__(self, agent: Agent, done: set[Kind], ran: dict[str, RunStatus], name: str) -> None:
        self._done, self._ran, self._name = done, ran, name
        kits = getattr(agent.environment, "kits", ())
        self._from = {action.name: kit.name for kit in kits for action in kit.actions()}

    def on_result(self, step: Step, memory: Memory) -> None:
        """See the base class."""
        tool = str(step.tool)
        home = "sandbox" if tool in OPERATIONS else "hub"
        self._done.add((self._from.get(tool, home), tool))

    def on_terminate(self, run: AgentRun) -> None:
        """See the base class."""
        self._ran[self._name] = run.status


def performed(place: LocalEnvironment, spec: hub.AgentSpec, **fields: Any) -> tuple[AgentRun, set[Kind], dict[str, RunStatus]]:
    done: set[Kind] = set()
    ran: dict[str, RunStatus] = {}

    def watch(agent: Agent, setting: Setting) -> None:
        name = setting.spec.name if setting.spec is not None else "?"
        agent.hooks.insert(0, Doing(agent, done, ran, f"{name}{len(ran)}"))

    setting = Setting(environment=place, hub=hub.default(), on_built=watch, **fields)
    return build(spec, setting).execute("go"), done, ran


def test_the_dummy_does_every_action_that_is_registered_in_the_hub(place: LocalEnvironment) -> None:
    run, done, ran = performed(place, hub.load("dummy"))
    assert run.status is RunStatus.finished, run.reason
    # An agent of the early contract is given the same actions by the same code as one of the late contract.
    wanted = {("late" if home == "early" else home, name) for home, name in kinds_of_the_hub(place)}
    assert not wanted - done, f"the dummy does none of these: give it a step in agent/hub/agents: {sorted(wanted - done)}"
    assert done <= wanted
    assert len(ran) == 5  # itself, and four that it delegates to


def test_an_action_that_is_new_is_missed(place: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would fail: with a kit more, and with an action more in a kit."""
    from agent.tools.plan import PlanKit

    monkeypatch.setitem(catalogue.KITS, "second_plan", catalogue.KITS["plan"])
    assert {("second_plan", "add_task"), ("second_plan", "modify_task")} <= kinds_of_the_hub(place)
    before = PlanKit.actions
    monkeypatch.setattr(PlanKit, "actions", lambda self: [*before(self), _renamed(before(self)[0])])
    assert ("plan", "add_task_too") in kinds_of_the_hub(place)


def _renamed(action: Any) -> Any:
    from agent import Action

    return Action("add_task_too", action.execute, action.description, action.parameters)


def test_nobody_is_asked_by_the_dummy(place: LocalEnvironment) -> None:
    """It is to run where somebody sits at a terminal, too, without waiting for them."""
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return "yes"

    script = [s for s in dummy.script() if s.tool in ("message", "ask_user")]
    spec = replace(hub.load("dummy"), brain=lambda setting: ExpectingScript([*script, Expected("finish", {"summary": "x"})]))
    run, done, _ = performed(place, spec, ask_user=ask)
    assert run.status is RunStatus.finished, run.reason
    assert {("message", "message"), ("ask_user", "ask_user")} <= done
    assert asked == []


@pytest.mark.parametrize(("agent", "at"), [("dummy_second", 11), ("dummy_old", 3)])
def test_another_answer_in_a_part_is_told_by_the_whole(
    place: LocalEnvironment, monkeypatch: pytest.MonkeyPatch, agent: str, at: int
) -> None:
    if agent == "dummy_old":
        steps = [*dummy_old.STEPS]
        steps[at] = (*steps[at][:3], "three")
        monkeypatch.setattr(dummy_old, "STEPS", steps)
    else:
        steps_of_second = dummy_second.script()
        steps_of_second[at] = replace(steps_of_second[at], answer={"result": {"output": "eight\n"}})
        monkeypatch.setattr(dummy_second, "script", lambda: steps_of_second)
    run, _, _ = performed(place, hub.load("dummy"))
    assert run.status is RunStatus.unexpected
    assert ("eight" if agent == "dummy_second" else "read was answered with read: zero") in run.reason
    place.delete(dummy.FOLDER, recursive=True)
