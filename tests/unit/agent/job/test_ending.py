"""Conditions for the end of a run: an agent that must agree."""

from __future__ import annotations

from typing import Any

from agent import Agent, Budget, Goal, ScriptedModel
from agent.hub import AgentSpec, Hub, Setting, build
from agent.job.ending import Ending
from sandbox.testing import FakeEnvironment

VERDICT = {"type": "object", "properties": {"completed": {"type": "boolean"}}, "required": ["completed"]}
FINISH = {"tool": "finish", "args": {"summary": "done"}}


def test_a_verifier_agrees_in_the_run_after_one_that_was_cancelled() -> None:
    def cancelling(prompt: Any) -> Any:
        agents[0].cancel()
        return FINISH

    yes = {"tool": "finish", "args": {"completed": True}}
    fields: dict[str, Any] = {"goals": (Goal("Do it."),), "actions": ("finish",)}
    worker = AgentSpec(name="worker", description="Works.", brain=lambda _: ScriptedModel([cancelling, FINISH]), **fields)
    verifier = AgentSpec(name="other", description="Agrees.", brain=lambda _: ScriptedModel([yes] * 2), outputs=VERDICT, **fields)
    with FakeEnvironment() as environment:
        setting = Setting(environment=environment, hub=Hub([worker, verifier]), budget=Budget(max_iterations=1))
        agent: Agent = build(worker, setting)
        agents = [agent]
        Ending(verifier="other").lay(agent, setting, "t")
        assert not agent.execute("t").ok
        assert agent.execute("t").ok
