"""What is left of a run is in each prompt, behind the memory, and in no memory."""

from __future__ import annotations

from typing import Any

import pytest

from agent import Budget, Goal
from agent.core.budget import Usage, charge
from agent.hub import AgentSpec, Hub, Setting, build, catalogue
from sandbox.environment.base import Environment


def prompts_of(budget: Budget, language: str) -> list[str]:
    asked: list[str] = []

    def brain(prompt: Any) -> Any:
        asked.append(str(prompt.messages[-1]["content"]))
        assert "This is step" not in str(prompt.messages[:-1])
        charge(Usage(calls=1, input_tokens=90, output_tokens=10, cost_usd=0.25))
        if len(asked) == 3:
            return {"tool": "finish", "args": {"summary": "done"}}
        return {"tool": "think", "args": {"thought": f"thought {len(asked)}"}}

    spec = AgentSpec(
        name="thinker", description="Thinks.", goals=(Goal("Think."),), actions=("think", "finish"), language=language, stuck=None
    )  # fmt: skip
    run = build(spec, Setting(environment=Environment(), hub=Hub(), brain=brain, budget=budget)).execute("Think.")
    assert run.ok, run.reason
    assert "This is step" not in str(run.memory.items)
    return asked


@pytest.mark.parametrize("language", sorted(catalogue.LANGUAGES))
def test_the_first_agent_is_told_its_steps_and_what_is_left_of_each_limit(language: str) -> None:
    told = prompts_of(Budget(max_iterations=7, max_seconds=1000, max_tokens=5000, max_cost_usd=2.0), language)
    for number, said in enumerate(told):
        assert f"This is step {number + 1} of 7; the run ends after the last one. There are " in said
        assert f" seconds, {5000 - 100 * number} tokens, ${2.0 - 0.25 * number:.4f} left." in said


def test_of_a_limit_that_is_not_set_nothing_is_said() -> None:
    asked = prompts_of(Budget(max_iterations=3), "json")[1]
    assert asked.endswith("## budget\nThis is step 2 of 3; the run ends after the last one.")


def test_a_run_that_goes_on_counts_on() -> None:
    asked: list[str] = []

    def brain(prompt: Any) -> Any:
        asked.append(str(prompt.messages[-1]["content"]))
        return {"tool": "finish", "args": {"summary": "done"}}

    spec = AgentSpec(
        name="thinker", description="Thinks.", goals=(Goal("Think."),), actions=("finish",), language="json", stuck=None
    )  # fmt: skip
    agent = build(spec, Setting(environment=Environment(), hub=Hub(), brain=brain))
    for layer in agent.standing_layers():
        layer.on_resume(4)
    assert agent.execute("Think.", max_iterations=3).ok
    assert "This is step 5 of 7; the run ends after the last one." in asked[0]
