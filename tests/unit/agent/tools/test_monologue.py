"""The parts of the monologue agent: hints that follow from the last step, recall as an action, examples among the goals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent import ActionRegistry, Agent, AgentLanguage, FunctionCallingLanguage, Goal, JsonLanguage, ScriptedModel
from agent.hub import AgentSpec, Hub, Setting, build
from agent.memory import Memory, RecallMemory, WindowMemory
from agent.tools.monologue import HINTS, MonologueKit
from agent.tools.recall import RecallKit
from sandbox import LocalEnvironment


@pytest.fixture(scope="module")
def env() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


def think(text: str = "hm") -> dict[str, Any]:
    return {"tool": "message", "args": {"content": text}}


def run(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "run", "args": {"command": command, **more}}


FINISH = {"tool": "finish", "args": {"summary": "done"}}


def agent_of(env: LocalEnvironment, *steps: Any, memory: Any = WindowMemory) -> tuple[Agent, ScriptedModel]:
    brain = ScriptedModel(steps)
    spec = AgentSpec(
        name="m", description="M.", goals=(Goal("Think."),), language="json",
        actions=("run", "read", "recall", "monologue", "finish"),
    )  # fmt: skip
    return build(spec, Setting(environment=env, hub=Hub(), brain=brain, new_memory=memory)), brain


def test_the_hint_follows_from_the_last_step(env: LocalEnvironment) -> None:
    steps = [think(), think(), run("true"), run("false"), {"tool": "read", "args": {"path": "none"}}, think(), FINISH]
    agent, brain = agent_of(env, *steps)
    assert agent.execute("x").ok
    hints = [str(prompt.messages[-1]["content"]).rpartition("## hint\n")[2] for prompt in brain.prompts]
    kinds = ["beginning", "thought", "thought long", "acted", "failed", "failed", "thought"]
    assert hints == [HINTS[kind] for kind in kinds]


def test_commands_in_the_background_are_shown_with_their_ids(env: LocalEnvironment) -> None:
    agent, brain = agent_of(env, run("sleep 77", background=True), FINISH)
    first = agent.execute("x").steps[0].envelope or {}
    ident = first["result"]["id"]
    assert f"{ident}: sleep 77" in str(brain.prompts[1].messages[-1]["content"])
    assert "sleep 77" not in str(brain.prompts[0].messages[-1]["content"])
    env.kill(ident).unwrap()


def test_the_state_of_the_kit_is_found_again(env: LocalEnvironment) -> None:
    setting = Setting(environment=env, hub=Hub())
    first, again = MonologueKit(setting), MonologueKit(setting)
    again.restore({**first.snapshot(), "last": "failed"})
    assert again.describe()["hint"] == HINTS["failed"]
    for state in (None, {"last": "x", "thoughts": 1}, {"last": "failed", "thoughts": "1"}):
        with pytest.raises(ValueError, match="not a state"):
            again.restore(state)


@pytest.mark.parametrize("memory", [Memory, lambda: WindowMemory(4), lambda: RecallMemory(WindowMemory(4))])
def test_recall_as_an_action_over_any_memory(env: LocalEnvironment, memory: Any) -> None:
    recall = {"tool": "recall", "args": {"query": "zebra giraffe"}}
    steps = [
        run("echo a zebra"), *[run(f"echo {n}") for n in range(6)], recall, recall, {"tool": "recall", "args": {"message": 3}},
        {"tool": "recall", "args": {"query": "elephant"}}, {"tool": "recall", "args": {}},
        {"tool": "recall", "args": {"message": 99}}, FINISH,
    ]  # fmt: skip
    agent, _ = agent_of(env, *steps, memory=memory)
    ran = agent.execute("Do it.")
    assert ran.ok, ran.reason
    first, second, whole, none, empty, wrong = (step.envelope or {} for step in ran.steps[7:13])
    numbers = [hit["message"] for hit in first["result"]["recalled"]]
    assert sorted(numbers) == [2, 3], "the call and its answer"
    assert [hit["message"] for hit in second["result"]["recalled"]] == numbers, "not what recall itself answered"
    assert "a zebra" in whole["result"]["recalled"][0]["text"]
    assert none["result"]["recalled"] == []
    assert "names or paths" in none["result"]["note"]
    assert empty["code"] == wrong["code"] == "invalid_arguments"
    assert "There is no message 99" in wrong["error"]


def test_recall_before_any_step_is_a_failure(env: LocalEnvironment) -> None:
    (action,) = RecallKit().actions()
    assert env.execute_action(action, {"query": "x"})["code"] == "invalid_arguments"


@pytest.mark.parametrize("language", [AgentLanguage(), JsonLanguage(), FunctionCallingLanguage()])
def test_examples_stand_after_the_goals_whatever_their_priority(env: LocalEnvironment, language: AgentLanguage) -> None:
    goals = [Goal(1, "example: one", "Shown."), Goal(2, "task", "Do it."), Goal(3, "Example two", "Shown, too.")]
    memory = Memory()
    prompt = language.construct_prompt(
        actions=ActionRegistry().get_actions(), environment=env, goals=goals, memory=memory
    )
    system = prompt.messages[0]["content"]
    assert system.startswith("# Goals\n\n## task\nDo it.\n\n# Examples\n")
    assert "They are made up" in system
    assert system.index("## example: one") < system.index("## Example two")
    assert memory.items == []
