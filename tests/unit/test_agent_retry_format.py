"""Asking again for a reply that cannot be read: bounded, billed, and never remembered."""

from __future__ import annotations

from typing import Any

import pytest

from agent import (
    Agent,
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
from agent.budget import charge
from agent.hub import AgentSpec, Setting, build
from agent.model.retry_format import retry_format
from sandbox.errors import SandboxError
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
    assert "ERROR unparsable_response: The reply holds no fenced block." in second[-1]["content"]
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
        ("", "(an empty reply)"), (object(), "<object object"), ("x" * 50_000, "[… 42000 characters …]"),
    ],
)  # fmt: skip
def test_whatever_it_replied_can_be_shown(reply: Any, shown: str) -> None:
    model = ScriptedModel([reply, '{"tool": "think", "args": {}}'])
    setting = Setting(environment=FakeEnvironment(), hub=hub.Hub(), language=JsonLanguage())
    answer = retry_format(model, setting)(Prompt(({"role": "user", "content": "t"},)))
    assert answer == '{"tool": "think", "args": {}}'
    told = model.prompts[1].messages[-2]
    assert told["role"] == "assistant"
    assert "tool_calls" not in told
    assert shown in told["content"]
    assert len(told["content"]) < 9000


def test_what_can_be_read_is_asked_for_once() -> None:
    model = ScriptedModel([GOOD])
    setting = Setting(environment=FakeEnvironment(), hub=hub.Hub(), language=FencedLanguage())
    assert retry_format(model, setting)("a prompt of another language") == GOOD
    with pytest.raises(SandboxError, match="no language"):
        retry_format(model, Setting(environment=FakeEnvironment(), hub=hub.Hub()))
