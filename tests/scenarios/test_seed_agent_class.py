"""The listing of the agent class, and the two agents that differ only in their parts."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from agent import Action, ActionRegistry, Agent, AgentLanguage, Environment, Goal, Memory, Prompt
from agent.core.agent import Agent as LoopAgent


class SearchAction(Action):
    name = "search"
    description = "Search for a topic."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"topic": {"type": "string"}},
        "required": ["topic"],
    }

    def execute(self, /, **kwargs: Any) -> Any:
        return [f"about {kwargs['topic']}"]


class SummarizeAction(Action):
    terminal = True

    def __init__(self) -> None:
        super().__init__(
            "summarize",
            lambda text: text.upper(),
            "Summarize a text.",
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        )


class WriteCodeAction(SummarizeAction):
    terminal = False

    def __init__(self) -> None:
        super().__init__()
        self.name = "write_code"


class TestCodeAction(SearchAction):
    __test__ = False
    name = "test_code"
    description = "Run the tests on a topic."
    terminal = True


class ResearchLanguage(AgentLanguage):
    def parse_response(self, response: Any) -> dict[str, Any]:
        tool, _, value = response.partition(":")
        return {"tool": tool, "args": {"topic" if tool == "search" else "text": value}}


class CodingLanguage(AgentLanguage):
    def construct_prompt(self, actions: Any, environment: Any, goals: Any, memory: Any) -> Prompt:
        return Prompt(messages=({"role": "user", "content": goals[0].description},))


class WebEnvironment(Environment):
    pass


class DevEnvironment(Environment):
    pass


def replies(*given: Any) -> Any:
    left = iter(given)
    return lambda prompt: next(left)


def test_two_agents_differ_only_in_their_parts() -> None:
    research_agent = Agent(
        goals=[Goal("Find and summarize information on topic X")],
        agent_language=ResearchLanguage(),
        action_registry=ActionRegistry([SearchAction(), SummarizeAction()]),
        generate_response=replies("search:X", "summarize:about X"),
        environment=WebEnvironment(),
    )
    coding_agent = Agent(
        goals=[Goal("Write and debug Python code for task Y")],
        agent_language=CodingLanguage(),
        action_registry=ActionRegistry([WriteCodeAction(), TestCodeAction()]),
        generate_response=replies(
            {"tool": "write_code", "args": {"text": "y = 1"}}, {"tool": "test_code", "args": {"topic": "y"}}
        ),
        environment=DevEnvironment(),
    )
    assert type(research_agent).execute is type(coding_agent).execute
    research, coding = research_agent.run("X"), coding_agent.run("Y")
    assert [m["role"] for m in research.items] == ["user", "assistant", "tool", "assistant", "tool"]
    assert research.items[-1]["content"]["result"] == "ABOUT X"
    assert coding.items[2]["content"]["result"] == "Y = 1"


def test_the_loop_names_no_tool_language_or_agent() -> None:
    source = inspect.getsource(LoopAgent)
    for name in ("finish", "think", "run_command", "FunctionCalling", "JsonLanguage", "LiteLLM", "isinstance(action"):
        assert name not in source.replace("RunStatus.finished", "")


def test_the_public_steps_can_be_called_one_by_one() -> None:
    agent = Agent(
        goals=[Goal(1, "g", "Do.")],
        agent_language=AgentLanguage(),
        action_registry=ActionRegistry([SearchAction(), SummarizeAction()]),
        generate_response=replies('{"tool": "summarize", "args": {"text": "x"}}'),
        environment=Environment(),
    )
    memory = Memory()
    agent.set_current_task(memory, "summarize x")
    prompt = agent.construct_prompt(agent.goals, memory, agent.actions)
    response = agent.prompt_llm_for_action(prompt)
    action, invocation = agent.get_action(response)
    assert action is not None
    result = agent.environment.execute_action(action, invocation["args"])
    agent.update_memory(memory, response, result)
    assert agent.should_terminate(response) is True
    assert agent.should_terminate("no action at all") is False
    assert agent.should_terminate('{"tool": "unknown"}') is False
    assert json.dumps(memory.get_memories())


def test_a_memory_that_is_given_is_continued_even_when_it_is_empty() -> None:
    class Falsy(Memory):
        def __bool__(self) -> bool:
            return False

    memory = Falsy()
    agent = Agent(
        [Goal("g")], AgentLanguage(), ActionRegistry([SummarizeAction()]),
        lambda prompt: {"tool": "summarize", "args": {"text": "a"}}, Environment(),
    )  # fmt: skip
    assert agent.run("one", memory) is memory
    assert agent.run("two", memory=memory) is memory
    assert [m["content"] for m in memory.items if m["role"] == "user"] == ["one", "two"]
