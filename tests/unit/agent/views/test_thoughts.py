"""Thoughts, calls and answers: the same words wherever a person reads a run."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import (
    Action,
    ActionRegistry,
    Agent,
    AgentLanguage,
    Environment,
    FencedLanguage,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    LanguageError,
    Response,
    TagLanguage,
    ToolCall,
)
from agent.core.budget import Budget
from agent.core.status import RunStatus, StopRun
from agent.language.structured import StructuredLanguage
from agent.record import events as ev
from agent.record.answers import with_further
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog, record_of, tree_of
from agent.tools import standard_registry
from agent.views.follow import follow
from agent.views.live_view import LiveView
from agent.views.runs_show import RunPrinter
from agent.views.screen import Screen
from agent.views.step_view import answer_text
from agent.views.timeline import timeline_of
from agent.views.trajectory.run_file import from_dict, of_run, to_dict

ACTIONS = standard_registry().get_actions()
TAGS, FENCED = TagLanguage(actions=ACTIONS), FencedLanguage(ACTIONS)
LANGUAGES: list[AgentLanguage] = [
    AgentLanguage(), StructuredLanguage(), FunctionCallingLanguage(), JsonLanguage(), TAGS, FENCED,
]  # fmt: skip
IN_JSON = '{"tool": "run", "args": {"command": "ls"}}'
WORDS = st.text(st.sampled_from("ab .,'\n{}"), max_size=30)
PIECES = st.sampled_from(
    ["<execute_bash>", "</execute_bash>", "<finish/>", "\n```\n", "\n```json\n", "~~~~", "`", "ls", IN_JSON, '{"tool": ', "{", "}",
     "\n", "use run", "why ", "exit"]
)  # fmt: skip


def call(language: AgentLanguage, command: str = "ls") -> str:
    return language.call_text("run", json.dumps({"command": command}))


@pytest.mark.parametrize("language", LANGUAGES)
@given(before=WORDS, after=WORDS, command=st.text("abc $", min_size=1).filter(str.strip))
def test_a_thought_is_what_stands_around_the_call(language: AgentLanguage, before: str, after: str, command: str) -> None:
    reply = f"{before}\n{call(language, command)}\n{after}"
    assert language.parse_response(reply)["args"]["command"].strip() == command.strip()
    parts = [part for part in (before.strip(), after.strip()) if part]
    assert language.thought_of(reply) == language.thought_of(Response(reply)) == "\n\n".join(parts)


@pytest.mark.parametrize("language", LANGUAGES)
@given(text=st.lists(PIECES, max_size=12).map("".join))
def test_thought_and_action_are_all_of_the_reply(language: AgentLanguage, text: str) -> None:
    thought = language.thought_of(text)
    try:
        language.parse_response(text)
    except LanguageError:
        return
    span = language.action_span(text)
    assert span is not None
    start, end = span
    assert 0 <= start < end <= len(text)
    assert sorted("".join((thought + text[start:end]).split())) == sorted("".join(text.split()))


@pytest.mark.parametrize("language", LANGUAGES)
def test_of_a_native_call_all_text_is_thought(language: AgentLanguage) -> None:
    said = f"as in {call(language)} above"
    assert language.thought_of(Response(said, (ToolCall("run", '{"command": "ls"}'),))) == said
    assert language.thought_of({"thought": "why", "tool": "run", "args": {"command": "ls"}}) == "why"


@pytest.mark.parametrize("mark", ["```", "```json", "~~~"])
@pytest.mark.parametrize("end", ["", "\n", "\nThen more."])
def test_the_lines_that_fence_json_are_no_thought(mark: str, end: str) -> None:
    assert JsonLanguage().thought_of(f"I look.\n{mark}\n{IN_JSON}\n{mark[:3]}{end}") == (
        "I look.\n\nThen more." if end.strip() else "I look."
    )


def test_json_that_was_repaired_is_no_thought() -> None:
    reply = 'I look.\n```json\n{"tool": "run", "args": {"command": "ls",}}\n```'
    assert JsonLanguage().parse_response(reply)["notices"][0]["code"] == "reply_repaired"
    assert JsonLanguage().thought_of(reply) == "I look."


def test_a_block_before_the_json_stays_in_the_thought() -> None:
    before = "It says:\n```\nold\n```"
    assert JsonLanguage().thought_of(f"{before}\n{IN_JSON}") == before


def test_a_reply_without_a_tag_is_all_message() -> None:
    assert TAGS.action_span("hello") == (0, 5)


class Shouting(AgentLanguage):
    """A language of a user's own that says nothing of where its actions stand."""

    def parse_response(self, response: Any) -> dict[str, Any]:
        return {"tool": "look", "args": {"at": str(response).split("!")[0]}}


def test_a_language_that_does_not_tell_falls_back_to_the_whole_reply() -> None:
    assert Shouting().thought_of(f"LOOK! {IN_JSON}") == f"LOOK! {IN_JSON}"


