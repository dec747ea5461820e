"""Asking again for a reply that cannot be read: bounded, billed, and never remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent import (
    Agent,
    AgentRun,
    Budget,
    FencedLanguage,
    Goal,
    JsonLanguage,
    Prompt,
    Response,
    RunStatus,
    ScriptedModel,
    ToolCall,
    Usage,
    hub,
)
from agent.core.budget import charge
from agent.core.loop.streaming import RunFinished
from agent.hub import AgentSpec, Setting, build
from agent.layers.retry_format import RetryFormat
from agent.tools import finish_action, think_action
from sandbox.testing import FakeEnvironment

GOOD = "Fine.\n```\nfinish all done\n```"


def agent(*replies: Any, budget: Budget | None = None) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(replies)

    def billed(prompt: Prompt) -> Any:
        charge(Usage(calls=1, input_tokens=100))
        return model(prompt)

    spec = AgentSpec(
        name="a",
        description="d",
        goals=(Goal("g"),),
        actions=("think", "finish"),
        language="fenced",
        middleware=("retry_format",),
    )
    setting = Setting(
        environment=FakeEnvironment(), hub=hub.Hub(), brain=billed, budget=budget or Budget(max_iterations=4)
    )
    return build(spec, setting), model


def test_it_is_shown_its_reply_and_what_is_wrong_and_neither_is_remembered() -> None:
    made, model = agent("no block", "```\na\n```\n```\nb\n```", GOOD)
    run = made.execute("t")
    assert (run.status, run.iterations, run.usage.calls) == (RunStatus.finished, 1, 3)
    second, third = (prompt.messages for prompt in model.prompts[1:])
    assert second[-2]["content"] == "no block"
    assert "ERROR unparsable_response: The reply contains no fenced block." in second[-1]["content"]
    assert third[: len(second)] == second
    assert "several fenced blocks" in third[-1]["content"]
    remembered = str(run.memory.get_memories())
    assert "no block" not in remembered
    assert GOOD.split("\n")[0] in remembered


def test_after_the_attempts_the_loop_tells_the_model() -> None:
    made, _ = agent("one", "two", "three", GOOD)
    run = made.execute("t")
    assert [(s.envelope or {}).get("code") for s in run.steps] == ["unparsable_response", None]
    assert run.usage.calls == 4
    assert [m["content"] for m in run.memory.get_memories() if m["role"] == "assistant"] == ["three", GOOD]


def test_the_budget_holds_within_a_step() -> None:
    made, model = agent("one", "two", "three", GOOD, budget=Budget(max_tokens=150))
    run = made.execute("t")
    assert (run.status, run.usage.calls, len(model.prompts)) == (RunStatus.max_tokens, 2, 2)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (Response("Hm.", (ToolCall("run", '{"command": "ls'),)), "Hm.\n{\"tool\": \"run\""),
        ("", "(an empty reply)"), (object(), "<object object"), ("x" * 50_000, "[... 42,000 characters are left out here ...]"),
    ],
)  # fmt: skip
def test_whatever_it_replied_can_be_shown(reply: Any, shown: str) -> None:
    model = ScriptedModel([reply, '{"tool": "finish", "args": {"summary": "done"}}'])
    run = with_layer(model, JsonLanguage()).execute("t")
    assert (run.status, run.iterations, run.result) == (RunStatus.finished, 1, {"summary": "done"})
    told = model.prompts[1].messages[-2]
    assert told["role"] == "assistant"
    assert "tool_calls" not in told
    assert shown in told["content"]
    assert len(told["content"]) < 9000


def with_layer(brain: Any, language: Any, attempts: int = 2) -> Agent:
    return Agent("g", language, [think_action(), finish_action()], brain, layers=[RetryFormat(attempts)])


def test_what_can_be_read_is_asked_for_once() -> None:
    model = ScriptedModel([GOOD])
    assert with_layer(model, FencedLanguage()).execute("t").ok
    assert len(model.prompts) == 1


class PlainLanguage(FencedLanguage):
    """Its prompts are texts, to which no message can be added."""

    def construct_prompt(self, *parts: Any, **named: Any) -> Any:
        return str(super().construct_prompt(*parts, **named))


def test_a_prompt_of_another_kind_is_asked_once() -> None:
    model = ScriptedModel(["no block", GOOD])
    run = with_layer(model, PlainLanguage()).execute("t")
    assert [(step.envelope or {}).get("code") for step in run.steps] == ["unparsable_response", None]


def test_the_agent_is_built_with_it_and_keeps_its_own_brain() -> None:
    made, model = agent("no block", GOOD)
    assert [type(layer).__name__ for layer in made.layers] == ["BudgetLine", "RetryFormat"]
    assert made.execute("t").iterations == 1
    assert len(model.prompts) == 2


async def streamed(agent: Agent) -> AgentRun:
    last = [event async for event in agent.astream("t")][-1]
    assert isinstance(last, RunFinished)
    return last.run


async def in_thread(agent: Agent) -> AgentRun:
    return await asyncio.to_thread(agent.execute, "t")


async def awaited(agent: Agent) -> AgentRun:
    return await agent.aexecute("t")


@pytest.mark.parametrize("drive", [streamed, in_thread, awaited])
def test_every_driver_asks_again(drive: Callable[[Agent], Coroutine[Any, Any, AgentRun]]) -> None:
    async def brain(prompt: Any) -> Any:
        return model(prompt)

    model = ScriptedModel(["no block", GOOD])
    run = asyncio.run(drive(with_layer(brain, FencedLanguage())))
    assert (run.status, run.iterations, len(model.prompts)) == (RunStatus.finished, 1, 2)
