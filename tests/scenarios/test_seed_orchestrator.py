"""The two listings of the orchestrator: one with function and text replies, the template with fn and dicts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agent import Action, ActionRegistry, Agent, AgentLanguage, Environment, Goal, Memory, RunStatus


def mock_generate_response(prompt: Any) -> str:
    # Always chooses the list_files tool for demo
    return "use list_files"


def list_files() -> list[str]:
    return ["file1.txt", "file2.txt"]


def test_the_first_listing(capsys: pytest.CaptureFixture[str]) -> None:
    goals = [Goal(1, "File Management", "Manage and read files.")]
    registry = ActionRegistry()
    registry.register(
        Action("list_files", list_files, "List all files", {"type": "object", "properties": {}}, terminal=False)
    )
    environment = Environment()
    language = AgentLanguage()

    agent = Agent(goals, language, registry, mock_generate_response, environment)
    memory = agent.run("List all files in the directory")

    assert capsys.readouterr().out == ""
    assert agent.last_run is not None
    assert agent.last_run.status is RunStatus.max_iterations
    assert agent.last_run.iterations == 50
    assert memory.items[0] == {"role": "user", "content": "List all files in the directory"}
    assert memory.items[1] == {"role": "assistant", "content": "use list_files"}
    assert memory.items[2]["content"]["result"] == ["file1.txt", "file2.txt"]


class MockLanguage(AgentLanguage):
    """The listing's own language: a prompt that is text, a reply whose last word is the tool."""

    def construct_prompt(self, actions: Any, environment: Any, goals: Any, memory: Any) -> str:
        return f"Goals: {[g.name for g in goals]} | Tools: {[a.name for a in actions]} | Memory: {memory.items}"

    def parse_response(self, response: str) -> dict[str, Any]:
        tool = response.split()[-1]
        return {"tool": tool, "args": {}}


def test_the_first_listing_with_its_own_language(capsys: pytest.CaptureFixture[str]) -> None:
    prompts: list[Any] = []
    registry = ActionRegistry(
        [Action("list_files", list_files, "List all files", {"type": "object", "properties": {}})]
    )

    def generate(prompt: Any) -> str:
        prompts.append(prompt)
        return "use list_files"

    agent = Agent([Goal(1, "File Management", "Manage.")], MockLanguage(), registry, generate, Environment())
    agent.run("List", max_iterations=2, verbose=True)
    assert prompts[0].startswith("Goals: ['File Management'] | Tools: ['list_files']")
    assert "Decision ← use list_files" in capsys.readouterr().out


def list_txt_files() -> list[str]:
    return ["000.txt", "001.txt"]


def template_registry() -> ActionRegistry:
    registry = ActionRegistry()
    registry.register(
        Action(
            name="list_txt_files",
            fn=list_txt_files,
            description="Return .txt file names",
            parameters={"type": "object", "properties": {}, "required": []},
        )
    )
    return registry


class TemplateLanguage(AgentLanguage):
    """The template's own language: prompt and reply are dicts."""

    def construct_prompt(self, actions: Any, environment: Any, goals: Any, memory: Any) -> dict[str, Any]:
        return {
            "goals": [g.description for g in sorted(goals, key=lambda g: g.priority)],
            "tools": [{"name": a.name, "description": a.description, "parameters": a.parameters} for a in actions],
            "memory": memory.get_memories(8),
        }

    def parse_response(self, response: dict[str, Any]) -> dict[str, Any]:
        return response


@pytest.mark.parametrize("language", [AgentLanguage(), TemplateLanguage()])
def test_the_template(language: AgentLanguage, capsys: pytest.CaptureFixture[str]) -> None:
    def mock_llm(prompt_dict: Any) -> dict[str, Any]:
        return {"tool": "list_txt_files", "args": {}}

    env = Environment()
    goals = [Goal(1, "list", "List available text files.")]
    agent = Agent(goals, language, template_registry(), mock_llm, env)
    memory = agent.run("Show me the files", max_iterations=5, verbose=True)
    assert [m["role"] for m in memory.items] == ["user"] + ["assistant", "tool"] * 5
    assert memory.items[1]["content"] == {"tool": "list_txt_files", "args": {}}
    assert memory.items[2]["content"]["result"] == ["000.txt", "001.txt"]
    assert "000.txt" in capsys.readouterr().out


def test_the_templates_registry() -> None:
    registry = template_registry()
    action = registry.get_action("list_txt_files")
    assert action is not None
    assert action.fn is action.function is list_txt_files
    with pytest.raises(ValueError, match="list_txt_files"):
        registry.register(action)
    assert registry.validate_args(action, {}) == (True, "ok")
    needy = Action(
        "needy", lambda key: key, "Needs a key.", {"type": "object", "properties": {"key": {}}, "required": ["key"]}
    )
    ok, message = registry.validate_args(needy, {})
    assert not ok
    assert "needy needs key" in message
    assert "key" in message


def test_the_templates_faults_are_written_to_memory_and_survived() -> None:
    replies = iter(
        [
            {"tool": "list_text_files", "args": {}},
            {"tool": "list_txt_files", "args": {"folder": 1}},
            {"tool": "broken"},
            {"tool": "done", "args": {}},
        ]
    )
    registry = ActionRegistry(
        [
            Action("list_txt_files", list_txt_files, "List.", {"type": "object", "additionalProperties": False}),
            Action("broken", lambda: 1 / 0, "Fails."),
            Action("done", lambda: "ok", "Ends.", terminal=True),
        ]
    )
    agent = Agent([Goal("list")], TemplateLanguage(), registry, lambda prompt: next(replies), Environment())
    memory = agent.run("go", Memory())
    results = [m["content"] for m in memory.items if m["role"] == "tool"]
    assert [r.get("code") for r in results] == ["unknown_tool", "invalid_arguments", "tool_error", None]
    assert results[0]["next_tool"] == "list_txt_files"
    assert results[1]["schema"] == {"type": "object", "additionalProperties": False}
    assert all(r["hint"] for r in results[:3])
    assert agent.last_run is not None
    assert agent.last_run.status is RunStatus.finished


def test_names_and_order_of_the_constructor() -> None:
    names = list(inspect.signature(Agent.__init__).parameters)[1:6]
    assert names == ["goals", "agent_language", "action_registry", "generate_response", "environment"]