LOOK = Action(
    "look", lambda at: f"at {at}", "Looks.",
    {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}, terminal=True,
)  # fmt: skip
REPLIES: Mapping[str, tuple[AgentLanguage, str]] = {
    "tags": (TagLanguage(actions=[LOOK]), "The dict {a: 1} is wrong.\n<execute_look>it</execute_look>"),
    "fenced": (FencedLanguage([LOOK]), "The dict {a: 1} is wrong.\n```\nlook it\n```"),
    "json": (JsonLanguage(), 'The dict {a: 1} is wrong.\n```json\n{"tool": "look", "args": {"at": "it"}}\n```'),
    "plain": (AgentLanguage(), 'The dict {a: 1} is wrong.\n{"tool": "look", "args": {"at": "it"}}'),
}


@pytest.mark.parametrize("name", REPLIES)
def test_every_reader_has_the_same_thought(name: str, tmp_path: Path) -> None:
    language, reply = REPLIES[name]
    agent = Agent([Goal(1, "do", "do it")], language, ActionRegistry([LOOK]), lambda _: reply, Environment())
    shown = io.StringIO()
    agent.hooks.append(LiveView(Screen(shown), agent.actions))
    with EventLog(tmp_path / "runs.db") as log:
        run = execute_recorded(agent, "do it", log, run="r")
        record = record_of(log, "r")
        exported = tree_of(log, "r")
    thought = "The dict {a: 1} is wrong."
    assert shown.getvalue().startswith(f"\n[1] {thought}\n  → look it\n")
    assert run.steps[0].thought == record.steps[0].thought == exported.steps[0].thought == thought
    assert of_run(run, task="do it").steps[0].thought == thought


def test_a_reply_that_cannot_be_read_is_shown_whole() -> None:
    said = "<execute_look>{a: 1}</execute_look>\n```\nlook it\n```\n```\nlook it\n```"
    agent = Agent([], FencedLanguage([LOOK]), ActionRegistry([LOOK]), lambda _: said, Environment())
    assert agent.execute("do it", max_iterations=1).steps[0].thought == said


def test_a_log_from_before_thoughts_were_kept_is_read(tmp_path: Path) -> None:
    with EventLog(tmp_path / "runs.db") as log:
        log.append("r", [ev.RunBegan(task="t"), ev.StepBegan(step=1)])
        log.append("r", [ev.ActionDecided(step=1, reply={"reply": "The dict {a: 1}."}, tool="look")])
        assert record_of(log, "r").steps[0].thought == "The dict {a: 1}."


class Told(Action):
    """An action with words of its own, called like an operation of the sandbox that has other arguments."""

    name = "edit"
    description = "Edits."
    parameters: Mapping[str, Any] = {
        "type": "object", "properties": {name: {"type": "integer"} for name in ("start", "end")}, "required": ["start", "end"],
    }  # fmt: skip

    def execute(self, /, **kwargs: Any) -> Any:
        return {"said": f"lines {kwargs['start']} to {kwargs['end']}"}

    def show(self, envelope: Mapping[str, Any]) -> str:
        return f"it says {envelope['result']['said']}"


def test_calls_and_answers_of_a_kit_read_alike_everywhere(tmp_path: Path) -> None:
    replies = iter(['{"tool": "edit", "args": {"end": 2, "start": 1}}', IN_JSON])
    agent = Agent([], JsonLanguage(), ActionRegistry([Told()]), lambda _: next(replies), Environment())
    live, followed, told = io.StringIO(), io.StringIO(), io.StringIO()
    agent.hooks.append(LiveView(Screen(live), agent.actions))
    with EventLog(tmp_path / "runs.db") as log:
        execute_recorded(agent, "do it", log, run="r")
        follow(log, "r", Screen(followed))
        RunPrinter(Screen(told), 100).run(timeline_of(log, "r"))
        exported = from_dict(to_dict(tree_of(log, "r")))
    for shown in (live, followed, told):
        assert "→ edit 1 end=2\n    it says lines 1 to 2\n" in shown.getvalue()
    assert answer_text(exported.steps[0]) == "it says lines 1 to 2"
    assert exported.steps[1].shown is None
    assert answer_text(exported.steps[1]).startswith("ERROR unknown_tool")


def test_a_resumed_run_is_counted_on(tmp_path: Path) -> None:
    def agent(shown: io.StringIO) -> Agent:
        made = Agent([], JsonLanguage(), ActionRegistry([Told()]), brain, Environment(), budget=Budget(max_iterations=4))
        made.hooks.append(LiveView(Screen(shown), made.actions))
        return made

    def brain(prompt: Any) -> str:
        if len(shown) == 1 and "[2]" in shown[0].getvalue():
            raise StopRun("The run was paused.", RunStatus.paused)
        return '{"tool": "edit", "args": {"start": 1, "end": 2}}'

    shown = [io.StringIO()]
    with EventLog(tmp_path / "runs.db") as log:
        execute_recorded(agent(shown[0]), "do it", log, run="r")
        shown.append(io.StringIO())
        with log.begin("r") as writer:
            resume(agent(shown[1]), writer)
    assert [line for line in shown[1].getvalue().split("\n") if line.startswith("[")] == ["[3]", "[4]"]


def test_notices_that_came_later_stand_behind_the_own_words() -> None:
    notice = {"code": "low", "message": "Two steps are left.", "hint": ""}
    assert with_further("words", {"notices": [notice, {**notice, "code": "new"}]}, [notice]) == (
        "words\nNOTICE new: Two steps are left."
    )
