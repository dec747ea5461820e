"""What ``Agent`` takes: short forms that work, and mistakes that are told in plain words."""

from __future__ import annotations

from typing import Any

import pytest

from agent import ActionRegistry, Agent, Environment, FunctionCallingLanguage, Goal, ScriptedModel, standard_registry
from agent.tools import finish_action

FINISH = {"tool": "finish", "args": {"summary": "done"}}


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_an_agent_needs_a_task_tools_and_a_model() -> None:
    script = [{"tool": "add", "args": {"a": 2}}, FINISH]
    agent = Agent("Do it.", action_registry=[add, finish_action()], generate_response=ScriptedModel(script))
    run = agent.execute("2 + 1?")
    assert (run.ok, (run.steps[0].envelope or {})["result"]) == (True, 3)
    assert agent.goals == [Goal("Do it.")]
    assert isinstance(agent.agent_language, FunctionCallingLanguage)
    assert type(agent.environment) is Environment


def test_the_standard_registry_takes_more_tools() -> None:
    names = [each.name for each in standard_registry([add]).get_actions()]
    assert {"run", "read", "think", "finish"} < set(names)
    assert names[-1] == "add"
    with pytest.raises(ValueError, match="already registered: finish"):
        standard_registry([finish_action()])


def test_a_list_of_goals_stays_the_callers_own() -> None:
    goals = [Goal("one")]
    agent = Agent(goals, FunctionCallingLanguage(), ActionRegistry(), ScriptedModel([]), Environment())
    assert agent.goals is goals
    assert Agent(["one", Goal(1, "two", "Two.")], action_registry=[], generate_response=ScriptedModel([])).goals == [
        Goal("one"),
        Goal(1, "two", "Two."),
    ]


def test_parts_of_other_classes_work() -> None:
    """The seeds' own classes are not subclasses of ours."""

    class Language:
        def construct_prompt(self, **parts: Any) -> str:
            return "prompt"

        def parse_response(self, response: Any) -> Any:
            return response

    class Place:
        def execute_action(self, action: Any, args: Any) -> Any:
            return action.execute(**args)

    language: Any = Language()
    place: Any = Place()
    agent = Agent("Do it.", language, [finish_action()], lambda prompt: FINISH, place)
    assert agent.execute("x").ok


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"goals": 3}, "goals of Agent must be a text, or a list of goals and texts, not int 3"),
        ({"goals": [3]}, "goals of Agent must be a text, or a list of goals and texts, not int 3"),
        ({"goals": {"a": "b"}}, "goals of Agent must be a text, or a list of goals and texts, not dict"),
        ({"agent_language": "json"}, r"agent_language of Agent must be an AgentLanguage, .* not str 'json'"),
        ({"agent_language": FunctionCallingLanguage}, "not the class FunctionCallingLanguage"),
        ({"action_registry": "run"}, r"action_registry of Agent must be an ActionRegistry, .* not str 'run'"),
        ({"action_registry": ["run"]}, "takes actions and functions, not str 'run'"),
        ({"action_registry": None}, "Agent needs action_registry: an ActionRegistry"),
        ({"action_registry": ActionRegistry}, "not the class ActionRegistry"),
        (
            {"generate_response": "provider/name"},
            r"generate_response of Agent must be a model, .* not str 'provider/name'",
        ),
        ({"generate_response": None}, "Agent needs generate_response: a model"),
        ({"generate_response": ScriptedModel}, "not the class ScriptedModel"),
        ({"environment": "docker"}, r"environment of Agent must be an Environment, .* not str 'docker'"),
        ({"environment": Environment}, "not the class Environment"),
    ],
)
def test_a_wrong_argument_is_told_in_plain_words(changes: dict[str, Any], said: str) -> None:
    arguments = {
        "goals": "Do it.",
        "agent_language": FunctionCallingLanguage(),
        "action_registry": ActionRegistry([finish_action()]),
        "generate_response": ScriptedModel([]),
        "environment": Environment(),
    }
    Agent(**arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=said):
        Agent(**{**arguments, **changes})
