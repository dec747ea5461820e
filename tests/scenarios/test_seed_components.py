"""The listing of the components: goals, actions with schemas, registry, memory, environment, used as it uses them."""

from __future__ import annotations

import dataclasses
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent import Action, ActionRegistry, Agent, AgentLanguage, Environment, Goal, Memory

file_management_goal = Goal(
    priority=1,
    name="file_management",
    description="""Manage files in the current directory by:
1. Listing files when needed
2. Reading file contents when needed
3. Searching within files when information is required
4. Providing helpful explanations about file contents""",
)


def list_files() -> list[str]:
    """List all files in the current directory."""
    return os.listdir(".")


def read_file(file_name: str) -> str:
    """Read and return the contents of a file."""
    with open(file_name) as f:
        return f.read()


def search_in_file(file_name: str, search_term: str) -> list[tuple[int, str]]:
    """Search for a term in a file and return matching lines."""
    results = []
    with open(file_name) as f:
        for i, line in enumerate(f.readlines()):
            if search_term in line:
                results.append((i + 1, line.strip()))
    return results


def filled() -> ActionRegistry:
    registry = ActionRegistry()

    registry.register(
        Action(
            name="list_files",
            function=list_files,
            description="List all files in the current directory",
            parameters={"type": "object", "properties": {}, "required": []},
            terminal=False,
        )
    )

    registry.register(
        Action(
            name="read_file",
            function=read_file,
            description="Read the contents of a specific file",
            parameters={
                "type": "object",
                "properties": {"file_name": {"type": "string", "description": "Name of the file to read"}},
                "required": ["file_name"],
            },
            terminal=False,
        )
    )

    registry.register(
        Action(
            name="search_in_file",
            function=search_in_file,
            description="Search for a term in a specific file",
            parameters={
                "type": "object",
                "properties": {
                    "file_name": {"type": "string", "description": "Name of the file to search in"},
                    "search_term": {"type": "string", "description": "Term to search for"},
                },
                "required": ["file_name", "search_term"],
            },
            terminal=False,
        )
    )
    return registry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notes.txt").write_text("one apple\ntwo pears\nthree apples\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_goal_is_frozen_and_positional() -> None:
    assert Goal(1, "file_management", "x") == Goal(priority=1, name="file_management", description="x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        file_management_goal.priority = 2  # type: ignore[misc]


def test_registry_in_order_with_none_for_unknown() -> None:
    registry = filled()
    assert [a.name for a in registry.get_actions()] == ["list_files", "read_file", "search_in_file"]
    assert registry.get_action("read_file") is registry.get_actions()[1]
    assert registry.get_action("write_file") is None


def test_actions_execute_by_keyword(folder: Path) -> None:
    action = filled().get_action("search_in_file")
    assert action is not None
    assert action.execute(file_name="notes.txt", search_term="apple") == [(1, "one apple"), (3, "three apples")]


def test_memory_gives_the_last_n() -> None:
    memory = Memory()
    for number in range(5):
        memory.add_memory({"type": "user", "content": str(number)})
    assert memory.get_memories(limit=2) == [{"role": "user", "content": "3"}, {"role": "user", "content": "4"}]
    assert len(memory.get_memories()) == 5


def test_environment_answers_with_an_envelope(folder: Path) -> None:
    registry = filled()
    environment = Environment()
    listed = environment.execute_action(registry.get_actions()[0], {})
    assert listed["tool_executed"] is True
    assert listed["result"] == ["notes.txt"]
    assert datetime.fromisoformat(listed["timestamp"]).tzinfo is not None
    failed = environment.execute_action(registry.get_actions()[1], {"file_name": "none.txt"})
    assert failed["tool_executed"] is False
    assert "none.txt" in failed["error"]
    assert "Traceback" not in str(failed)


def test_format_result_can_be_overridden() -> None:
    class Stamped(Environment):
        def format_result(self, result: Any) -> dict[str, Any]:
            return {**super().format_result(result), "host": "here"}

    assert Stamped().execute_action(Action("one", lambda: 1, "One."), {})["host"] == "here"


def test_the_components_make_an_agent(folder: Path) -> None:
    steps = iter(
        [
            {"tool": "list_files", "args": {}},
            {"tool": "read_file", "args": {"file_name": "none.txt"}},
            {"tool": "search_in_file", "args": {"file_name": "notes.txt", "search_term": "pears"}},
        ]
    )
    agent = Agent([file_management_goal], AgentLanguage(), filled(), lambda prompt: next(steps), Environment())
    memory = agent.run("Where are pears?", max_iterations=3)
    results = [m["content"] for m in memory.get_memories() if m["role"] == "tool"]
    assert [r["tool_executed"] for r in results] == [True, False, True]
    assert results[2]["result"] == [[2, "two pears"]]
