"""Languages: reading replies, wording prompts."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import (
    Action,
    ActionRegistry,
    AgentLanguage,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    LanguageError,
    Memory,
    Response,
    ToolCall,
)
from agent.core.envelopes import unparsable
from agent.memory.exchange import exchange
from agent.tools import standard_registry

LANGUAGES = [AgentLanguage(), FunctionCallingLanguage(), JsonLanguage()]
TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
ARGS = st.dictionaries(TEXT, VALUES, max_size=5)
NAMES = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)
JSONISH = st.text(alphabet='{}[]",:\\ntoolargs"\' 01eE.-\n', max_size=200)


@pytest.mark.parametrize("language", LANGUAGES)
@given(text=st.text() | JSONISH | JSONISH.map(lambda t: '{"tool": ' + t))
def test_text_is_read_or_refused_never_more(language: AgentLanguage, text: str) -> None:
    try:
        invocation = language.parse_response(text)
    except LanguageError:
        pass
    else:
        assert isinstance(invocation["tool"], str)
        json.dumps(invocation, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("language", LANGUAGES)
@given(name=st.text(), arguments=st.text() | JSONISH | JSONISH.map(lambda t: "{" + t), cut=st.booleans())
def test_native_calls_are_read_or_refused_never_more(
    language: AgentLanguage, name: str, arguments: str, cut: bool
) -> None:
    try:
        invocation = language.parse_response(Response("", (ToolCall(name, arguments),), cut))
    except LanguageError:
        pass
    else:
        json.dumps(invocation["args"], allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", LANGUAGES)
@given(value=VALUES | st.binary() | st.builds(object))
def test_anything_else_is_refused(language: AgentLanguage, value: Any) -> None:
    try:
        language.parse_response(value)
    except LanguageError:
        pass


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", LANGUAGES)
@given(tool=NAMES, args=ARGS)
def test_valid_calls_survive_the_round_trip(language: AgentLanguage, tool: str, args: dict[str, Any]) -> None:
    call = {"tool": tool, "args": args}
    assert language.parse_response(call) == call
    assert language.parse_response(json.dumps(call)) == call
    assert (
        language.parse_response(f"I will use {{it}}:\n```json\n{json.dumps(call, ensure_ascii=False, indent=1)}\n```")
        == call
    )
    assert language.parse_response(Response("", (ToolCall(tool, json.dumps(args)),))) == call


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"tool": ' * 50_000, '{"a":' * 100_000, "{" * 300_000],
    ids=["arrays", "calls", "objects", "braces"],
)
def test_deep_and_long_replies_end(text: str) -> None:
    with pytest.raises(LanguageError):
        JsonLanguage().parse_response(text)


def test_the_first_of_several_actions_is_taken_and_the_model_is_told() -> None:
    reply = '{"note": 1} {"tool": "a", "args": {"x": "}"}} {"tool": "b"}'
    invocation = JsonLanguage().parse_response(reply)
    assert (invocation["tool"], invocation["args"]) == ("a", {"x": "}"})
    assert [n["code"] for n in invocation["notices"]] == ["too_many_actions"]


def test_repair_is_told_and_never_guesses_what_was_cut() -> None:
    invocation = JsonLanguage().parse_response("{\"tool\": \"write\", 'args': {path: 'x', content: 'y',}}")
    assert invocation["args"] == {"path": "x", "content": "y"}
    assert [n["code"] for n in invocation["notices"]] == ["reply_repaired"]
    for text in ('{"tool": "write", "args": {"path": "x", "content": "half', '{"tool": "write", "args": {"path": "x"'):
        with pytest.raises(LanguageError, match="middle"):
            JsonLanguage().parse_response(text)
    with pytest.raises(LanguageError, match="middle"):
        FunctionCallingLanguage().parse_response(Response("", (ToolCall("write", '{"path": "x",}'),), cut=True))


def test_a_raw_line_break_in_a_string_is_taken_as_it_is_meant() -> None:
    assert JsonLanguage().parse_response('{"tool": "w", "args": {"content": "a\nb"}}')["args"] == {"content": "a\nb"}


def actions(order: int) -> list[Action]:
    made = [Action(n, lambda: 1, f"Does {n}.", {"type": "object", "properties": {}}) for n in ("b", "a", "c")]
    return made[::order]


class Described(Environment):
    def describe(self) -> dict[str, str]:
        return {"open file": "a.py"}


def remembered() -> Memory:
    memory = Memory()
    memory.add_memory({"role": "user", "content": "task"})
    for message in exchange({"thought": "hm", "tool": "a", "args": {"x": 1}}, {"tool_executed": True, "result": "one"}):
        memory.add_memory(message)
    two = Response("two", (ToolCall("b", "{bad", "id1"), ToolCall("c", "{}", "id2")))
    for message in exchange(two, {"tool_executed": False, "code": "unparsable_response", "error": "e", "hint": "h"}):
        memory.add_memory(message)
    for message in exchange("only text", {"tool_executed": False, "code": "unparsable_response", "error": "e"}):
        memory.add_memory(message)
    return memory


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_prompt_is_the_same_for_any_order(language: AgentLanguage) -> None:
    goals = [Goal(2, "x", "X."), Goal(1, "y", "Y.")]
    first = language.construct_prompt(actions(1), Described(), goals, remembered())
    second = language.construct_prompt(actions(-1), Described(), goals[::-1], remembered())
    assert str(first) == str(second)
    assert first.to_dict() == second.to_dict()
    assert str(first).index("Y.") < str(first).index("X.")
    json.dumps(first.to_dict())


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_state_of_the_environment_is_in_the_prompt_and_not_in_memory(language: AgentLanguage) -> None:
    memory = remembered()
    before = len(memory.items)
    prompt = language.construct_prompt(actions(1), Described(), [], memory)
    assert prompt.messages[-1]["content"] == "# Environment now\n\n## open file\na.py"
    assert len(memory.items) == before


def test_native_messages_pair_every_call_with_one_answer() -> None:
    prompt = FunctionCallingLanguage().construct_prompt(actions(1), Environment(), [], remembered())
    roles = [m["role"] for m in prompt.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "user"]
    first = prompt.messages[1]["tool_calls"][0]
    assert prompt.messages[2]["tool_call_id"] == first["id"]
    assert json.loads(first["function"]["arguments"]) == {"x": 1}
    assert prompt.messages[1]["content"] == "hm"
    assert [m["tool_call_id"] for m in prompt.messages[4:6]] == ["id1", "id2"]
    assert json.loads(prompt.messages[3]["tool_calls"][0]["function"]["arguments"]) == {"malformed": "{bad"}
    assert [t["function"]["name"] for t in prompt.tools] == ["a", "b", "c"]


def test_a_call_without_an_answer_gets_one_in_the_prompt() -> None:
    memory = Memory()
    memory.add_memory({"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "a", "arguments": "{}"}]})
    memory.add_memory({"role": "user", "content": "go on"})
    prompt = FunctionCallingLanguage().construct_prompt(actions(1), Environment(), [], memory)
    assert [m["role"] for m in prompt.messages] == ["assistant", "tool", "user"]


def test_json_text_tells_actions_and_results_in_text() -> None:
    prompt = JsonLanguage().construct_prompt(actions(1), Environment(), [Goal("g")], remembered())
    assert prompt.tools == ()
    assert {m["role"] for m in prompt.messages} == {"system", "user", "assistant"}
    assert "## a\nDoes a." in prompt.messages[0]["content"]
    assert prompt.messages[2]["content"] == 'hm\n{"tool": "a", "args": {"x": 1}}'
    assert prompt.messages[3]["content"] == "Result of a:\none"


@pytest.mark.parametrize("language", [FunctionCallingLanguage, JsonLanguage])
def test_words_without_a_call_are_not_answered_with_a_result(language: type[AgentLanguage]) -> None:
    """The word "Result:" stood above the error, though no tool had run."""
    memory = Memory()
    for reply, envelope in (
        ("I will look.", unparsable("The reply is text without a tool call.", "Call one.")),
        ('{"tool": "a", "args": {}}', {"tool_executed": True, "result": "one", "notices": []}),
    ):
        memory.add_memory({"role": "assistant", "content": reply})
        memory.add_memory({"role": "tool", "content": envelope})
    prompt = language().construct_prompt(actions(1), Environment(), [], memory)
    told = [m["content"] for m in prompt.messages if m["role"] == "user"]
    assert told == ["ERROR unparsable_response: The reply is text without a tool call.\nHINT: Call one.", "Result of a:\none"]


def test_sandbox_tools_say_what_a_model_needs() -> None:
    tools = {t["function"]["name"]: t["function"] for t in standard_registry().tools()}
    assert "upload" not in tools
    assert "download" not in tools
    assert set(tools["run"]["parameters"]["properties"]) == {
        "command", "cwd", "timeout_seconds", "background", "session", "wait_seconds", "pty", "rows", "cols",
    }  # fmt: skip
    assert "give wait_seconds" in tools["run"]["description"]
    assert tools["run"]["parameters"]["required"] == ["command"]
    assert "argv" not in json.dumps(tools["run"])
    assert all(t["description"] for t in tools.values())


def test_results_of_the_sandbox_are_shown_in_their_own_words() -> None:
    registry: ActionRegistry = standard_registry()
    run = registry.get_action("run")
    assert run is not None
    result = {"id": "c1", "exit_code": 3, "output": "boom\n", "stdout": "boom\n", "stderr": ""}
    assert run.show({"tool_executed": True, "result": result, "notices": []}) == "boom\n[exit code 3]"
    foreign = run.show({"tool_executed": False, "error": "of another environment"})
    assert json.loads(foreign)["error"] == "of another environment"


def test_a_message_between_calls_and_their_answers_follows_the_answers() -> None:
    memory = Memory()
    calls = [{"id": ident, "name": "think", "arguments": "{}"} for ident in "ab"]
    memory.add_memory({"role": "assistant", "content": "", "tool_calls": calls})
    for role, content in (("tool", "1"), ("user", "a note"), ("tool", "2"), ("user", "another")):
        memory.add_memory({"role": role, "content": content})
    memory.add_memory({"role": "assistant", "content": "", "tool_calls": calls[:1]})
    memory.add_memory({"role": "user", "content": "cut off"})
    prompt = FunctionCallingLanguage().construct_prompt([], Environment(), [Goal("g")], memory)
    found = [(message["role"], message.get("tool_call_id") or message["content"]) for message in prompt.messages[-8:]]
    answers = [("assistant", None), ("tool", "a"), ("tool", "b"), ("user", "a note"), ("user", "another")]
    assert found == [*answers, ("assistant", None), ("tool", "a"), ("user", "cut off")]


def test_no_reply_makes_a_conversation_that_a_provider_refuses() -> None:
    """Ids that are there twice or hold control characters, names that no tool may have, halves of characters."""
    named = [("a", "think"), ("a", "functions.think"), ("", "n" * 200), ("call_1_2", "\x1b[31m")]
    named += [("b\n\x00", "odd.name"), ("c", "")]
    calls = [{"id": ident, "function": {"name": name, "arguments": '{"x": "\ud800"}'}} for ident, name in named]
    reply = Response.of({"content": "half \ud800", "tool_calls": calls, "reasoning_content": "\ud800"})
    memory = Memory()
    memory.add_memory({"role": "user", "content": "t"})
    for message in exchange(reply, {"tool_executed": True, "result": 1}):
        memory.add_memory(message)
    tools = [Action("odd.name", lambda: None)]  # a provider that takes the schema of such a tool takes its calls
    prompt = FunctionCallingLanguage().construct_prompt(tools, Environment(), [Goal("g")], memory)
    made = [call for message in prompt.messages for call in message.get("tool_calls") or ()]
    ids = [call["id"] for call in made]
    assert len(set(ids)) == len(ids) == len(named)
    assert all(ident.isprintable() and ident for ident in ids)
    assert [message["tool_call_id"] for message in prompt.messages if message["role"] == "tool"] == ids
    found = [call["function"]["name"] for call in made]
    assert found == ["think", "functions_think", "n" * 64, "__31m", "odd.name", "unnamed"]
    json.dumps(prompt.messages, ensure_ascii=False).encode()


def test_the_calls_of_a_reply_are_bounded() -> None:
    calls = [{"id": f"c{number}", "name": "think", "arguments": "{}"} for number in range(5000)]
    assert len(Response.of({"content": "", "tool_calls": calls}).tool_calls) == 256


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "text",
    [
        '{"a":[' * 900 + "1," * 500_000,
        '{"tool":[' * 500 + "1," * 500_000 + "}",
        '{"tool": "run", "args": {"c": "' + 'a"b' * 300_000 + '"}}',
    ],
    ids=["not ended", "nested", "quotes"],
)
def test_no_reply_is_read_for_long(language: AgentLanguage, text: str) -> None:
    began = time.process_time()
    with pytest.raises(LanguageError):
        language.parse_response(text)
    language.thought_of(text)
    with pytest.raises(LanguageError):
        language.parse_response(Response("", (ToolCall("run", text[:-1] + "}}"),)))
    assert time.process_time() - began < 8
