"""A remembered reply is parsed once, however many prompts it stands in (D3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent import Action, ActionRegistry, Agent, Budget, Environment, Goal, Memory, RunStatus, ScriptedModel
from agent.language import AgentLanguage, FencedLanguage, FunctionCallingLanguage, JsonLanguage, TagLanguage
from agent.tools import finish_action

STEPS = 120


def schema(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"}},
        "required": [name],
        "additionalProperties": False,
    }


NOTE = Action("note", lambda message: message, "Note a message.", schema("message"))
REPLIES = {
    JsonLanguage: '{"tool": "note", "args": {"message": "%d"}}',
    TagLanguage: "<execute_note>%d</execute_note>",
    FencedLanguage: "I note it.\n```\nnote %d\n```",
}


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("bound", [True, False], ids=["bound", "unbound"])
def test_the_number_of_parses_grows_with_the_steps_alone(kind: type[AgentLanguage], bound: bool) -> None:
    parsed: list[Any] = []

    class Counting(kind):  # type: ignore[misc, valid-type]
        def parse_response(self, response: Any) -> dict[str, Any]:
            parsed.append(response)
            return super().parse_response(response)  # type: ignore[no-any-return]

    actions = [NOTE, finish_action()]
    language = Counting().for_actions(actions) if bound else Counting()
    brain = ScriptedModel(REPLIES[kind] % number for number in range(STEPS))
    agent = Agent(
        [Goal("Note.")], language, ActionRegistry(actions), brain, Environment(),
        budget=Budget(max_iterations=STEPS), new_memory=Memory,
    )  # fmt: skip
    run = agent.execute("note")
    assert (run.status, [s.tool for s in run.steps]) == (RunStatus.max_iterations, ["note"] * STEPS)
    assert len(parsed) <= 3 * STEPS
    assert "Result of note" in str(brain.prompts[-1])


def test_other_actions_are_other_readings() -> None:
    """What was remembered for some actions says nothing of others."""
    language = FencedLanguage([NOTE])
    text = "```\nnote 1\n```"
    assert language.tool_of(text) == "note"
    other = language.for_actions([Action("run", lambda command: command, "Run.", schema("command"))])
    assert (other.tool_of(text), language.tool_of(text)) == ("run", "note")


@pytest.mark.parametrize("language", [JsonLanguage, FunctionCallingLanguage])
def test_an_answer_is_worded_once(language: type[AgentLanguage]) -> None:
    worded: list[Any] = []

    class Counting(Action):
        def show(self, envelope: Mapping[str, Any]) -> str:
            worded.append(envelope)
            return super().show(envelope)

    note = Counting("note", lambda message: message, "Note a message.", schema("message"))
    brain = ScriptedModel({"tool": "note", "args": {"message": str(number)}} for number in range(STEPS))
    agent = Agent(
        [Goal("Note.")], language(), ActionRegistry([note, finish_action()]), brain, Environment(),
        budget=Budget(max_iterations=STEPS), new_memory=Memory,
    )  # fmt: skip
    agent.run("note")
    assert len(worded) == STEPS - 1
    assert str(brain.prompts[-1]).count("Result" if language is JsonLanguage else "[tool]") >= STEPS - 1


def test_a_content_that_was_replaced_is_worded_anew() -> None:
    memory = Memory()
    memory.add_memory({"role": "tool", "content": {"tool_executed": True, "result": "the first", "notices": []}})
    language = JsonLanguage()

    def prompt() -> str:
        return str(language.construct_prompt([NOTE], Environment(), [], memory))

    assert "the first" in prompt()
    memory.items[0]["content"] = {"tool_executed": True, "result": "the second", "notices": []}
    assert "the second" in prompt()
    assert "the first" not in prompt()
