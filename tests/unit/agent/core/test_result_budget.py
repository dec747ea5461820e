"""One budget limits what a model reads of a result, for every kind of result."""

from __future__ import annotations

from typing import Any

import pytest

from agent import Action, Agent, FunctionCallingLanguage, JsonLanguage, ScriptedModel
from agent.core.envelopes import text_of
from agent.core.result_budget import BYTES_PER_TOKEN, MAX_SHOWN_CHARS, RESULT_TOKENS, shown_chars
from agent.tools import finish_action
from sandbox.environment.base import Environment

BUDGET = RESULT_TOKENS * BYTES_PER_TOKEN
LONG = "x" * 3_000_000
FINISH = {"tool": "finish", "args": {"summary": "done"}}


class Foreign(Environment):
    """Answers in its own way."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__()
        self.answer = answer

    def execute_action(self, action: Any, args: Any) -> dict[str, Any]:
        return self.answer if action.name == "act" else super().execute_action(action, args)


def prompt_after(answer: dict[str, Any], language: Any) -> int:
    """Return the size of the second prompt."""
    model = ScriptedModel([{"tool": "act", "args": {}}, FINISH])
    actions = [Action("act", lambda: None, "Acts."), finish_action()]
    assert Agent("g", language, actions, model, Foreign(answer), layers=[]).execute("t").ok
    return len(str(model.prompts[1].messages))


ANSWERS = {
    "a long text": {"tool_executed": True, "result": LONG},
    "a long list": {"tool_executed": True, "result": {"items": ["x" * 50] * 30_000}},
    "a text in fields of its own": {"tool_executed": True, "data": LONG},
    "a long error": {"tool_executed": False, "code": "tool_failed", "error": LONG, "hint": ""},
    "an error without a code": {"tool_executed": False, "error": LONG},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_prompt_holds_no_more_of_an_answer_than_the_budget(name: str) -> None:
    for language in (FunctionCallingLanguage(), JsonLanguage()):
        empty = prompt_after({"tool_executed": True, "result": ""}, language)
        assert prompt_after(ANSWERS[name], language) - empty < BUDGET + 1000


def test_a_tool_may_ask_for_more_up_to_a_maximum() -> None:
    answer = {"tool_executed": True, "result": LONG}
    for asked, chars in ((20_000, 20_000), (10**12, MAX_SHOWN_CHARS), (0, BUDGET), (-1, BUDGET), (True, BUDGET), ("9", BUDGET)):
        envelope = {**answer, "shown_chars": asked}
        assert shown_chars(envelope) == chars
        assert chars <= len(text_of(envelope)) <= chars + 100
    language = FunctionCallingLanguage()
    empty = prompt_after({"tool_executed": True, "result": ""}, language)
    assert prompt_after({**answer, "shown_chars": 10**12}, language) - empty < MAX_SHOWN_CHARS + 1000
